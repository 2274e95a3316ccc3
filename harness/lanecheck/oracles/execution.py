"""Execution: the machine that ran the case found nothing to report.

On the host that is host execution itself: every buffer lies between inaccessible pages, against the
upper or the lower one by the case, and what is left of its pages holds canaries. On a GPU buffers lie
between canaries, inputs are compared with what they were, and a launch has an error code.

Sees: accesses outside a buffer or misaligned, writes to inputs, divergent barriers, missing lanes,
deadlock; in the checked builds also races by happens-before and undefined behaviour.

Cannot see: a read that goes to the wrong place inside the right buffer, or one past the end that lands
in the canaries between buffer and page.
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
