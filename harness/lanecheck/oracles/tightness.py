"""How tight the error bound is: ``python -m lanecheck.oracles.tightness``.

Two things are measured of :mod:`lanecheck.oracles.bound`: that right sums never leave it, over many
outputs of adversarial operands, with the chains added in random orders; and how much of it a right sum
can use up, by a search that climbs towards the worst operands. Everything follows from the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np
import typer

from lanecheck.native import mma_chains
from lanecheck.oracles.bound import Limits, limits
from lanecheck.order import Order
from lanecheck.subject import Bits
from lanecheck.tensorcore import AMPERE, HOPPER, TensorCore
from lanecheck.tiles import by_element, fragments
from lanecheck.values import draw_values, real_values, rounded_bits, to_bf16

Generator = np.random.Generator

_M = _N = 64  # of a batch
_LENGTHS = (1, 2, 4, 16)  # of the chains searched, in mma
_STARTS, _GENERATIONS = 12, 1000  # of a search


@dataclass(frozen=True)
class Sum:
    """``x · wᵀ + bias`` and how it is added up, as :func:`~lanecheck.oracles.bound.limits` takes it."""

    order: Order
    x: Bits
    w: Bits
    bias: Bits | None = None
    bf16: bool = False

    def limits(self, core: TensorCore) -> Limits:
        return limits(core, self.order, self.x, self.w, self.bias, bf16=self.bf16)

    def computed(self, core: TensorCore, rng: Generator) -> Bits:
        """A right output ``[M, N]``: chains by the model, then FP32 additions in a random order."""
        sums = mma_chains(core, *fragments(self.order, self.x, self.w), self.order.chains)
        numbers = list(by_element(sums, len(self.x), len(self.w)))
        if self.bias is not None:
            numbers.append(real_values(self.bias).astype(np.float32))
        while len(numbers) > 1:
            one, other = (numbers.pop(rng.integers(len(numbers))) for _ in range(2))
            numbers.append(one + other)
        return rounded_bits(numbers[0], np.dtype(np.uint16 if self.bf16 else np.uint32))


def _cancelling(k: int, rng: Generator) -> tuple[Bits, Bits]:
    """Every product twice, with both signs: the exact sum is 0 and all of the output is error."""
    x, w = (np.tile(draw_values("spread", (_N, k // 2), k, rng), 2) for _ in range(2))
    w[:, k // 2 :] ^= 0x8000
    shuffled = rng.permutation(k)
    return x[:, shuffled], w[:, shuffled]


def _truncated(k: int, rng: Generator) -> tuple[Bits, Bits]:
    """Ones, and beside them products of one sign just below a quantum of either model."""
    x, w = (np.ldexp(rng.uniform(1.9, 2, (_N, k)), -13) for _ in range(2))
    w = np.ldexp(w, -rng.integers(0, 2, k))
    ones = rng.random(k) < 1 / 16
    return to_bf16(np.where(ones, 1, x)), to_bf16(np.where(ones, 1, w))


def _tiny(k: int, rng: Generator) -> tuple[Bits, Bits]:
    """Products from below the least quantum to above the least normal number: sums are subnormal."""
    exponents = rng.integers(-78, -65, (2, _N, k))
    x, w = to_bf16(np.ldexp(rng.standard_normal(exponents.shape), exponents))
    return x, w


def _patterns(k: int, rng: Generator) -> tuple[Bits, Bits]:
    """Any bits below 2, subnormals and zeros of both signs among them."""
    x, w = (rng.integers(0, 2**16, (_N, k)).astype(np.uint16) & 0xBFFF for _ in range(2))
    return x, w


def _regime(name: str) -> Callable[[int, Generator], tuple[Bits, Bits]]:
    def draw(k: int, rng: Generator) -> tuple[Bits, Bits]:
        return draw_values(name, (_M, k), k, rng), draw_values(name, (_N, k), k, rng)

    return draw


CATEGORIES: Mapping[str, Callable[[int, Generator], tuple[Bits, Bits]]] = {
    "normal": _regime("normal"),
    "spread": _regime("spread"),
    "subnormal": _regime("subnormal"),
    "tiny": _tiny,
    "patterns": _patterns,
    "cancelling": _cancelling,
    "truncated": _truncated,
}


def draw(category: str, rng: Generator) -> Sum:
    """A sum of random shape, order and store: 4,096 outputs."""
    steps = int(rng.integers(1, 17))
    cuts = np.sort(rng.integers(0, steps + 1, rng.integers(0, 5))).tolist()
    chains = tuple(range(*ends) for ends in pairwise([0, *cuts, steps]))
    k = 16 * steps
    order = Order(rng.permutation(k).reshape(steps, 16), chains, (tuple(range(len(chains))),))
    x, w = CATEGORIES[category](k, rng)
    bias = w[:, 0] if rng.random() < 0.5 else None
    return Sum(order, x, w, bias, bf16=bool(rng.random() < 0.5))


def measure(core: TensorCore, category: str, outputs: int, seed: int) -> tuple[int, int, float]:
    """Judge at least ``outputs`` of a category.

    Returns:
        How many have a bound, how many of those are outside, and the worst error over bound.
    """
    rng = np.random.default_rng(seed)
    judged, outside, worst = 0, 0, 0.0
    while judged < outputs:
        drawn = draw(category, rng)
        may = drawn.limits(core)
        ratio = may.ratio(drawn.computed(core, rng))[may.known]
        judged, outside = judged + ratio.size, outside + int((ratio > 1).sum())
        worst = max(worst, float(ratio.max(initial=0)))
    return judged, outside, worst


def search(core: TensorCore, length: int, seed: int) -> float:
    """The worst error over bound that hill climbing finds for one chain of ``length`` mma, in FP32.

    Each generation tries 16 variants of the best w with 8 of the best x, its own among them. The first
    is of a category that the seed chooses.
    """
    rng = np.random.default_rng(seed)
    k = 16 * length
    order = Order(np.arange(k).reshape(length, 16), chains=(range(length),), folds=((0,),))
    x, w = list(CATEGORIES.values())[seed % len(CATEGORIES)](k, rng)
    x, w = x[:8], w[:16]
    worst = 0.0
    for _ in range(_GENERATIONS):
        tried = Sum(order, x, w)
        ratio = tried.limits(core).ratio(tried.computed(core, rng))
        worst = max(worst, float(ratio.max()))
        m, n = np.unravel_index(ratio.argmax(), ratio.shape)
        x, w = _variants(x[m], 8, rng), _variants(w[n], 16, rng)
    return worst


def _variants(operand: Bits, count: int, rng: Generator) -> Bits:
    """``operand``, and ``count - 1`` times with few of its bits flipped or its values moved."""
    shape = (count, operand.size)
    flips = rng.random((*shape, 16)) < 0.5 / operand.size
    moves = rng.random(shape) < 0.5 / operand.size
    flips[0], moves[0] = False, False
    moved = np.where(moves, rng.choice(operand, shape), operand)
    flipped = moved ^ (flips << np.arange(16)).sum(axis=-1).astype(np.uint16)
    return np.where(flipped & 0x4000, moved, flipped)  # kept below 2, and so finite


def main(
    outputs: Annotated[int, typer.Option(help="of each model, over all categories")] = 1_000_000,
    seed: Annotated[int, typer.Option(help="of everything")] = 0,
) -> None:
    """Measure the bound of both models and search for its worst case. Exit code 1: it was exceeded."""
    exceeded = False
    for core in (HOPPER, AMPERE):
        for category in CATEGORIES:
            judged, outside, worst = measure(core, category, -(-outputs // len(CATEGORIES)), seed)
            exceeded |= outside > 0
            text = f"{judged:>9,} outputs  {outside} outside  worst ratio {worst:.9f}"
            print(f"{core.name}  {category:<10}  {text}")
    for core in (HOPPER, AMPERE):
        for length in _LENGTHS:
            worst, start = max((search(core, length, seed + i), seed + i) for i in range(_STARTS))
            exceeded |= worst > 1
            print(f"{core.name}  searched, {length} mma: worst ratio {worst:.9f} from seed {start}")
    raise typer.Exit(exceeded)


if __name__ == "__main__":
    typer.run(main)
