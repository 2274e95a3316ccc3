"""The oracles: one module each, all of one signature, cheapest and sharpest first.

``judge(observation) -> Verdict | None``; None where the oracle has nothing to say of this case. An
oracle that has to launch the kernel again judges one case in ``EVERY``, chosen by the case's seed. One
that can tell why others failed is asked ``diagnose(observation, thorough)`` instead after any did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

from lanecheck.observation import Observation
from lanecheck.oracles import (
    bits,
    bound,
    execution,
    integers,
    poison,
    probes,
    relations,
    specials,
    stability,
    tree,
)
from lanecheck.verdict import Verdict

Judge = Callable[[Observation], "Verdict | None"]

LADDER: tuple[ModuleType, ...] = (
    execution,
    poison,
    integers,
    bits,
    bound,
    specials,
    stability,
    relations,
    probes,
    tree,
)
NAMES: tuple[str, ...] = tuple(module.NAME for module in LADDER)


def judge(
    observation: Observation, ladder: Sequence[ModuleType] = LADDER, thorough: bool = False
) -> list[Verdict]:
    """Every oracle's verdict on one observation; those with nothing to say are left out.

    After a failed execution the outputs may be no more than their poison, so nothing else is asked.

    Args:
        thorough: take more time, for a case that is looked at rather than counted.
    """
    verdicts: list[Verdict] = []
    for module in ladder:
        wrong = any(verdict.wrong for verdict in verdicts)
        if hasattr(module, "diagnose") and (wrong or thorough):
            verdict = module.diagnose(observation, thorough)
        elif observation.case.seed % getattr(module, "EVERY", 1) == 0:
            verdict = module.judge(observation)
        else:
            continue
        if verdict is not None:
            verdicts.append(verdict)
        if module is execution and verdict is not None and verdict.wrong:
            break
    return verdicts
