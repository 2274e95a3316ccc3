"""How fast a subject is, said honestly: cold L2, everything timed side by side in one run.

``plan`` says what is timed, and a ``rig`` on what: ``cuda_rig``, by means of ``cuda_graph`` and ``device``,
or ``host_rig`` where there is no GPU. ``correctness`` decides whether a shape may be timed, ``ceiling`` and
``peers`` are what it is held against, ``timing`` is how, ``telemetry`` tells the state of the GPU meanwhile,
and ``inquiry`` measures the facts of which ``doubts`` says what they mean. ``race`` puts these together for
one shape, ``worker`` is the process of one GPU, and ``run`` spreads the shapes over GPUs; ``asking`` says
which peers race, and those that compile do so ``ahead``.

``model`` is what is recorded, and when a number counts for nothing; it is made of ``strict``, ``machine``,
``judgement``, ``spread`` and ``profiled``. ``log`` is the ``journal`` of a run that can be gone on with,
``cost`` foretells how long a run takes, and ``table`` shows its record. ``ncu`` asks somebody else,
who watches the ``launches``.

``paired`` compares two versions.
"""
