"""The oracles: one module each, all of one signature, cheapest and sharpest first.

``judge(observation) -> Verdict | None``; None where the oracle has nothing to say of this case. An
oracle that has to launch the kernel again judges one case in ``EVERY``, chosen by the case's seed. One
that can tell why others failed is asked ``diagnose(observation, thorough)`` instead after any did.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from zlib import crc32

from lanecheck.cases import Case
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

#: Those that judge a large case: no reference of all of it, and no launch with other operands.
AT_FULL_SIZE: tuple[ModuleType, ...] = (execution, poison, bits, stability)


def judge(
    observation: Observation,
    ladder: Sequence[ModuleType] | None = None,
    thorough: bool = False,
    every_turn: bool = False,
) -> list[Verdict]:
    """Every oracle's verdict on one observation; those with nothing to say are left out.

    After a failed execution the outputs may be no more than their poison, so nothing else is asked.

    Args:
        ladder: whom to ask; by default every oracle, or :data:`AT_FULL_SIZE` of a large case.
        thorough: take more time, for a case that is looked at rather than counted.
        every_turn: ask those too whose turn it is not.
    """
    if ladder is None:
        ladder = AT_FULL_SIZE if observation.large else LADDER
    verdicts: list[Verdict] = []
    for module in ladder:
        wrong = any(verdict.wrong for verdict in verdicts)
        if hasattr(module, "diagnose") and (wrong or thorough):
            verdict = module.diagnose(observation, thorough)
        elif every_turn or _turn(module, observation.case):
            verdict = module.judge(observation)
        else:
            continue
        if verdict is not None:
            verdicts.append(verdict)
        if module is execution and verdict is not None and verdict.wrong:
            break
    return verdicts


def _turn(module: ModuleType, case: Case) -> bool:
    """Whether an oracle judges this case: one in ``EVERY``, whichever the others judge."""
    every = getattr(module, "EVERY", 1)
    return every == 1 or crc32(f"{module.NAME} {case.seed}".encode()) % int(every) == 0
