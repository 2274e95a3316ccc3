"""Predicted bits: the output equals, bit for bit, what the declared order gives on this tensor core.

The subject predicts from its configuration (chain order, warp order, split order, epilogue, rounding)
and a bit-exact model of ``mma``; see :mod:`lanecheck.tensorcore` for the model's source and whether
it is measured or published.
"""

from __future__ import annotations

from lanecheck.observation import Observation
from lanecheck.oracles.compare import first_difference
from lanecheck.verdict import Outcome, Verdict

NAME = "bits"


def judge(observation: Observation) -> Verdict | None:
    predicted = observation.subject.predict(
        observation.case.params, observation.inputs, observation.core
    )
    if predicted is None:
        return None
    difference = first_difference(observation.outputs, predicted)
    if difference is None:
        return Verdict(NAME, Outcome.PASS)
    return Verdict(NAME, Outcome.FAIL, f"{difference}, on the {observation.core.name} model")
