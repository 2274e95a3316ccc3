"""Maps: what the output elements of probing launches name, and how they name it.

A name is a number, written in base 124 as even powers of two, 2^-126…2^120, one digit a launch. One launch
more counts. Where it finds one element, that is it. Where it finds two or three, they are the same one
if every digit is so many times an even power: different powers differ by a factor of 4 at least, so
that their sum is no such number, not even where the smaller one is lost to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Values = npt.NDArray[np.float64]
Axis = Literal["k", "row", "token", "output"]

AXES: tuple[Axis, ...] = ("k", "row", "token", "output")

#: What a probe names when it is not one element: it read zeros only, the sum of several elements, or
#: what is no such sum. STRANGER is the row that lit a k which none lit.
NOTHING, SEVERAL, OTHER, STRANGER = -1, -2, -3, -4

_BASE, _LOWEST = 124, -126
_MOST = 3


@dataclass(frozen=True)
class Map:
    """What every output element was computed from, probe by probe.

    One operand is *lit*: in each launch each of its rows (a token of x, or a row of the weights) holds a
    single 1, so that an output element is one element of the other operand, which names itself.

    Attributes:
        lit: the axis of the lit operand.
        outputs: the products' outputs, P of them.
        k: K.
        hot: ``[L, M]`` or ``[L, N]``, the k that is 1 in each row of the lit operand, by launch; distinct
            within a launch, so that a k names its row, and NOTHING where the row is all zeros.
        named: by axis ``[L, M, P, N]``, the index that each output element names, or what it is instead.
        times: ``[L, M, P, N]``, how often that one element was added.
    """

    lit: Literal["token", "row"]
    outputs: tuple[str, ...]
    k: int
    hot: Ints
    named: Mapping[Axis, Ints]
    times: Ints

    @property
    def size(self) -> dict[Axis, int]:
        """The indices of each axis are below this."""
        _, tokens, outputs, rows = self.times.shape
        return {"k": self.k, "row": rows, "token": tokens, "output": outputs}

    @cached_property
    def asked(self) -> dict[Axis, Ints]:
        """By axis ``[L, M, P, N]``, the index that each output element should name."""
        shape = self.times.shape
        indices: Ints = np.indices(shape)
        _, token, output, row = indices
        k = np.broadcast_to(self.by_lit(self.hot), shape)
        return {"k": k, "row": row, "token": token, "output": output}

    @cached_property
    def right(self) -> Bools:
        """``[L, M, P, N]``, where the two are the same."""
        same = np.logical_and.reduce([self.named[axis] == self.asked[axis] for axis in AXES])
        return np.where(self.dark, self.named["k"] == NOTHING, same & (self.times == 1))

    def by_lit(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """``[L, rows of the lit operand]`` so shaped that it broadcasts to ``[L, M, P, N]``."""
        return rows[:, :, None, None] if self.lit == "token" else rows[:, None, None, :]

    @property
    def dark(self) -> Bools:
        """``[L, M, P, N]``, where nothing is lit and nothing should be read."""
        return self.asked["k"] == NOTHING

    @property
    def identity(self) -> bool:
        """Whether every probe read what it should."""
        return bool(self.right.all())

    @property
    def whole(self) -> bool:
        """Whether every (token, row, k) was probed."""
        launch, lit = np.nonzero(self.hot != NOTHING)
        pairs = set(zip(lit.tolist(), self.hot[launch, lit].tolist()))
        return len(pairs) == self.hot.shape[1] * self.k


def written(count: int) -> list[Values]:
    """What the elements 0…count-1 hold in each launch: 1, to be counted, and then each digit's power."""
    names, values = np.arange(count), [np.ones(count)]
    while count > 1 or len(values) == 1:
        values.append(np.ldexp(1.0, _LOWEST + 2 * (names % _BASE)))
        names, count = names // _BASE, -(-count // _BASE)
    return values


def decoded(read: Sequence[Values], count: int) -> tuple[Ints, Ints]:
    """What was read, from the outputs of each of the launches of :func:`written`.

    Returns:
        Names, or what there is instead of one; and how often the named element was added.
    """
    counts, digits = read[0], read[1:]
    with np.errstate(all="ignore"):
        several = (counts > 1) & (counts == np.floor(counts)) & np.isfinite(counts)
        single = (counts == 1) | (several & (counts <= _MOST))
        times = np.where(single, counts, 1).astype(np.int64)
        names = np.zeros(counts.shape, np.int64)
        for place, values in enumerate(digits):
            fraction, exponent = np.frexp(values / times)
            digit, odd = np.divmod(exponent.astype(np.int64) - 1 - _LOWEST, 2)
            single &= (fraction == 0.5) & (odd == 0) & (digit >= 0) & (digit < _BASE)
            names += np.where(single, digit, 0) * _BASE**place
        single &= names < count
        nothing = np.logical_and.reduce([values == 0 for values in read])
    kinds = [single, nothing, several]
    names = np.select(
        kinds, [names, np.full_like(names, NOTHING), np.full_like(names, SEVERAL)], OTHER
    )
    return names, np.where(single, times, 1)
