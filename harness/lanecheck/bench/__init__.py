"""How fast a subject is, said honestly: cold L2, everything timed side by side in one run.

``plan`` says what is timed, ``correctness`` whether it may be, ``ceiling`` and ``peers`` what it
is held against, ``timing`` how, and ``telemetry`` in which state of the GPU. ``inquiry`` looks for faults
of the timing, by a ``rig`` for the GPU or the host, and ``doubts`` says what they mean; ``model`` is what is
recorded and when a number counts for nothing. ``race`` puts them together for one shape, ``worker`` is the
process of one GPU, ``run`` spreads the shapes over GPUs, and ``ncu`` asks somebody else.

``paired`` compares two versions.
"""
