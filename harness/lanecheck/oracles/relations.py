"""Relations: one launch predicts another, bit for bit, without any reference.

Each case tries one, drawn by its seed from those that hold for it. Where the subject claims that an
element's bits follow from its own token and row (:meth:`~lanecheck.subject.Subject.resized`):

- *batch*: a token alone gives the bits that it gave among others;
- *neighbours*: a token's bits stay when all others turn into NaN;
- *tokens*, *rows*: permuted tokens or weight rows permute the output and nothing else;
- *padding*: zeros after the last k, where the partition of K stays, and rows after the last one, change
  nothing.

And for every plain sum:

- *scale*: x · 2^p gives y · 2^p where nothing over- or underflows. If every non-zero operand lies in
  2^±40 and |p| is at most 16, products lie in 2^±96 and what a fused sum keeps is above
  2^(-96 - 25 - 1), so that no step of either launch leaves the normal numbers: all of them then commute
  with a power of two.

Sees: bits that depend on M, on a neighbour or on the place of a row; reads beyond the tail that zeros
or NaN give away.

Cannot see: a mistake that is the same for every token and row, as exchanged halves of x are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from lanecheck.observation import Observation
from lanecheck.oracles.compare import first_difference
from lanecheck.subject import Bits, Params
from lanecheck.values import real_values, rounded_bits
from lanecheck.verdict import Outcome, Verdict

NAME = "relations"
EVERY = 4

_NAN = 0x7FC0
_LOW, _HIGH = 2.0**-40, 2.0**40


@dataclass(frozen=True)
class Relation:
    """A second launch whose outputs follow from the first.

    Attributes:
        name: what messages call it.
        params, inputs: of the second launch.
        kept: from an output of the first launch, the bits that should come again.
        again: from an output of the second launch, the part that should be those.
    """

    name: str
    params: Params
    inputs: Mapping[str, Bits]
    kept: Callable[[Bits], Bits]
    again: Callable[[Bits], Bits] = lambda y: y


def judge(observation: Observation) -> Verdict | None:
    rng = np.random.default_rng(observation.case.seed)
    holding = list(relations(observation, rng))
    if not holding:
        return None
    relation = holding[rng.integers(len(holding))]
    run = observation.launch(relation.params, relation.inputs)
    if run.problems:
        text = f"{relation.name}: {run.problems[0].kind}: {run.problems[0].message}"
        return Verdict(NAME, Outcome.FAIL, text)
    want = {name: relation.kept(bits) for name, bits in observation.outputs.items()}
    got = {name: relation.again(bits) for name, bits in run.outputs.items()}
    difference = first_difference(got, want)
    if difference is None:
        return Verdict(NAME, Outcome.PASS)
    return Verdict(NAME, Outcome.FAIL, f"{relation.name}: {difference}")


def relations(observation: Observation, rng: np.random.Generator) -> Iterator[Relation]:
    """Every relation that holds for this case, with its choices drawn from ``rng``."""
    subject, params, inputs = observation.subject, observation.params, observation.inputs
    products = subject.products(params)
    if not products:
        return
    x = {product.x: inputs[product.x] for product in products}
    w = {product.w: inputs[product.w] for product in products}
    bias = {product.bias: inputs[product.bias] for product in products if product.bias}
    m, k = next(iter(x.values())).shape
    n = len(next(iter(w.values())))

    def with_(*changed: Mapping[str, Bits]) -> dict[str, Bits]:
        return {**inputs, **{name: bits for each in changed for name, bits in each.items()}}

    placeless = subject.resized(params) is not None
    if placeless and m > 1:
        token, tokens = int(rng.integers(m)), rng.permutation(m)
        one = slice(token, token + 1)
        alone = subject.resized(params, m=1)
        if alone is not None:
            name = f"batch: token {token} without the other {m - 1}"
            single = {name: bits[one] for name, bits in x.items()}
            yield Relation(name, alone, with_(single), lambda y: y[one])
        beside = {name: np.where(np.arange(m)[:, None] == token, b, _NAN) for name, b in x.items()}
        beside = {name: bits.astype(np.uint16) for name, bits in beside.items()}
        name = f"neighbours: token {token} among NaN"
        yield Relation(name, params, with_(beside), lambda y: y[one], lambda y: y[one])
        moved = {name: bits[tokens] for name, bits in x.items()}
        back = np.argsort(tokens)
        yield Relation("tokens permuted", params, with_(moved), lambda y: y, lambda y: y[back])
    if placeless and n > 1:
        rows = rng.permutation(n)
        moved = {name: bits[rows] for name, bits in (*w.items(), *bias.items())}
        there = np.argsort(rows)
        yield Relation("rows permuted", params, with_(moved), lambda y: y, lambda y: y[:, there])
    if observation.plain and _moderate(*inputs.values()):
        power = float(rng.choice([-16, -3, 1, 16]))
        larger = {name: _scaled(bits, power) for name, bits in (*x.items(), *bias.items())}
        name = f"scale: x and bias by 2^{power:.0f}"
        yield Relation(name, params, with_(larger), lambda y: _scaled(y, power))
    zeros = -k % 32 or 32
    longer = subject.resized(params, k=k + zeros)
    if longer is not None:
        wider = {name: _padded(bits, 1, zeros) for name, bits in (*x.items(), *w.items())}
        yield Relation(f"padding: K from {k} on", longer, with_(wider), lambda y: y)
    taller = subject.resized(params, n=n + 16)
    if taller is not None:
        more = {name: _padded(bits, 0, 16) for name, bits in (*w.items(), *bias.items())}
        yield Relation(
            "padding: 16 rows more", taller, with_(more), lambda y: y, lambda y: y[:, :n]
        )


def _moderate(*inputs: Bits) -> bool:
    for bits in inputs:
        size = np.abs(real_values(bits))
        if not ((size == 0) | ((size >= _LOW) & (size <= _HIGH))).all():
            return False
    return True


def _scaled(bits: Bits, power: float) -> Bits:
    return rounded_bits(real_values(bits) * 2.0**power, bits.dtype)


def _padded(bits: Bits, axis: int, count: int) -> Bits:
    return np.pad(bits, [(0, count if axis == dim else 0) for dim in range(bits.ndim)])
