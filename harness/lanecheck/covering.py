"""A few hundred cases that take every way through a kernel, for checkers too slow for a campaign."""

from __future__ import annotations

from lanecheck import cases
from lanecheck.cases import Case
from lanecheck.subject import Subject

#: Cases that are kept whatever they add: all there is of a subject that does not tell its ways apart.
FIRST = 50
#: How many cases are drawn; the rarest way of 832 through a kernel came up after half as many.
DRAWS = 100_000


def covering(subject: Subject, seed: int) -> list[Case]:
    """The first cases of campaign ``seed``, and each later one with a way through the kernel that is new.

    Two cases take the same way if :meth:`~lanecheck.subject.Subject.kernel_of` says the same of them.
    """
    kept, seen = [], set()
    for index in range(DRAWS):
        case = cases.case(subject, seed, index)
        way = subject.kernel_of(case.params)
        if index < FIRST or way not in seen:
            kept.append(case)
        seen.add(way)
    return kept
