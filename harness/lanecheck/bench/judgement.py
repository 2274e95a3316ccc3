"""What the oracles said of a shape, as a record holds it; and whether that shows the subject correct."""

from __future__ import annotations

from collections.abc import Sequence

from lanecheck.bench.strict import Strict
from lanecheck.verdict import Outcome

#: Oracles that look at the numbers; one of them must have spoken.
NUMERIC = frozenset({"integers", "bits"})


class Judgement(Strict):
    """One oracle's verdict on one case of a benchmarked shape."""

    line: str
    oracle: str
    outcome: Outcome
    evidence: str = ""


def doubt(correctness: Sequence[Judgement]) -> str | None:
    """Why these verdicts do not show that the subject is correct, or None if they do."""
    for judgement in correctness:
        if judgement.outcome is not Outcome.PASS:
            return f"{judgement.oracle}: {judgement.outcome.value}: {judgement.evidence}"
    if not NUMERIC & {judgement.oracle for judgement in correctness}:
        return "no oracle looked at the numbers"
    return None
