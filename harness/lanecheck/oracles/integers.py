"""Exact integers: with integer inputs whose sums are exact, the output is known bit for bit.

If Σ|products| over everything added stays ≤ 2^24, every partial sum in any order is an integer that
FP32 holds exactly. The tensor core's truncation loses nothing either: aligned to the largest of its
terms, less than 2^24 apart from the smallest, no set bit is shifted out. So every correct kernel, of
whatever order, gives the same FP32 number, and its one rounding to BF16 is the output: comparison is
bitwise equality and needs no knowledge of the kernel.
"""

from __future__ import annotations

from lanecheck.observation import Observation
from lanecheck.oracles.compare import check_names, first_difference
from lanecheck.values import INTEGER_REGIMES, rounded_bits
from lanecheck.verdict import Outcome, Verdict

NAME = "integers"


def judge(observation: Observation) -> Verdict | None:
    params = observation.case.params
    if params["regime"] not in INTEGER_REGIMES:
        return None
    if not observation.subject.sums(params):
        return None
    exact = observation.subject.reference(params, observation.inputs)
    check_names(observation.outputs, exact)
    expected = {
        name: rounded_bits(values, observation.outputs[name].dtype)
        for name, values in exact.items()
    }
    difference = first_difference(observation.outputs, expected)
    if difference is None:
        return Verdict(NAME, Outcome.PASS)
    return Verdict(NAME, Outcome.FAIL, difference)
