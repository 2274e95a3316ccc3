"""The words in which :mod:`lanecheck.probing.misread` says what it sees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from lanecheck.probing.maps import NOTHING, OTHER, SEVERAL, Axis, Ints, Map


@dataclass(frozen=True)
class Phrase:
    """A text, and how many things it lists."""

    text: str
    cost: int


def twice(seen: Map, axis: Axis) -> int:
    """What is added to an index for each time beyond the first that it is read: so much that no index
    and another's double are neighbours."""
    return 2 * seen.size[axis]


def moves(seen: Map, axis: Axis, moved: Mapping[int, int], among: Ints) -> list[Phrase]:
    """Says of the indices of one axis what stands in their places.

    Args:
        moved: by index another one, plus :func:`twice` for each time beyond the first; or NOTHING and so on.
        among: the indices that were probed.
    """
    exchanged = _by_a_bit(seen, axis, moved, among)
    if exchanged:
        return [exchanged]
    phrases, rest = [], dict[tuple[int, int], list[_Run]]()
    runs = _runs(moved, among)
    places = {(run.start, run.stop): (run.first, run.last) for run in runs}
    for run in runs:
        here, there = (run.start, run.stop), (run.first, run.last)
        if here != there and places.get(there) == here:
            if here < there:
                these, those = (_number(seen, axis, *span) for span in (here, there))
                text = f"{_NOUNS[axis][1]}{these} and {those} exchanged"
                phrases.append(Phrase(text, 1))
        else:
            rest.setdefault(run.alike, []).append(run)
    for alike in rest.values():
        members = [index for run in alike for index in moved if run.start <= index <= run.stop]
        phrases.append(_source(seen, axis, {index: moved[index] for index in members}, among))
    return phrases


def listed(seen: Map, axis: Axis, members: Iterable[int], among: Iterable[int]) -> Phrase:
    """Says which indices of an axis: "rows 0…15 and 32"; every other one of ``among`` is none of them."""
    inside = sorted(int(index) for index in members if index >= 0)
    probed = sorted(int(index) for index in among if index >= 0)
    runs = _runs(dict.fromkeys(inside, 0), np.array(probed))
    noun = _NOUNS[axis][len(inside) > 1]
    if len(runs) > 2:
        for bit in (1 << place for place in range(seen.size[axis].bit_length())):
            for half in (0, bit):
                if inside == [index for index in probed if index & bit == half]:
                    last = f"…{half + bit - 1}" if bit > 1 else ""
                    return Phrase(f"{noun}{2 * bit}i+{half}{last}", 1)
    *most, last = [_number(seen, axis, run.start, run.stop) for run in runs]
    return Phrase(noun + (f"{', '.join(most)} and {last}" if most else last), len(runs))


def first_deviation(seen: Map) -> str:
    """The first probe that deviates, exactly, and how many do."""
    wrong = ~seen.right
    at = tuple(np.argwhere(wrong)[0])
    asked = {axis: int(indices[at]) for axis, indices in seen.asked.items()}
    named = {axis: int(indices[at]) for axis, indices in seen.named.items()}
    other: Axis = "row" if seen.lit == "token" else "token"

    def element(index: Mapping[Axis, int]) -> str:
        if index["k"] < 0:
            return _instead(index["k"], seen)
        output = f"{seen.outputs[index['output']]}, " if index["output"] != asked["output"] else ""
        return f"({output}{other} {index[other]}, k {index['k']})"

    where = f"{seen.outputs[asked['output']]}[token {asked['token']}, row {asked['row']}]"
    times = f" {_often(int(seen.times[at]))}" if seen.times[at] > 1 else ""
    return (
        f"{where} was computed from {element(named)}{times} instead of {element(asked)}: "
        f"{wrong.sum()} of {wrong.size} probes deviate"
    )


_NOUNS: Mapping[Axis, tuple[str, str]] = {
    "k": ("k ", "k "),
    "row": ("row ", "rows "),
    "token": ("token ", "tokens "),
    "output": ("", ""),
}

#: By axis and bit: exchanges that have a name, and how to say that all are.
_EXCHANGES: Mapping[tuple[Axis, int], tuple[str, str]] = {
    ("k", 4): ("x[8t+0…3] and x[8t+4…7] exchanged", " in every 32-block"),
    ("row", 8): ("rows g and g + 8 exchanged", ""),
}


