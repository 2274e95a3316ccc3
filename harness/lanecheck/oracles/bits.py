"""Predicted bits: the output equals, bit for bit, what the declared order gives on this tensor core.

The subject predicts from its configuration (chain order, warp order, split order, epilogue, rounding)
and a bit-exact model of ``mma``; see :mod:`lanecheck.tensorcore` for the model's source and whether
it is measured or published.

Other bits are a failure, unless every element that has them is inside its
:mod:`~lanecheck.oracles.bound`: then the kernel adds the right numbers, but not in its declared order.
Integers have one sum in every order, and there is no such excuse.

Sees: any difference at all, in every regime and through every epilogue: an order that changes, one
rounding too many, one subnormal flushed.

Cannot see: a mistake that specification and kernel share; a tensor core that is not as modelled, until
the kernel runs on one.
"""

from __future__ import annotations

from lanecheck.observation import Observation
from lanecheck.oracles import bound
from lanecheck.oracles.compare import first_difference
from lanecheck.values import INTEGER_REGIMES
from lanecheck.verdict import Outcome, Verdict

NAME = "bits"


def judge(observation: Observation) -> Verdict | None:
    params, outputs = observation.params, observation.outputs
    predicted = observation.subject.predict(params, observation.inputs, observation.core)
    if predicted is None:
        return None
    difference = first_difference(outputs, predicted)
    if difference is None:
        return Verdict(NAME, Outcome.PASS)
    evidence = f"{difference}, on the {observation.core.name} model"
    differs = {name: outputs[name] != bits for name, bits in predicted.items()}
    if params["regime"] not in INTEGER_REGIMES and bound.inside(observation, differs):
        text = f"{evidence}; all within the bound of another order"
        return Verdict(NAME, Outcome.REORDERED, text)
    return Verdict(NAME, Outcome.FAIL, evidence)
