"""Exercise 1: what a lane reads of a row-major W, and why that is bad."""

from __future__ import annotations

import numpy as np

from packed_gemv import fragments as f
from packed_gemv.labs.exercises.forms import Answer, Tuples
from packed_gemv.labs.exercises.lookup import (
    BF16,
    eight,
    exchanged,
    natural,
    scaled,
    split,
    starts,
)
from packed_gemv.labs.exercises.model import Exercise, Mistake, Part, Sheet, mistake
from packed_gemv.labs.fragments import K, N

_LOAD = 4  # bytes: one register, two values


def sheet(lane: int) -> Sheet:
    """The questions for one lane."""
    return Sheet(
        f"W[{N}, {K}] lies in memory row by row, in BF16. A warp wants rows 0-15 and k 0-15 of "
        "it as the A operand of one mma.m16n8k16, and here slot j of the mma simply stands for "
        f"k = j. Lane {lane} must bring eight weights in four registers. The two values of a "
        f"register are neighbours in k, so that one load of {_LOAD} bytes fills it.",
        (_places(lane), _bytes(lane), _runs()),
    )


def _places(lane: int) -> Part:
    g, t = split(lane)
    right = natural(lane)
    return Part(
        f"Which four places does lane {lane} read? Give the (row, k) at which each load "
        "starts, in any order.",
        Tuples(("row", "k"), ordered=False),
        starts(right),
        f"Lane {lane} has g = {lane} >> 2 = {g} and t = {lane} & 3 = {t}. Its rows are g = {g} and "
        f"g + 8 = {g + 8}; its slots are 2t, 2t+1 and, eight further on, 2t+8, 2t+9. Two rows "
        "times two pairs of slots: four places, and no two of them touch.",
        "Start from g = lane >> 2 and t = lane & 3: rows g and g+8, slots from 2t and from 2t+8.",
        tuple(
            mistake(each.hint, *(form for a in each.answers for form in (starts(a), a)))
            for each in _misreadings(lane)
        ),
        "(0, 4) (0, 6) (1, 4) (1, 6)",
        also=(right,),
    )


def _misreadings(lane: int) -> tuple[Mistake, ...]:
    """Of the four places, as eight (row, k) each."""
    g, t = split(lane)

    def rows(h: int) -> int:
        return g + 8 * h

    def slots(j: int, e: int) -> int:
        return 2 * t + 8 * j + e

    low, high = lane & 3, lane >> 2
    return (
        mistake(
            "Those are the k of the packed layout, 8t and on. Here slot j stands for k = j, and a "
            "lane's slots are 2t, 2t+1, 2t+8, 2t+9.",
            eight(rows, lambda j, e: 8 * t + 2 * j + e),
            eight(rows, lambda j, e: 8 * t + 4 * j + e),
        ),
        mistake(
            "The k are right, the rows are not: a lane holds rows g and g+8, not g and g+1.",
            eight(lambda h: g + h, slots),
        ),
        mistake(
            "The k are right, the rows are not: a lane holds rows g and g+8, not 2g and 2g+1.",
            eight(lambda h: 2 * g + h, slots),
        ),
        mistake(
            "g and t are exchanged: lane = 4g + t, so g = lane >> 2 and t = lane & 3.",
            eight(lambda h: low + 8 * h, lambda j, e: 2 * high + 8 * j + e),
        ),
        mistake(
            "You split the lane by eights. Groups are of four lanes: lane = 4g + t, so "
            "g = lane >> 2 and t = lane & 3.",
            eight(lambda h: (lane & 7) + 8 * h, lambda j, e: 2 * (lane >> 3) + 8 * j + e),
        ),
        mistake(
            "The rows are right. The second pair of slots is eight further on, not two: 2t+8, "
            "not 2t+2.",
            eight(rows, lambda j, e: 2 * t + 2 * j + e),
        ),
        mistake(
            "The rows are right. A lane's slots are not four in a row: they are 2t, 2t+1 and, "
            "eight further on, 2t+8, 2t+9.",
            eight(rows, lambda j, e: 4 * t + 2 * j + e),
        ),
        mistake(
            "The rows are right. A register holds two neighbours in k, so lane t starts at 2t, "
            "not at t.",
            eight(rows, lambda j, e: t + 8 * j + e),
        ),
        mistake(
            "Row and k are exchanged: the row comes first, (row, k).", exchanged(eight(rows, slots))
        ),
    )


