"""Probes: every output element names the operand elements that it was computed from.

x holds a single 1 in each token, at another k in each, and is zero elsewhere, so that y[m, n] should be
the one weight w[n, k_m]. The weights hold their own names, (product, row, k), digit by digit in a few
launches (:mod:`lanecheck.probing.maps`). A digit is a power of two: its product with 1, and the sum with
zeros, is exact in any order, in FP32 and in BF16, and no subnormal number that could be flushed.

So what a kernel reads is known without any reference: it is right if every element names itself. A case
in its turn lights one k in each token. Where that is not right, or another oracle has failed, the probes
light more, and say what is exchanged, dropped or repeated (:mod:`lanecheck.probing.misread`). If they find
nothing, the operands are read rightly: what is wrong is the arithmetic, the reduction, the epilogue or
the order of memory accesses.

Where several weights meet one x (a tile of x that is reused, say), the roles change: the weights hold a
single 1 in each row, and x names itself.

Sees: which token, row and k each output was computed from, and so every exchange, shift, repetition or
gap, in words; for any kernel, whatever its order.

Cannot see: how the operands are combined; what only other values, or another size, bring about; where it
had to sample, k that it did not light (the sentence says how many it did).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lanecheck.observation import POISON, Observation, Problem
from lanecheck.probing.maps import (
    NOTHING,
    SEVERAL,
    STRANGER,
    Axis,
    Ints,
    Map,
    Values,
    decoded,
    written,
)
from lanecheck.probing.misread import describe
from lanecheck.subject import Bits, Product
from lanecheck.values import real_values, rounded_bits
from lanecheck.verdict import Outcome, Verdict

NAME = "probes"
EVERY = 8

#: Launches that explaining a failure may take, for either operand: in a campaign, where every case may
#: fail, and of a case that is looked at.
LAUNCHES, THOROUGH = 24, 256

_LARGEST = 2**22  # weights of a launch; beyond, writing down the names takes seconds


class Broken(Exception):
    """A probing launch came to grief."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.kind}: {problem.message}")


def judge(observation: Observation) -> Verdict | None:
    """One k in each token, the last k among them; everything that :func:`diagnose` tries, if that is
    not right."""
    launches = _Launches.of(observation)
    if launches is None:
        return None
    m, k = launches.m, launches.k
    rng = np.random.default_rng(observation.case.seed)
    chosen = np.append(rng.permutation(k - 1)[: m - 1], k - 1)
    if m == 1 and rng.integers(2):
        chosen = rng.integers(k, size=1)
    hot = np.full((1, m), NOTHING)
    hot[0, : len(chosen)] = chosen
    hot = rng.permuted(hot, axis=1)
    try:
        glance = launches.mapped("token", hot)
    except Broken as error:
        return Verdict(NAME, Outcome.FAIL, str(error))
    if glance.identity:
        return Verdict(NAME, Outcome.PASS)
    verdict = diagnose(observation)
    if verdict is not None and verdict.wrong:
        return verdict
    return Verdict(NAME, Outcome.FAIL, describe(glance) or "")


def diagnose(observation: Observation, thorough: bool = False) -> Verdict | None:
    """What is read wrongly, as far as :data:`LAUNCHES` or :data:`THOROUGH` launches show: they light
    the last k first, then every other, then each in every token."""
    launches = THOROUGH if thorough else LAUNCHES
    try:
        seen = mapped(observation, launches)
        if seen is None:
            return None
        text = describe(seen)
        if text is None:
            return Verdict(NAME, Outcome.PASS)
        if (seen.named["k"] == SEVERAL).any():
            turned = mapped(observation, launches, "row")
            if turned is not None and not (turned.named["k"] == SEVERAL).any():
                text = describe(turned) or text
    except Broken as error:
        text = str(error)
    return Verdict(NAME, Outcome.FAIL, text)


def full(observation: Observation) -> Map | None:
    """Every k in every token: where it is the identity, each (token, row, k) of the operands is shown to
    meet its own partner and no other.

    Returns:
        None if the launch's outputs are not plain products, or too large.

    Raises:
        Broken: if a launch reports a problem.
    """
    return mapped(observation)


