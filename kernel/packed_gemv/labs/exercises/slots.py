"""Exercise 4: weights and activations must be relabelled alike."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from packed_gemv import fragments as f
from packed_gemv.labs.exercises.forms import Answer, Tuples
from packed_gemv.labs.exercises.lookup import split
from packed_gemv.labs.exercises.model import Exercise, Part, Sheet, choice, mistake
from packed_gemv.labs.fragments import K, halves_exchanged

#: Fills that the last question offers, and why each hides the mistake; the one that shows it does not.
FILLS = {
    "W random, x all ones": "Whichever x a weight meets, it is 1: the sum stays the same.",
    "W all ones, x random": "Every x is still used once, with weight 1: the sum stays the same.",
    "W random, x[k] = k mod 4": "The swap moves x by four places, where k mod 4 is the same again.",
    "W random, x[k] = k mod 8": "",
}


def sheet(lane: int) -> Sheet:
    """The questions for one lane."""
    g, _ = split(lane)
    return Sheet(
        f"W is packed. Its row {g} is in the A registers of the lanes with g = {g}; x is their B "
        "operand. The mma multiplies slot j of A by slot j of B. A lane's four B values are in "
        "slots 2t, 2t+1, 2t+8, 2t+9. All questions are about the first K block.",
        (_slots(lane), _swapped(lane), _fill()),
    )


def _slots(lane: int) -> Part:
    _, t = split(lane)
    slots = f.B_SLOT[lane]
    right = _ints(f.real_k(1)[slots])
    return Part(
        f"Step 1: which k of x must lane {lane} put into its four slots, "
        f"{', '.join(map(str, slots))}?",
        Tuples(("k",)),
        right,
        f"The weights in these slots are those of k = 8t+4 to 8t+7, with t = {t}, so x must be "
        "too. They are the second half of the lane's 16 bytes of x, xv.z and xv.w.",
        "Which k do the lane's weights of step 1 have?",
        (
            mistake(
                "Those are the slots. With the packed weights a slot stands for another k.",
                _ints(slots),
            ),
            mistake(
                "That would be the second half of 32 in the natural order. In the packed layout "
                "lane t has 8t to 8t+7, and step 1 the upper four.",
                _ints(slots + f.SLOTS),
            ),
            mistake(
                "That is step 0's half. Step 1 takes the upper four.", _ints(f.real_k(0)[slots])
            ),
            mistake(
                "That is both steps. Step 1 takes the upper four.", tuple(range(8 * t, 8 * t + 8))
            ),
            mistake(
                "k depends on t = lane & 3; g picks the token.",
                tuple(8 * int(f.G[lane]) + 4 + i for i in range(4)),
            ),
        ),
        "0, 8, 16, 24",
    )


def _swapped(lane: int) -> Part:
    g, t = split(lane)
    right = swapped(range(8 * t, 8 * t + 8))
    k = np.arange(8 * t, 8 * t + 8)
    return Part(
        "Someone writes mma(acc, a[0], xv.z, xv.w) and mma(acc, a[1], xv.x, xv.y): the halves of x "
        f"are swapped. By which k of x are the weights W[{g}, {8 * t}] to W[{g}, {8 * t + 7}] "
        "multiplied, in this order?",
        Tuples(("k",)),
        right,
        f"Step 0 has the weights of k = {8 * t} to {8 * t + 3} and meets the x of step 1, four "
        "further on; step 1 the other way round. Every weight is multiplied, by the wrong x.",
        f"Take k = {8 * t}: its weight is used in step 0. Which four values of x come to step 0 now?",
        (
            mistake(
                "That is the right pairing. With the mistake, step 0 gets xv.z and xv.w.", _ints(k)
            ),
            mistake("The halves are swapped; within each half the order stays.", _ints(k[::-1])),
            mistake(
                "That is xv.x swapped with xv.y and xv.z with xv.w, inside the halves. Here whole "
                "halves change places.",
                _ints(k.reshape(2, 2, 2)[:, ::-1].ravel()),
            ),
            mistake(
                "That swaps the two values of a register. Here whole halves of four change places.",
                _ints(k.reshape(4, 2)[:, ::-1].ravel()),
            ),
            mistake(
                "Both halves come from the same 16 bytes of x, 8t to 8t+7: the wrong k is four away, "
                "not sixteen.",
                _ints((k + f.SLOTS) % f.K_BLOCK),
            ),
            mistake("Only step 0's. Step 1's weights get what is left: give eight k.", right[:4]),
        ),
        "0, 4, 8, 12, 16, 20, 24, 28",
    )


def swapped(ks: range) -> Answer:
    """By which k of x the weights of ``ks`` are multiplied when x's halves are exchanged."""
    return _ints(halves_exchanged(np.arange(K, dtype=np.uint16)[None])[0, ks.start : ks.stop])


def _fill() -> Part:
    return choice(
        "Which fill shows the mistake?",
        *FILLS.items(),
        why="The swap replaces k by k + 4 or k - 4, so x must differ over four places and the "
        "weights must differ too. Constant and short-period fills pass a broken kernel.",
    )


def _ints(numbers: npt.NDArray[np.integer]) -> Answer:
    return tuple(int(number) for number in numbers)


SLOTS = Exercise("The same names", "Which k a slot stands for, and what if x disagrees.", sheet)
