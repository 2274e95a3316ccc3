"""Verdicts: what an oracle says of one observation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(str, Enum):
    """Of one oracle on one case.

    REORDERED: other bits than predicted, by no more than another order of the same additions explains.
    The numbers are right, but the declared order is not the kernel's. SUSPECT: wrong on a GPU, and right
    each time that it was repeated: a race, or a device that corrupts data silently.
    """

    PASS = "pass"
    REORDERED = "reordered"
    SUSPECT = "suspect device"
    FAIL = "fail"


@dataclass(frozen=True)
class Verdict:
    """Outcome and its evidence, in words.

    Attributes:
        oracle: which oracle speaks.
        outcome: its judgement.
        evidence: for anything but a pass, one sentence that names what is wrong and where.
        compared: output elements whose bits were compared with expected ones.
    """

    oracle: str
    outcome: Outcome
    evidence: str = ""
    compared: int = 0

    @property
    def wrong(self) -> bool:
        return self.outcome in (Outcome.FAIL, Outcome.SUSPECT)