def _by_a_bit(seen: Map, axis: Axis, moved: Mapping[int, int], among: Ints) -> Phrase | None:
    """Indices that are all exchanged with those that differ in one bit, where that is worth a name;
    where there is no such index, nothing is read."""
    size = seen.size[axis]
    for bit in (1 << place for place in range(size.bit_length())):
        expected = {index: index ^ bit if index ^ bit < size else NOTHING for index in moved}
        partners = {value for value in expected.values() if value >= 0}
        both = partners and partners.intersection(among.tolist()) <= moved.keys()
        if both and dict(moved) == expected:
            if (axis, bit) not in _EXCHANGES and len(_runs(moved, among)) <= 4:
                return None
            unnamed = f"{_NOUNS[axis][1]}i and i ^ {bit} exchanged", ""
            text, everywhere = _EXCHANGES.get((axis, bit), unnamed)
            if len(moved) == np.count_nonzero(among >= 0):
                return Phrase(text + everywhere, 1)
            inside = listed(seen, axis, moved, among)
            return Phrase(f"{text} in {inside.text}", inside.cost)
    return None


def _source(seen: Map, axis: Axis, moved: Mapping[int, int], among: Ints) -> Phrase:
    """Indices in whose places stands something of one kind."""
    here = listed(seen, axis, moved, among)
    start, first = next(iter(moved.items()))
    index, times = first % twice(seen, axis), first // twice(seen, axis) + 1
    this, that = ("x", "the weights") if seen.lit == "token" else ("the weights", "x")
    computed = (
        f"{here.text} of {this} multiplied by" if axis == "k" else f"{here.text} computed from"
    )
    if first < 0:
        never = axis == "k" and first == NOTHING
        text = f"{here.text} never read" if never else f"{computed} {_instead(first, seen)}"
    elif index == start and times > 1:
        text = f"{here.text} read {_often(times)}"
    else:
        sources = sorted({value % twice(seen, axis) for value in moved.values()})
        source = listed(
            seen, axis, sources, sources if len(sources) == 1 else among + index - start
        )
        text = f"{computed} " + ("the weights of " if axis == "output" else "") + source.text
        text += (f" of {that}" if axis == "k" else "") + (f", {_often(times)}" if times > 1 else "")
    return Phrase(text, here.cost)


def _instead(kind: int, seen: Map) -> str:
    several, one = ("weights", "weight") if seen.lit == "token" else ("x", "x")
    return {
        NOTHING: "nothing",
        SEVERAL: f"several {several} at once",
        OTHER: f"what is no {one}",
    }[kind]


@dataclass(frozen=True)
class _Run:
    """Indices start…stop, and what stands in their places: first…last, or one for all."""

    start: int
    stop: int
    first: int
    last: int

    @property
    def alike(self) -> tuple[int, int]:
        """Runs that have this in common can be told together: one thing for all, or one shift."""
        one = self.first < 0 or (self.first == self.last and self.start < self.stop)
        return (0, self.first) if one else (1, self.first - self.start)


def _runs(values: Mapping[int, int], among: Ints) -> list[_Run]:
    """``values`` by index as runs; neighbours are those between which ``among`` has no other index."""
    place = {int(index): at for at, index in enumerate(among)}
    runs: list[_Run] = []
    steps: set[int] = set()
    for index, value in sorted(values.items()):
        run = runs[-1] if runs and place[index] == place[runs[-1].stop] + 1 else None
        if run:
            steps &= {step for step in (0, 1) if value - run.last == step * (index - run.stop)}
        if run and steps:
            runs[-1] = _Run(run.start, index, run.first, value)
        else:
            runs.append(_Run(index, index, value, value))
            steps = {0, 1} if value >= 0 else {0}
    return runs


def _number(seen: Map, axis: Axis, start: int, stop: int) -> str:
    first, last = ((seen.outputs[at] if axis == "output" else str(at)) for at in (start, stop))
    return first if start == stop else f"{first}…{last}"


def _often(times: int) -> str:
    return "twice" if times == 2 else f"{times} times"
