"""Poison: every output element is written, and nothing between the rows.

Outputs hold one colour before the first run and another before the second. No value is both, so an
element that holds the colour of its run each time was never written, whatever the kernel computes. The
same colours fill the gap that a row stride leaves, and must survive there.

Sees: tokens, rows or tiles that no thread stores; stores between the rows of an output.

Cannot see: a store to the wrong element of the same output, as long as each gets one.
"""

from __future__ import annotations

import numpy as np

from lanecheck.observation import POISON, Observation
from lanecheck.oracles.compare import first
from lanecheck.verdict import Outcome, Verdict

NAME = "poison"


def judge(observation: Observation) -> Verdict | None:
    for name, bits in observation.outputs.items():
        dtype = "bf16" if bits.dtype == np.uint16 else "fp32"
        untouched = np.logical_and.reduce(
            [run.outputs[name] == colour[dtype] for run, colour in zip(observation.runs, POISON)]
        )
        if untouched.any():
            where = ", ".join(map(str, first(untouched)))
            return Verdict(
                NAME,
                Outcome.FAIL,
                f"{name}[{where}] was never written ({untouched.sum()} of {bits.size} elements)",
            )
    for run in observation.runs:
        for name, count in run.strays.items():
            if count:
                text = f"{count} elements between the rows of {name} were overwritten"
                return Verdict(NAME, Outcome.FAIL, text)
    return Verdict(NAME, Outcome.PASS)
