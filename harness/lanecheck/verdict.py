"""Verdicts: what an oracle says of one observation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(str, Enum):
    """Of one oracle on one case."""

    PASS = "pass"
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