def mapped(
    observation: Observation,
    launches: int | None = None,
    lit: Literal["token", "row"] = "token",
) -> Map | None:
    """As much of the map as a number of launches shows, at least one probe of it.

    Args:
        launches: how many; all it takes if None.
        lit: which operand is lit, x by token or the weights by row.

    Returns:
        None if the launch's outputs are not plain products, or too large.

    Raises:
        Broken: if a launch reports a problem.
    """
    ready = _Launches.of(observation)
    if ready is None:
        return None
    rows = ready.m if lit == "token" else ready.n
    hot = schedule(rows, ready.k, np.random.default_rng(observation.case.seed))
    if launches is not None:
        hot = hot[: max(1, launches // ready.passes(lit))]
    return ready.mapped(lit, hot)


def schedule(rows: int, k: int, rng: np.random.Generator) -> Ints:
    """``[L, rows]``: which k each row lights in each launch, so that every row lights every k once.

    The k come in random order: a kernel that moves k then moves them to another row each time, and one
    that moves rows to another k. Several rows have one launch at least without any, or both could be
    the same. The first launches light every k once.
    """
    slots = max(rows, k) + (rows > 1)
    order = np.append(k - 1, rng.permutation(np.delete(np.arange(slots), k - 1)))
    first = np.arange(0, slots, rows)
    starts = np.append(first, np.setdiff1d(np.arange(slots), first))
    hot = order[(starts[:, None] + np.arange(rows)) % slots]
    return np.where(hot < k, hot, NOTHING)


@dataclass(frozen=True)
class _Launches:
    """Launches of one case's kernel with operands of one's own."""

    observation: Observation
    products: tuple[Product, ...]
    m: int
    n: int
    k: int

    @staticmethod
    def of(observation: Observation) -> _Launches | None:
        """None where outputs cannot be decoded: no plain products, or not of one shape and of weights
        of their own."""
        inputs = observation.inputs
        products = tuple(observation.subject.products(observation.params))
        if not products or not all(product.plain for product in products):
            return None
        shapes = {inputs[product.x].shape + inputs[product.w].shape for product in products}
        x, w = ({getattr(product, side) for product in products} for side in ("x", "w"))
        if len(shapes) > 1 or len(w) < len(products) or x & w:
            return None
        (m, k, n, _) = shapes.pop()
        if 0 in (m, n, k) or len(products) * n * k > _LARGEST:
            return None
        return _Launches(observation, products, m, n, k)

    def passes(self, lit: str) -> int:
        """Launches a probe takes: one for each digit, and one to count."""
        return len(written(self._names(lit)))

    def mapped(self, lit: Literal["token", "row"], hot: Ints) -> Map:
        """The map of these probes, one for each row of ``hot``.

        Raises:
            Broken: if a launch reports a problem.
        """
        count = self._names(lit)
        naming = [self._naming(lit, values) for values in written(count)]
        read = np.array([[self._read(lit, row, inputs) for inputs in naming] for row in hot])
        found, times = decoded(list(read.swapaxes(0, 1)), count)

        def part(which: Ints) -> Ints:
            return np.where(found < 0, found, which)

        named: dict[Axis, Ints] = {"k": part(found % self.k)}
        launch = np.arange(len(hot))
        owner = np.full(
            (len(hot), self.k + 1), STRANGER
        )  # the last one NOTHING's, and never looked at
        owner[launch[:, None], hot] = np.arange(hot.shape[1])
        named[lit] = part(owner[launch[:, None, None, None], np.maximum(named["k"], NOTHING)])
        if lit == "token":
            named["row"] = part(found // self.k % self.n)
            named["output"] = part(found // (self.k * self.n))
        else:
            named["token"] = part(found // self.k)
            named["output"] = part(np.broadcast_to(np.indices(found.shape)[2], found.shape))
        outputs = tuple(product.output for product in self.products)
        return Map(lit, outputs, self.k, hot, named, times)

    def _names(self, lit: str) -> int:
        return (len(self.products) * self.n if lit == "token" else self.m) * self.k

    def _naming(self, lit: str, values: Values) -> dict[str, Bits]:
        """The operand that is not lit, with these values."""
        if lit == "row":
            return self._bits({p.x: values.reshape(self.m, self.k) for p in self.products})
        each = values.reshape(len(self.products), self.n, self.k)
        return self._bits({p.w: each[i] for i, p in enumerate(self.products)})

    def _read(self, lit: str, hot: Ints, naming: Mapping[str, Bits]) -> Values:
        """``[M, P, N]``, the outputs."""
        ones = (hot[:, None] == np.arange(self.k)).astype(np.float64)
        lights = self._bits({p.x if lit == "token" else p.w: ones for p in self.products})
        inputs = self.observation.inputs
        bias = {p.bias: np.zeros_like(inputs[p.bias]) for p in self.products if p.bias}
        run = self.observation.launch(
            self.observation.params, {**inputs, **bias, **lights, **naming}
        )
        if run.problems:
            raise Broken(run.problems[0])
        for name, bits in run.outputs.items():
            unwritten = int((bits == POISON[0]["bf16" if bits.itemsize == 2 else "fp32"]).sum())
            if unwritten:
                text = f"{unwritten} of {bits.size} elements of {name} are never written"
                raise Broken(Problem("poison", text))
        return np.stack([real_values(run.outputs[p.output]) for p in self.products], axis=1)

    def _bits(self, values: Mapping[str, Values]) -> dict[str, Bits]:
        inputs = self.observation.inputs
        return {name: rounded_bits(each, inputs[name].dtype) for name, each in values.items()}
