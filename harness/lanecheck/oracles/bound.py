"""Error bound: every output lies as near to the exact sum as its declared order allows.

The bound is a running one: it follows the case's own operands through the model of the tensor core,
rather than assume the worst of all operands. What may be lost, step by step:

- *A fused sum* (:mod:`lanecheck.tensorcore`: exponent E, F fraction bits, quantum q = 2^(E - F)). Each
  product, and the accumulator, is truncated toward zero to a multiple of q: that loses less than q, and
  nothing if it is one already. Their sum is rounded toward zero to FP32: that loses nothing if it is an
  FP32 already, and otherwise, both being multiples of q, at most ulp(s) - q. The ulp of the result s
  is 2^-23 of its power of two, and at least 2^-149.
- *The FP32 additions* of n numbers, which are the chains' sums and the bias, in any order: at most
  (n - 1) · 2^-24 · Σ|numbers| (Jeannerod and Rump, "Improved error bounds for inner products in
  floating-point arithmetic", SIAM J. Matrix Anal. Appl. 34, 2013). A sum that is subnormal is exact,
  and so is one with the +0 of an empty chain. A chain's sum is at most its exact one's size and what it
  may have lost.
- *The store to BF16*: half the spacing of BF16 at the largest size that the above allows. That is 2^-8 of
  its power of two, and at least 2^-134.

So a kernel that adds the same chains in another order is inside. One that drops a term, rounds in between
or truncates at the end leaves the bound wherever that weighs more than the order's own errors.

Nothing is said where a step may not be finite: of a chain by its model, and of the additions where
Σ|numbers| is above 2^127. What an Inf or a NaN makes of a sum is for :mod:`lanecheck.oracles.specials`.

*Float64's own part.* Exact sums are pairs hi + lo. Products of BF16 are exact, TwoSum makes of what an
addition loses another float64, and only adding those up, in lo, rounds: over one fused sum, of terms of a
total size H, by less than 2^-98 · H. If some term was truncated, the bound counts a q of at least
2^-33 · H. If none was, the products are multiples of q, and so exactly added; joining them to the sum so
far loses less than 2^-51 of what separates that from the accumulator, which the bound has counted
too. The bound itself is a sum of positive numbers, and each addition loses 2^-53 of it. So it is
enlarged by 2^-48 for every mma and every number.

How near real sums come to the bound: :mod:`lanecheck.oracles.tightness`.

Sees: rounding that the declared order has not, a narrow accumulator or partial, a truncating store, a lost
term; without any model of the kernel but its order, so that it checks the predicted bits, too.

Cannot see: what weighs less than the order's own errors, as a small term among large ones does;
anything through an epilogue.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lanecheck.native import mma_bounds
from lanecheck.observation import Observation
from lanecheck.oracles import reordering
from lanecheck.oracles.compare import first
from lanecheck.order import Order
from lanecheck.subject import Bits
from lanecheck.tensorcore import TensorCore
from lanecheck.tiles import by_element, fragments
from lanecheck.values import real_values
from lanecheck.verdict import Outcome, Verdict

NAME = "bound"
EVERY = 4

_Reals = npt.NDArray[np.float64]
_UNIT = 2.0**-24  # of rounding to FP32
_SAFE = 2.0**127


class Limits(NamedTuple):
    """Of the outputs ``[M, N]``, float64: the exact sums ``hi + lo``, and how far from them the outputs
    may lie; where ``bound`` is +inf, nothing is known."""

    hi: _Reals
    lo: _Reals
    bound: _Reals

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        return np.isfinite(self.bound)

    def error(self, outputs: Bits) -> _Reals:
        """|output - exact| of FP32 or BF16 bits, +inf for a NaN; nothing of worth where unknown.

        Float64 rounds it by a few 2^-53 of itself at most: the first difference is exact wherever the
        output is near, and where it is not, lo is next to nothing.
        """
        with np.errstate(invalid="ignore"):
            difference, rest = _two_sum(real_values(outputs), -self.hi)
            error = np.abs(difference + (rest - self.lo))
        return np.where(np.isnan(error), np.inf, error)

    def ratio(self, outputs: Bits) -> _Reals:
        """Error over bound: above 1 is outside. 0 where there is no error, or nothing is known."""
        error = self.error(outputs)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.known & (error > 0), error / self.bound, 0.0)


def judge(observation: Observation) -> Verdict | None:
    every = _limits(observation)
    if not any(each.known.any() for each in every.values()):
        return None
    for name, each in every.items():
        outputs = observation.outputs[name]
        ratio = each.ratio(outputs)
        if (ratio > 1).any():
            at = first(ratio > 1)
            where, value = ", ".join(map(str, at)), real_values(outputs)[at]
            allowed = "where its order allows none"
            if each.bound[at]:
                allowed = f"{ratio[at]:.3g} times the bound of its order, {each.bound[at]:.3g}"
            text = (
                f"{name}[{where}] is {value:.9g}, the exact sum {each.hi[at]:.9g}: an error of "
                f"{each.error(outputs)[at]:.3g}, {allowed} "
                f"({(ratio > 1).sum()} of {ratio.size} elements)"
            )
            other = reordering.explained(observation)
            return Verdict(NAME, Outcome.REORDERED if other else Outcome.FAIL, text)
    return Verdict(NAME, Outcome.PASS)


def ratios(observation: Observation) -> dict[str, float]:
    """The worst error over bound of every output; empty if there are no bounds."""
    return {
        name: float(each.ratio(observation.outputs[name]).max())
        for name, each in _limits(observation).items()
    }


def _limits(observation: Observation) -> dict[str, Limits]:
    """By output; empty if no order is declared, or if some output is more than a sum."""
    subject, params, inputs = observation.subject, observation.params, observation.inputs
    order, products = subject.order(params), subject.products(params)
    if order is None or not all(product.plain for product in products):
        return {}
    return {
        product.output: limits(
            observation.core,
            order,
            inputs[product.x],
            inputs[product.w],
            inputs[product.bias] if product.bias else None,
            bf16=observation.outputs[product.output].dtype == np.uint16,
        )
        for product in products
    }


def limits(
    core: TensorCore, order: Order, x: Bits, w: Bits, bias: Bits | None, *, bf16: bool
) -> Limits:
    """What ``y = x · wᵀ + bias`` may come to in the declared order, as the module's docstring derives.

    Args:
        core: the tensor core. order: how it is used; that of the folds does not matter.
        x: ``[M, K]`` BF16 bits. w: ``[N, K]`` BF16 bits. bias: ``[N]`` BF16 or FP32 bits.
        bf16: whether y is stored as BF16 rather than FP32.
    """
    m, n = len(x), len(w)
    a, b = fragments(order, x, w)
    used = [order.chains[chain] for fold in order.folds for chain in fold]
    his, los, slacks = (by_element(each, m, n) for each in mma_bounds(core, a, b, used))
    numbers = sum(len(chain) > 0 for chain in used) + (bias is not None)
    addend = np.zeros(n) if bias is None else real_values(bias)
    with np.errstate(all="ignore"):  # where something is not finite
        hi, lo = np.broadcast_to(addend, (m, n)), los.sum(axis=0)
        for each in his:
            hi, rest = _two_sum(hi, each)
            lo = lo + rest
        hi, lo = _two_sum(hi, lo)
        sizes = (np.abs(his) + slacks).sum(axis=0) + np.abs(addend)
        bound = slacks.sum(axis=0) + max(numbers - 1, 0) * _UNIT * sizes
        if bf16:  # 16 bits less than FP32, and half of its spacing is the most that rounding loses
            bound = bound + 2.0**15 * np.spacing((np.abs(hi) + bound).astype(np.float32))
        bound = bound * (1 + numbers * 2.0**-48)
    return Limits(hi, lo, np.where(sizes <= _SAFE, bound, np.inf))


def _two_sum(x: _Reals, y: _Reals) -> tuple[_Reals, _Reals]:
    """Knuth's TwoSum: x + y as its rounded value and the exact rest."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)
