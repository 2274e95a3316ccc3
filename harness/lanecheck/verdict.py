"""Verdicts: what an oracle says of one observation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(str, Enum):
    """Of one oracle on one case.

    REORDERED: other bits than predicted, by no more than another order of the same additions explains.
    The numbers are right, but the declared order is not the kernel's.
    """

    PASS = "pass"
    REORDERED = "reordered"
    FAIL = "fail"


@dataclass(frozen=True)
class Verdict:
    """Outcome and its evidence, in words.

    Attributes:
        oracle: which oracle speaks.
        outcome: its judgement.
        evidence: for anything but a pass, one sentence that names what is wrong and where.
    """

    oracle: str
    outcome: Outcome
    evidence: str = ""

    @property
    def wrong(self) -> bool:
        return self.outcome is Outcome.FAIL
