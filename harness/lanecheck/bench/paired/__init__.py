"""Whether head is slower than base: pairs of fresh processes, and a verdict that is exact.

``compare`` is the whole of it: ``arms`` are checked out, ``process`` builds, judges and times one of them,
``fresh`` starts such processes, most of them from a ``parent``, ``pairing`` draws their order, ``journal``
keeps what they said, ``gate`` judges it and ``record`` stores it. ``power`` simulates how often the gate
errs, ``measured`` stores that beside real comparisons of identical code, and ``rates`` are what is said
of it.
"""