def _offsets(places: Answer, width: int = K, size: int = BF16) -> Answer:
    pairs = zip(places[::2], places[1::2])
    return tuple(size * (row * width + k) for row, k in pairs)


def _bytes(lane: int) -> Part:
    places = starts(natural(lane))
    right = _offsets(places)
    row, k = places[2:4]
    elements = _offsets(places, size=1)
    mistakes = (
        mistake(
            "Those are offsets in elements. A BF16 has two bytes: twice as far.",
            elements,
        ),
        mistake(
            f"The row's length is K = {K} values, not N = {N}: row r starts at value r·K.",
            _offsets(places, width=N),
            _offsets(places, width=N, size=1),
        ),
        mistake(
            f"Four bytes are the load; the values in it have two each. (row, k) lies at {BF16} "
            "· (row · K + k).",
            scaled(elements, _LOAD),
        ),
        mistake(
            f"Count the k in bytes too: the offset is {BF16} · (row · K + k), not "
            f"{BF16} · row · K + k.",
            tuple(BF16 * row * K + k for row, k in zip(places[::2], places[1::2])),
        ),
        *(
            mistake(f"These bytes are of other places. {each.hint}", *map(_offsets, _starts(each)))
            for each in _misreadings(lane)
        ),
    )
    return Part(
        "At which byte offsets from the start of W are these four, in any order?",
        Tuples(("byte offset",), ordered=False),
        right,
        f"A BF16 has {BF16} bytes and a row {K} values: (row, k) lies at {BF16} · (row · {K} + k). "
        f"For instance ({row}, {k}): {BF16} · ({row} · {K} + {k}) = {right[1]}. From the first to "
        f"the last it is {max(right) - min(right)} bytes.",
        f"(row, k) lies at {BF16} · (row · K + k), with K = {K}.",
        mistakes,
        "0, 64, 128, 192",
    )


def _starts(each: Mistake) -> list[Answer]:
    return [starts(answer) for answer in each.answers]


def _runs() -> Part:
    first = np.sort(BF16 * (f.A_ROW[:, 0] * K + f.A_SLOT[:, 0]))
    count = 1 + int((np.diff(first) != _LOAD).sum())
    length = f.LANES * _LOAD // count
    return Part(
        "All 32 lanes make the first of their four loads together. In how many separate runs of "
        "bytes does the warp read, and how many bytes long is each?",
        Tuples(("runs", "bytes in each")),
        (count, length),
        f"The first load is of row g: eight rows, {BF16 * K} bytes apart. In each row four lanes, "
        f"t = 0 to 3, read {_LOAD} bytes side by side: {length}. Memory moves sectors of 32 bytes, "
        "so this load uses half of each and relies on a cache for the rest. The packed layout "
        "makes it one run of 512 bytes.",
        "Lanes of one group g share a row; the groups' rows are far apart.",
        (
            mistake(
                "Not every lane is alone: the four lanes of a group read the same row, at k = 0, "
                "2, 4, 6. These touch.",
                (f.LANES, _LOAD),
            ),
            mistake(
                "That would be one row. The lanes of different groups read different rows, "
                f"{BF16 * K} bytes apart.",
                (1, f.LANES * _LOAD),
            ),
            mistake(
                "g and t are exchanged: g, 0 to 7, picks the row; t, 0 to 3, the place in it.",
                (length // _LOAD, count * _LOAD),
            ),
            mistake(
                "That is two of the four loads: rows g and g+8. Each load has one row a lane.",
                (2 * count, length),
            ),
            mistake(
                "The runs are right; their length is in values. A BF16 has two bytes.",
                (count, length // BF16),
            ),
            mistake(
                "A run is four lanes wide, and each lane loads two values: a load has 4 bytes.",
                (count, length // _LOAD),
            ),
        ),
        "(2, 64)",
    )


NATURAL = Exercise("Four places", "What one lane reads of a row-major weight, and where.", sheet)
