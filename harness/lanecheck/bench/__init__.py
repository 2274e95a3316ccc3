"""How fast a subject is, said honestly: one GPU, cold L2, everything timed side by side in one run.

``plan`` says what is timed, ``correctness`` whether it may be, ``ceiling`` and ``peers`` what it
is held against, ``timing`` how, and ``telemetry`` in which state of the GPU. ``inquiry`` looks for faults
of the timing, by a ``rig`` for the GPU or the host, and ``doubts`` says what they mean; ``model`` is what is
recorded and when a number counts for nothing; ``run`` puts them together.

``paired`` compares two versions, where ``host`` and ``silicon`` are what their processes run on.
"""
