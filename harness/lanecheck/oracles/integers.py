"""Exact integers: with integer inputs whose sums are exact, the output is known bit for bit.

If Σ|terms| over everything added is at most 2^24, every partial sum in any order is an integer that
FP32 holds exactly. The tensor core's truncation loses nothing either: aligned to the largest of its
terms, less than 2^24 apart from the smallest, no set bit is shifted out. So every correct kernel, of
whatever order, gives the same FP32 number, and its one rounding to BF16 is the output: comparison is
bitwise equality and needs no knowledge of the kernel.

The bound is checked on the inputs themselves. Three regimes see different things: ``small`` keeps sums
within ±256, where BF16 output hides nothing; ``wide`` goes far beyond 2^8 and 2^11, where an accumulator of
BF16 or FP16 shows; FP32 output shows every bit of either.

Sees: every misread, dropped or repeated operand that changes the sum, a narrow accumulator, a wrong
rounding of the store; for any kernel, whatever its order.

Cannot see: an order that changes, what happens to values that are not integers, an epilogue that makes
more than a sum; in BF16, a small error beneath the rounding of a large sum.
"""

from __future__ import annotations

from lanecheck.observation import Observation
from lanecheck.oracles.compare import check_names, first_difference
from lanecheck.values import INTEGER_REGIMES, rounded_bits
from lanecheck.verdict import Outcome, Verdict

NAME = "integers"

_EXACT = 2.0**24


def judge(observation: Observation) -> Verdict | None:
    if observation.params["regime"] not in INTEGER_REGIMES or not observation.plain:
        return None
    if any((size > _EXACT).any() for size in observation.sizes.values()):
        return None
    check_names(observation.outputs, observation.exact)
    expected = {
        name: rounded_bits(values, observation.outputs[name].dtype)
        for name, values in observation.exact.items()
    }
    difference = first_difference(observation.outputs, expected)
    compared = sum(bits.size for bits in expected.values())
    if difference is None:
        return Verdict(NAME, Outcome.PASS, compared=compared)
    return Verdict(NAME, Outcome.FAIL, difference, compared)
