"""Whether a shape may be timed: the ordinary oracles, on the device, on the same library.

Predicting bits, and launching again and again, costs the host more than the device: the whole ladder judges
fewer output columns of the same configuration. At full size, and where the values lie, every output is
compared with exact integers.

What the timed launches compute is held against what ordinary ones computed before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

from lanecheck import oracles
from lanecheck.bench import plan
from lanecheck.bench.judgement import Judgement, doubt
from lanecheck.bench.plan import Workload, lay_out
from lanecheck.bench.rig import Array, Rig
from lanecheck.cases import Case
from lanecheck.oracles import execution, integers, poison, stability
from lanecheck.subject import Product, Subject
from lanecheck.trial import Target, observe
from lanecheck.verdict import Outcome

PRECISION = "precision"
ROUNDED, SUMMED = 1.05, 2.0**-13
"""Of the relative error of sums that are rounded once, and beside it. BF16 outputs err by some 8e-4; with
one bit less of each weight it would be twice that. A tensor core that truncates adds 1e-4 at most."""
_AT_FULL_SIZE = (execution, poison, integers, stability)


@dataclass(frozen=True)
class Expected:
    """Two independent sets of a workload's values, and what ordinary launches compute from them; by name.

    Attributes:
        inputs: of each input and packed tensor, what will be timed. others: the second set.
        outputs: from the inputs, in bits. from_others: from the others.
        one_exchanged: from the inputs with one of them taken from the others; by that one's name.
    """

    inputs: Mapping[str, Array]
    others: Mapping[str, Array]
    outputs: Mapping[str, Array]
    from_others: Mapping[str, Array]
    one_exchanged: Mapping[str, Mapping[str, Array]]


def shown(workload: Workload, target: Target, rig: Rig) -> tuple[list[Judgement], Expected | None]:
    """Every verdict on one shape; and what the timed launches are held against, unless it is in doubt.

    Args:
        target: of one capability, the rig's.
    """
    judgements = judge(workload, target, rig)
    if doubt(judgements):
        return judgements, None
    further, expected = ordinary(workload, rig)
    judgements += further
    return judgements, None if doubt(judgements) else expected


def judge(workload: Workload, target: Target, rig: Rig) -> list[Judgement]:
    """The oracles' verdicts; the arguments are those of :func:`shown`."""
    subject, params, seed = workload.subject, workload.params, workload.seed
    if _plain(workload):
        judgements = [_exact(workload, rig)]
    else:
        whole = plan.case(subject, params, "small", seed)
        judgements = [*_judged(subject, whole, target, _AT_FULL_SIZE)]
    part = plan.case(subject, plan.reduced(params), "normal", seed)
    return [*judgements, *_judged(subject, part, target, oracles.LADDER)]


def ordinary(workload: Workload, rig: Rig) -> tuple[list[Judgement], Expected]:
    """A workload's outputs, each computed twice, and of what is timed how near they are to the sums."""
    drawn, others = workload.drawn(rig), workload.drawn(rig, other=True)
    judgements, found = [], []
    for values in (drawn, others):
        first, second = _launched(workload, rig, values), _launched(workload, rig, values)
        unwritten = sum(
            int((first[name] == rig.poison(tensor)).sum())
            for name, tensor in workload.named("output").items()
        )
        differing = sum(int((first[name] != second[name]).sum()) for name in first)
        judgements += [
            _judgement(workload, poison.NAME, _some(unwritten, "were not written")),
            _judgement(workload, stability.NAME, _some(differing, "differ when repeated")),
        ]
        found.append(first)
    judgements += _precise(workload, rig, drawn, found[0])
    given = workload.named("input", "packed")
    drawn, others = ({name: each[name] for name in given} for each in (drawn, others))
    one = {name: _launched(workload, rig, {**drawn, name: others[name]}) for name in given}
    return judgements, Expected(drawn, others, found[0], found[1], one)


def _precise(
    workload: Workload, rig: Rig, values: Mapping[str, Array], outputs: Mapping[str, Array]
) -> list[Judgement]:
    """Whether ordinary values are summed as precisely at full size as where bits are predicted: the
    relative Frobenius error of each product is no more than that of its sums rounded once, and a little."""
    judgements = []
    for product in _plain(workload):
        tensor = workload.named("output")[product.output]
        total = rig.summed(product, values)
        error, least = (
            float((((rig.values(bits, tensor) - total) ** 2).sum() / (total**2).sum()) ** 0.5)
            for bits in (outputs[product.output], rig.stored(total, tensor))
        )
        wrong = f"{product.output} errs by {error:.2e}, its sums rounded once by {least:.2e}"
        if error <= ROUNDED * least + SUMMED:  # and no NaN
            wrong = ""
        judgements.append(_judgement(workload, PRECISION, wrong))
    return judgements


def _plain(workload: Workload) -> Sequence[Product]:
    """The products, if the outputs are nothing else."""
    products = workload.subject.products(workload.case.params)
    return products if all(product.plain for product in products) else ()


def _exact(workload: Workload, rig: Rig) -> Judgement:
    """Every output, from integers of which any order of additions gives the same sum."""
    values, tensors = workload.drawn(rig, "small"), workload.named("output")
    outputs, wrong = _launched(workload, rig, values), 0
    for product in _plain(workload):
        exact = rig.stored(rig.summed(product, values), tensors[product.output])
        wrong += int((outputs[product.output] != exact).sum())
    return _judgement(workload, integers.NAME, _some(wrong, "are not the exact sum"), "small")


def _launched(workload: Workload, rig: Rig, values: Mapping[str, Array]) -> dict[str, Array]:
    """What one launch computes, into poisoned outputs."""
    copy = lay_out(workload, rig, values, 1)
    copy.poison(workload, rig)
    rig.settle()
    rig.enqueue(copy.launches[0])
    rig.settle()
    return {name: bits[0] for name, bits in copy.outputs(workload).items()}


def _some(count: int, what: str) -> str:
    return f"{count} output elements {what}" if count else ""


def _judgement(workload: Workload, oracle: str, wrong: str, regime: str = "normal") -> Judgement:
    """That something is wrong, in words, or that nothing is."""
    case = plan.case(workload.subject, workload.case.params, regime, workload.case.seed)
    return Judgement(
        line=case.line,
        oracle=oracle,
        outcome=Outcome.FAIL if wrong else Outcome.PASS,
        evidence=wrong,
    )


def _judged(
    subject: Subject, case: Case, target: Target, ladder: tuple[ModuleType, ...]
) -> Iterator[Judgement]:
    for _, observation in observe(subject, case, target):
        for verdict in oracles.judge(observation, ladder, every_turn=True):
            yield Judgement(
                line=case.line,
                oracle=verdict.oracle,
                outcome=verdict.outcome,
                evidence=verdict.evidence,
            )
