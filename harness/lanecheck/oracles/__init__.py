"""The oracles: one module each, all of one signature, cheapest and sharpest first.

``judge(observation) -> Verdict | None``; None where the oracle has nothing to say of this case.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from lanecheck.observation import Observation
from lanecheck.oracles import bits, execution, integers, poison
from lanecheck.verdict import Verdict

Judge = Callable[[Observation], "Verdict | None"]

LADDER: tuple[ModuleType, ...] = (execution, poison, integers, bits)
NAMES: tuple[str, ...] = tuple(module.NAME for module in LADDER)


def judge(observation: Observation) -> list[Verdict]:
    """Every oracle's verdict on one observation; those with nothing to say are left out.

    After a failed execution the outputs may be no more than their poison, so nothing else is asked.
    """
    verdicts: list[Verdict] = []
    for module in LADDER:
        verdict = module.judge(observation)
        if verdict is not None:
            verdicts.append(verdict)
        if module is execution and verdict is not None and verdict.wrong:
            break
    return verdicts
