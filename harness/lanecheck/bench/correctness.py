"""Whether a shape may be timed: the ordinary oracles, on the device, on the same library.

Integers are compared at full size. Predicting bits costs the host more than the device, so they are
compared at fewer output columns of the same configuration.
"""

from __future__ import annotations

from collections.abc import Iterator

from lanecheck import oracles
from lanecheck.bench import plan
from lanecheck.bench.model import Judgement
from lanecheck.cases import Case
from lanecheck.oracles import bits
from lanecheck.subject import Params, Subject
from lanecheck.trial import Target, observe


def judge(subject: Subject, params: Params, target: Target, seed: int) -> list[Judgement]:
    """Every oracle's verdict on one shape."""
    whole = plan.case(subject, params, "small", seed)
    part = plan.case(subject, plan.reduced(params), "normal", seed)
    return [
        *_judged(subject, whole, target, frozenset(oracles.NAMES) - {bits.NAME}),
        *_judged(subject, part, target, frozenset(oracles.NAMES)),
    ]


def _judged(
    subject: Subject, case: Case, target: Target, wanted: frozenset[str]
) -> Iterator[Judgement]:
    for _, observation in observe(subject, case, target):
        for module in oracles.LADDER:
            if module.NAME in wanted and (verdict := module.judge(observation)) is not None:
                yield Judgement(
                    line=case.line,
                    oracle=verdict.oracle,
                    outcome=verdict.outcome,
                    evidence=verdict.evidence,
                )
