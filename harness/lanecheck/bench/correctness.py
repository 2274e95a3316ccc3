"""Whether a shape may be timed: the ordinary oracles, on the device, on the same library.

At full size, those that do little more than look at the outputs. Predicting bits, and launching again
and again, costs the host more than the device: the whole ladder judges fewer output columns of the same
configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from lanecheck import oracles
from lanecheck.bench import plan
from lanecheck.bench.model import Judgement
from lanecheck.cases import Case
from lanecheck.oracles import execution, integers, poison, stability
from lanecheck.subject import Params, Subject
from lanecheck.trial import Target, observe

_AT_FULL_SIZE = (execution, poison, integers, stability)


def judge(subject: Subject, params: Params, target: Target, seed: int) -> list[Judgement]:
    """Every oracle's verdict on one shape."""
    whole = plan.case(subject, params, "small", seed)
    part = plan.case(subject, plan.reduced(params), "normal", seed)
    return [
        *_judged(subject, whole, target, _AT_FULL_SIZE),
        *_judged(subject, part, target, oracles.LADDER),
    ]


def _judged(
    subject: Subject, case: Case, target: Target, ladder: tuple[ModuleType, ...]
) -> Iterator[Judgement]:
    for _, observation in observe(subject, case, target):
        for verdict in oracles.judge(observation, ladder):
            yield Judgement(
                line=case.line,
                oracle=verdict.oracle,
                outcome=verdict.outcome,
                evidence=verdict.evidence,
            )
