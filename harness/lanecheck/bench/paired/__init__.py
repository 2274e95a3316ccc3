"""Whether head is slower than base: pairs of fresh processes, and a verdict that is exact.

``compare`` is the whole of it, once it is ``prepared``: ``arms`` are checked out, ``process`` answers
``tasks``, to build, judge or time one of them, ``machine_code`` says whether they differ at all, ``fresh``
starts such processes, most of them from a ``parent``, ``pairing`` draws their order, ``journal`` keeps what
they said, ``gate`` judges it, ``record`` stores it and ``table`` shows it. ``power`` simulates how often the
gate errs, ``measured`` stores that beside real comparisons of identical code, ``rates`` are what is said of
it, and a change of ``timing_code`` ages them.
"""
