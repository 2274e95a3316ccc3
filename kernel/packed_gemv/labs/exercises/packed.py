"""Exercise 2: why one 16-byte load suffices in the packed layout."""

from __future__ import annotations

from packed_gemv import fragments as f
from packed_gemv.labs.exercises.forms import Answer, Tuples
from packed_gemv.labs.exercises.lookup import BF16, eight, exchanged, flat, natural, packed, split
from packed_gemv.labs.exercises.model import Exercise, Part, Sheet, choice, mistake
from packed_gemv.labs.fragments import K, N


def sheet(lane: int) -> Sheet:
    """The questions for one lane."""
    return Sheet(
        f"The same W[{N}, {K}], packed. One row block of 16 rows and one K block of "
        f"{f.K_BLOCK} columns feed two mma, step 0 and step 1. For each step lane {lane} makes one "
        "load of 16 bytes: its four registers, in order.",
        (_registers(lane), _both_steps(lane), _one_load(lane), _why_right()),
    )


def _registers(lane: int) -> Part:
    g, t = split(lane)

    def rows(h: int) -> int:
        return g + 8 * h

    def ks(j: int, e: int) -> int:
        return 8 * t + 2 * j + e

    right = packed(lane, 0)
    by_row = flat(sorted(zip(right[::2], right[1::2])))
    return Part(
        f"The load of step 0, first row block, first K block: which eight (row, k) does lane {lane} "
        "get, in the order of its registers?",
        Tuples(("row", "k")),
        right,
        f"g = {g} and t = {t}. Step 0 has k = 8t to 8t+3, here {8 * t} to {8 * t + 3}. The registers "
        f"alternate between row g = {g} and row g + 8 = {g + 8}, two k each: that is the order in "
        "which the mma wants its A operand, so nothing is moved after the load.",
        "Register by register: row g, row g+8, row g, row g+8, and two k in each, from 8t on.",
        (
            mistake(
                "Those are the k of the natural layout, 2t and 2t+8. The packed layout gives lane "
                "t the neighbours 8t, 8t+1, ….",
                natural(lane),
            ),
            mistake(
                "The k are right, the rows are not: g and g+8, not g and g+1.",
                eight(lambda h: g + h, ks),
            ),
            mistake(
                "These are the right eight, row by row. The registers alternate: two k of row g, "
                "the same two of row g+8, then the next two of each.",
                by_row,
            ),
            mistake(
                "These are all eight k of row g. One step has four of them, of rows g and g+8.",
                flat((g, 8 * t + i) for i in range(8)),
            ),
            mistake(
                "That is step 1's load. Step 0 has the first half, 8t to 8t+3.", packed(lane, 1)
            ),
            mistake(
                "g and t are exchanged: lane = 4g + t, so g = lane >> 2 and t = lane & 3.",
                eight(lambda h: (lane & 3) + 8 * h, lambda j, e: 8 * (lane >> 2) + 2 * j + e),
            ),
            mistake(
                "Lane t starts at k = 8t, not at 4t: both steps of a K block together take eight "
                "k of it.",
                eight(rows, lambda j, e: 4 * t + 2 * j + e),
            ),
            mistake(
                "The second pair of k follows the first at once: 8t+2, not 8t+8. Slots are eight "
                "apart there, but they stand for neighbours in k.",
                eight(rows, lambda j, e: 8 * t + 8 * j + e),
            ),
            mistake("The row comes first, then k: (row, k).", exchanged(right)),
            mistake(
                "That is the start of each register. Give both values of each: eight pairs.",
                _every_other(right),
            ),
        ),
        "(0, 4) (0, 5) …",
    )


def _every_other(pairs: Answer) -> Answer:
    return flat(pairs[i : i + 2] for i in range(0, len(pairs), 4))


def _both_steps(lane: int) -> Part:
    g, t = split(lane)
    right = tuple(sorted({*packed(lane, 0)[1::2], *packed(lane, 1)[1::2]}))
    return Part(
        f"Which k does lane {lane} multiply in this K block, both steps together?",
        Tuples(("k",), ordered=False),
        right,
        f"Eight neighbours, 8t to 8t+7. So x takes one load of 16 bytes as well, x[token g] from k = "
        f"{right[0]} on: the first half for step 0, the second for step 1.",
        "Step 0 has 8t to 8t+3; step 1 goes on from there.",
        (
            mistake(
                "That is step 0 alone. Step 1 takes the next four.",
                tuple(range(8 * t, 8 * t + 4)),
            ),
            mistake(
                "That is step 1 alone. Step 0 takes the four before.",
                tuple(range(8 * t + 4, 8 * t + 8)),
            ),
            mistake(
                "Those are the k of the natural layout. The packed one relabels them, so that a "
                "lane's are neighbours: from 8t on.",
                tuple(sorted({k + 16 * step for k in natural(lane)[1::2] for step in (0, 1)})),
                tuple(sorted(set(natural(lane)[1::2]))),
            ),
            mistake(
                "k depends on t = lane & 3. The group g picks the row, and the token of x.",
                tuple(range(8 * g, 8 * g + 8)),
            ),
        ),
        "0, 4, 8, 12, 16, 20, 24, 28",
    )


def _one_load(lane: int) -> Part:
    places = natural(lane)
    apart = BF16 * (places[4] - places[0]) * K
    return choice(
        "Why does one load suffice?",
        (
            "A load of 16 bytes brings as much as four of 4 bytes, wherever these lie.",
            f"A load brings 16 bytes in a row. In the row-major W rows g and g+8 are {apart} bytes "
            "apart: no width helps before they are brought together.",
        ),
        (
            "pack has put the lane's eight weights side by side, in the order of its registers.",
            "",
        ),
        (
            "The four lanes of a group load for each other, and the mma sorts it out.",
            "The mma sorts nothing: each lane must hold its own eight weights, each in its place.",
        ),
        (
            "Row g suffices for step 0; row g+8 follows in step 1.",
            "Each mma takes all 16 rows, so each step needs both. The steps differ in k.",
        ),
        why="Four places have become one. The order of the bytes is the order of the registers, so the "
        "load is the fragment; pack pays for it once, and every call saves three loads a step.",
    )


def _why_right() -> Part:
    return choice(
        f"Slot 8 of step 0 stands for k = {f.real_k(0)[8]} now, not 8. Why is the product right all "
        "the same?",
        (
            "The tensor core reads each value's k from its register number.",
            "It knows slots only. Which real k a slot stands for is nowhere in the registers.",
        ),
        (
            "ldmatrix puts the values back into the natural order on their way.",
            "No ldmatrix is involved: a plain load of 16 bytes fills the four registers, and the mma "
            "takes them as they are.",
        ),
        (
            "Only W is relabelled, and a sum may be taken in any order.",
            "Half of it. If only W were relabelled, each weight would meet the x of another k. "
            "Exercise 4 is about that.",
        ),
        (
            "Slot j of A only ever meets slot j of B. W and x are relabelled alike, and a sum may be "
            "taken in any order.",
            "",
        ),
        why="The mma adds up slot j of A times slot j of B. Call the slots what you like: if W and x "
        "use the same names, the terms are the same, in another order (on which, in floating point, "
        "the last bits depend, and nothing else). Any names would let W be packed. These are chosen for "
        "x, which is not packed: a lane's k are neighbours, so its x is one load too.",
    )


PACKED_LOAD = Exercise(
    "One load", "Which eight weights one load of 16 bytes brings, and why.", sheet
)
