"""Execution: the machine that ran the case found nothing to report.

On the host that is host execution itself: accesses outside a buffer or misaligned, writes to inputs,
damaged canaries, divergent barriers, missing lanes, deadlock, races by happens-before. On a GPU it is
the launch's error code and the canaries. No tolerance is involved.
"""

from __future__ import annotations

from lanecheck.observation import Observation
from lanecheck.verdict import Outcome, Verdict

NAME = "execution"


def judge(observation: Observation) -> Verdict | None:
    if not observation.problems:
        return Verdict(NAME, Outcome.PASS)
    first, *others = observation.problems
    more = f" (and {len(others)} more)" if others else ""
    return Verdict(NAME, Outcome.FAIL, f"{first.kind}: {first.message}{more}")
