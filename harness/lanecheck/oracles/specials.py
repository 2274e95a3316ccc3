"""Special values: what an Inf or a NaN among the operands makes of an output, in any order.

Where some product or addend is not finite, IEEE arithmetic fixes what the sum is whatever the order: NaN
if any term is, or if infinities of both signs meet, and otherwise the infinity. That holds, and without
such a term the sum is finite, as long as the finite terms alone cannot overflow FP32 in any order:
where their Σ|terms| is at most 2^127. (Beyond, whether a sum overflows is a matter of order, and of
:mod:`lanecheck.oracles.bits`.) The float64 reference has the same terms: a product of two BF16 is below
2^256, so it overflows for no K.

Sees: an Inf or NaN that is lost, made up or changed, also by operands that should not have been read;
a kernel without a declared order is judged like any other.

Cannot see: finite values; overflow in an order of its own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lanecheck.observation import Observation
from lanecheck.oracles.compare import check_names, first
from lanecheck.values import real_values
from lanecheck.verdict import Outcome, Verdict

NAME = "specials"

_SAFE = 2.0**127


def judge(observation: Observation) -> Verdict | None:
    if not observation.plain:
        return None
    check_names(observation.outputs, observation.exact)
    for name, want in observation.exact.items():
        got = real_values(observation.outputs[name])
        wrong = (_kind(got) != _kind(want)) & (observation.sizes[name] <= _SAFE)
        if wrong.any():
            at = first(wrong)
            where = ", ".join(map(str, at))
            text = f"{name}[{where}] is {got[at]:.9g}; its terms make it {_NAMES[_kind(want)[at]]}"
            return Verdict(NAME, Outcome.FAIL, f"{text} ({wrong.sum()} of {got.size} elements)")
    return Verdict(NAME, Outcome.PASS)


_NAMES = ("finite", "+Inf", "-Inf", "NaN")


def _kind(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return np.select(
        [np.isnan(values), np.isposinf(values), np.isneginf(values)], [3, 1, 2], default=0
    )
