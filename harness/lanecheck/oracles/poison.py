"""Poison: every output element is written, and nothing between the rows.

Outputs start as one NaN whose payload no kernel produces (kernels make the canonical NaN), so an
element that still holds those bits was never written; the same bits fill the gap that a row stride
leaves, and must survive there.
"""

from __future__ import annotations

import numpy as np

from lanecheck.observation import POISON, Observation
from lanecheck.verdict import Outcome, Verdict

NAME = "poison"


def judge(observation: Observation) -> Verdict | None:
    for name, bits in observation.outputs.items():
        untouched = bits == POISON["bf16" if bits.dtype == np.uint16 else "fp32"]
        if untouched.any():
            where = ", ".join(map(str, np.argwhere(untouched)[0]))
            return Verdict(
                NAME,
                Outcome.FAIL,
                f"{name}[{where}] was never written ({untouched.sum()} of {bits.size} elements)",
            )
    for name, count in observation.strays.items():
        if count:
            return Verdict(
                NAME, Outcome.FAIL, f"{count} elements between the rows of {name} were overwritten"
            )
    return Verdict(NAME, Outcome.PASS)
