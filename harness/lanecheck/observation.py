"""One observed run of a case: what went in, what came out, what the machine had to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lanecheck.cases import Case
from lanecheck.subject import Bits, Subject
from lanecheck.tensorcore import TensorCore

#: What every output element holds before the run: a NaN that no kernel computes.
POISON = {"bf16": 0x7FA5, "fp32": 0x7FA5A5A5, "byte": 0xA5}


@dataclass(frozen=True)
class Problem:
    """Something the executing machine reports: an access fault, a race, a damaged canary."""

    kind: str
    message: str


@dataclass(frozen=True)
class Observation:
    """What an oracle may look at.

    Attributes:
        subject, case: what ran. core: the tensor core it ran on.
        inputs: bits by name. outputs: bits by name; a copy, in logical shape.
        strays: output tensor name to how many poisoned elements between its rows were overwritten.
        problems: the machine's own reports.
    """

    subject: Subject
    case: Case
    core: TensorCore
    inputs: Mapping[str, Bits]
    outputs: Mapping[str, Bits]
    strays: Mapping[str, int]
    problems: tuple[Problem, ...]
