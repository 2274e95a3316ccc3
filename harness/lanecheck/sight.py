"""Sight: whether a case could fail at all.

A case whose expected output stays the same when its operands are misread proves nothing about how they
are read. So the reference is computed again for each misreading of a fixed list, and a case that does
not see one of them is *blind*: it runs, what it shows wrong counts, but it is no evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from lanecheck.subject import Bits, Params, Subject
from lanecheck.values import rounded_bits

Inputs = Mapping[str, Bits]


def unseen(subject: Subject, params: Params, inputs: Inputs) -> str | None:
    """The first misreading that leaves every output bit as it should be; None if all would show.

    Each is applied to all of the launch's matrix products at once. A subject that names no products
    has none to misread, and is taken to see.
    """
    products = subject.products(params)
    if not products:
        return None
    dtypes = {t.name: t.item for t in subject.tensors(params) if t.role == "output"}

    def expected(values: Inputs) -> dict[str, Bits]:
        with np.errstate(all="ignore"):
            outputs = subject.reference(params, values)
        return {name: rounded_bits(y, dtypes[name]) for name, y in outputs.items()}

    right = expected(inputs)
    for name, changed in misreadings(subject, params, inputs):
        wrong = expected({**inputs, **changed})
        if all(np.array_equal(wrong[output], bits) for output, bits in right.items()):
            return name
    return None


def misreadings(
    subject: Subject, params: Params, inputs: Inputs
) -> Iterator[tuple[str, dict[str, Bits]]]:
    """The list: each misreading's name and the inputs that it changes; those without effect on these
    sizes are left out."""
    products = subject.products(params)
    tokens = {p.x: inputs[p.x] for p in products}
    weights = {p.w: inputs[p.w] for p in products}
    biases = {p.bias: inputs[p.bias] for p in products if p.bias}
    m, k = next(iter(tokens.values())).shape
    n = len(next(iter(weights.values())))
    if k > 4:
        swapped = _partner(k, 4)
        yield "halves of x exchanged", {name: x[:, swapped] for name, x in tokens.items()}
    if k > 32:
        yield (
            "last K block dropped",
            {name: _zeroed(w, (k - 1) // 32 * 32) for name, w in weights.items()},
        )
    yield "last k dropped", {name: _zeroed(w, k - 1) for name, w in weights.items()}
    if n > 8:
        rows = _partner(n, 8)
        yield "rows g and g + 8 exchanged", {name: w[rows] for name, w in weights.items()}
    if n > 1:
        yield (
            "a row read for its neighbour",
            {name: _repeated(w, n - 1) for name, w in weights.items()},
        )
    if m > 1:
        yield (
            "a token read for its neighbour",
            {name: _repeated(x, m - 1) for name, x in tokens.items()},
        )
    if biases:
        yield "bias dropped", {name: np.zeros_like(bias) for name, bias in biases.items()}


def _partner(size: int, bit: int) -> np.ndarray:
    """i with ``bit`` flipped, where both lie within ``size``."""
    index = np.arange(size)
    flipped = index ^ bit
    return np.where(flipped < size, flipped, index)


def _zeroed(w: Bits, start: int) -> Bits:
    changed = w.copy()
    changed[:, start:] = 0
    return changed


def _repeated(rows: Bits, last: int) -> Bits:
    changed = rows.copy()
    changed[last] = rows[last - 1]
    return changed
