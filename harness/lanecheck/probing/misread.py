"""What a map of probes says: the simplest true sentence on how a kernel misreads its operands.

:mod:`lanecheck.oracles.probes` makes the maps. Each theory here predicts what every probe should have named.
One that predicts all of them is true, and the one told in the fewest words is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from lanecheck.probing.maps import AXES, NOTHING, STRANGER, Axis, Bools, Ints, Map
from lanecheck.probing.phrases import Phrase, first_deviation, listed, moves, twice


def describe(seen: Map) -> str | None:
    """One sentence on how the probes deviate; None if they do not."""
    if seen.identity:
        return None
    exact = _Theory(first_deviation(seen), _WORDY, len(_lit(seen.asked["k"])))
    theory = min([*_theories(seen), exact], key=lambda theory: theory.cost)
    sampled = f" ({theory.probed} of {seen.k} k probed)" if theory.probed < seen.k else ""
    return theory.text + sampled


# Listing this many things says less than the first deviation does.
_WORDY = 7


@dataclass(frozen=True)
class _Theory:
    """Words, how many things they list, and how many k were probed where they apply."""

    text: str
    cost: int
    probed: int


def _theories(seen: Map) -> Iterator[_Theory]:
    """Those that are true; of equally short ones the first reads best."""
    for axis in AXES:
        moved = _moved(seen, axis)
        if moved is not None:
            agrees = _value(seen, axis) == _predicted(seen, axis, moved)
            yield from _stated(seen, agrees, partial(moves, seen, axis, moved), axis)
    agrees = _registers(seen)
    if agrees is not None:
        yield from _stated(seen, agrees, lambda among: [Phrase(_REGISTERS, 1)])


def _stated(
    seen: Map, agrees: Bools, words: Callable[[Ints], Sequence[Phrase]], own: Axis | None = None
) -> Iterator[_Theory]:
    """A theory in words, if it is true: of every probe, or else of every probe with those tokens,
    outputs, rows and k that deviate.

    Args:
        agrees: ``[L, M, P, N]``, where probes are as it predicts.
        words: for it, given the indices of its own axis that were probed.
        own: the axis that it is about, if it is about one.
    """
    wrong, box, where = ~seen.right, np.ones_like(agrees), []
    if not agrees[wrong].all():
        return
    probed = _lit(seen.asked["k"])
    for axis in () if agrees.all() else _NARROWED:
        among = np.unique(seen.asked[axis][box])
        if axis == "k":
            probed = _lit(among)
        if axis != own:
            inside = np.unique(seen.asked[axis][wrong])
            box &= np.isin(seen.asked[axis], inside)
            if len(_lit(inside)) < len(_lit(among)):
                where.append(listed(seen, axis, inside, among))
    if not agrees[box].all():
        return
    said = words(np.unique(seen.asked[own][box]) if own else probed)
    text = ", ".join(phrase.text for phrase in said)
    prefix = ", ".join(phrase.text for phrase in where)
    cost = sum(phrase.cost for phrase in (*said, *where))
    yield _Theory(f"{prefix}: {text}" if prefix else text, cost, len(probed))


# k comes last, as which of them were probed depends on the others.
_NARROWED: tuple[Axis, ...] = ("output", "token", "row", "k")


def _lit(k: Ints) -> Ints:
    """The k among them, each once."""
    return np.unique(k[k >= 0])


# One axis whose indices are moved, whatever the others are. What stands in an index's place is a number:
# another index, plus `twice` for each time beyond the first that it is added; or NOTHING and its like.


def _value(seen: Map, axis: Axis) -> Ints:
    """``[L, M, P, N]``: what stands in each probe's place; STRANGER where another axis is wrong too."""
    named = seen.named[axis]
    # A token that is read for another names another k as well, and the other way round.
    free = {"k", seen.lit} if axis in ("k", seen.lit) else {axis}
    held = [seen.named[other] == seen.asked[other] for other in AXES if other not in free]
    single = np.logical_and.reduce([*held, named >= 0])
    value = np.where(single, named + twice(seen, axis) * (seen.times - 1), STRANGER)
    return np.where(seen.named["k"] >= 0, value, named)


def _moved(seen: Map, axis: Axis) -> dict[int, int] | None:
    """What stands in each deviating index's place, if only this axis is wrong."""
    wrong, value = ~seen.right, _value(seen, axis)
    if (value[wrong] == STRANGER).any() or (axis == "k" and seen.dark[wrong].any()):
        return None
    # The largest: beside a real index there is NOTHING, where what is read in its place was all zeros.
    largest = np.full(seen.size[axis], STRANGER)
    np.maximum.at(largest, seen.asked[axis][wrong], value[wrong])
    return {int(index): int(largest[index]) for index in np.flatnonzero(largest > STRANGER)}


def _predicted(seen: Map, axis: Axis, moved: Mapping[int, int]) -> Ints:
    """The :func:`_value` of every probe, were it so everywhere."""
    to = np.array([moved.get(index, index) for index in range(seen.size[axis])])
    predicted: Ints = to[seen.asked[axis]]
    dark = seen.dark
    if axis == seen.lit:
        dark = seen.by_lit(seen.hot[:, to % seen.size[axis]] == NOTHING)
    return np.where(dark & (predicted >= 0), NOTHING, predicted)


_REGISTERS = (
    "registers 1 and 2 of the weight fragment exchanged: "
    "(row g+8, k 8t+4s+e) and (row g, k 8t+4s+2+e)"
)


def _registers(seen: Map) -> Bools | None:
    """Where probes are as if each lane's registers 1 and 2 of the A fragment were exchanged; None if
    not both are seen to be.

    Register 1 holds row g + 8 and the first pair of a step's four k, register 2 row g and the second.
    """
    row, k = seen.asked["row"], seen.asked["k"]
    first = (row % 16 >= 8) & (k % 4 < 2)
    second = (row % 16 < 8) & (k % 4 >= 2)
    expected = {**seen.asked, "row": row + 8 * second - 8 * first, "k": k + 2 * first - 2 * second}
    inside = ~seen.dark & (expected["row"] < seen.size["row"]) & (expected["k"] < seen.k)
    same = [seen.named[axis] == expected[axis] for axis in AXES if axis != seen.lit]
    agrees = np.logical_and.reduce([*same, seen.times == 1])
    if seen.lit == "row" or not all((agrees & inside & part).any() for part in (first, second)):
        return None
    return np.where(inside, agrees, seen.named["k"] == NOTHING)
