"""The numbers behind the questions: right ones from the kernel's tables, wrong ones from misreadings.

What is right is read off :mod:`packed_gemv.fragments` and off a packed array whose elements are their
own positions. A misreading is a formula of g and t that someone might believe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from packed_gemv import fragments as f
from packed_gemv.labs.exercises.forms import Answer
from packed_gemv.labs.lanes import BF16 as BF16
from packed_gemv.labs.lanes import UNIT as UNIT
from packed_gemv.labs.lanes import K, positions

PACKED = positions()


def split(lane: int) -> tuple[int, int]:
    """(g, t) of a lane."""
    return int(f.G[lane]), int(f.T[lane])


def flat(items: Iterable[Iterable[int]]) -> Answer:
    """Items one after the other, as an answer holds them."""
    return tuple(int(number) for item in items for number in item)


def natural(lane: int) -> Answer:
    """The (row, k) of a lane's eight values of A where slot j stands for k = j, in register order."""
    return flat(zip(f.A_ROW[lane], f.A_SLOT[lane]))


def packed(lane: int, step: int) -> Answer:
    """The (row, k) of the eight values in a lane's 16 bytes of the first row block and K block."""
    return flat(divmod(int(position), K) for position in PACKED[0, 0, step, lane])


def unit(row_block: int, k_block: int, step: int, lane: int) -> int:
    """Where a lane's 16 bytes lie in the packed W[N, K], in units of 16 bytes."""
    return int(np.ravel_multi_index((row_block, k_block, step, lane), PACKED.shape[:4]))


def eight(row: Callable[[int], int], k: Callable[[int, int], int]) -> Answer:
    """(row, k) in register order from a row by h and a k by (j, e), right or wrong."""
    return flat((row(h), k(j, e)) for j in (0, 1) for h in (0, 1) for e in (0, 1))


def starts(values: Answer) -> Answer:
    """The first (row, k) of each register of eight."""
    return flat(values[i : i + 2] for i in range(0, len(values), 4))


def scaled(answer: Answer, factor: int) -> Answer:
    """Every number times ``factor``."""
    return tuple(factor * number for number in answer)


def exchanged(pairs: Answer) -> Answer:
    """(a, b) as (b, a)."""
    return flat((pairs[i + 1], pairs[i]) for i in range(0, len(pairs), 2))
