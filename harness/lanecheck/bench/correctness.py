"""Whether a shape may be timed: the ordinary oracles, on the device, on the same library.

At full size, those that do little more than look at the outputs. Predicting bits, and launching again
and again, costs the host more than the device: the whole ladder judges fewer output columns of the same
configuration.

What the timed launches compute is held against what ordinary ones computed before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import ModuleType

from lanecheck import oracles
from lanecheck.bench import plan
from lanecheck.bench.model import Judgement
from lanecheck.bench.plan import Workload
from lanecheck.cases import Case
from lanecheck.observation import Observation
from lanecheck.oracles import execution, integers, poison, stability
from lanecheck.subject import Bits, Params, Subject
from lanecheck.trial import Target, observe

_AT_FULL_SIZE = (execution, poison, integers, stability)


@dataclass(frozen=True)
class Ordinary:
    """What a workload's outputs are, in bits by name, when it is launched as any case is.

    Attributes:
        drawn: from its own inputs.
        others: from its other inputs.
    """

    drawn: Mapping[str, Bits]
    others: Mapping[str, Bits]


def judge(subject: Subject, params: Params, target: Target, seed: int) -> list[Judgement]:
    """Every oracle's verdict on one shape."""
    whole = plan.case(subject, params, "small", seed)
    part = plan.case(subject, plan.reduced(params), "normal", seed)
    return [
        *_judged(subject, whole, target, _AT_FULL_SIZE),
        *_judged(subject, part, target, oracles.LADDER),
    ]


def ordinary(workload: Workload, target: Target) -> tuple[list[Judgement], Ordinary]:
    """A workload's outputs from both its inputs, each judged by what does not depend on numbers; its
    numbers are for :func:`judge`.

    Args:
        target: of one capability.
    """
    ((_, drawn),) = observe(workload.subject, workload.case, target, workload.inputs)
    run = drawn.launch(workload.case.params, workload.others)
    others = replace(drawn, inputs=workload.others, runs=(run,))
    judgements = [
        *_verdicts(drawn, (execution, poison, stability)),
        *_verdicts(others, (execution, poison)),
    ]
    return judgements, Ordinary(drawn.outputs, others.outputs)


def _judged(
    subject: Subject, case: Case, target: Target, ladder: tuple[ModuleType, ...]
) -> Iterator[Judgement]:
    for _, observation in observe(subject, case, target):
        yield from _verdicts(observation, ladder)


def _verdicts(observation: Observation, ladder: tuple[ModuleType, ...]) -> Iterator[Judgement]:
    for verdict in oracles.judge(observation, ladder, every_turn=True):
        yield Judgement(
            line=observation.case.line,
            oracle=verdict.oracle,
            outcome=verdict.outcome,
            evidence=verdict.evidence,
        )
