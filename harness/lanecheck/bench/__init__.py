"""How fast a subject is, said honestly: one GPU, cold L2, everything timed side by side in one run.

``plan`` says what is timed, ``correctness`` whether it may be, ``ceiling`` and ``peers`` what it
is held against, ``timing`` how, ``model`` what is recorded and when a number counts for nothing;
``run`` puts them together.
"""
