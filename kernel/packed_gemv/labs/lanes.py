"""Which lane holds what, and at which bytes: the numbers behind every picture of the labs.

All of it is read off the tables of :mod:`packed_gemv.fragments` and off a packed array whose elements
are their own positions, so that no picture can say anything that the kernel's layout does not.

A *labelling* says which real k a slot stands for. ``natural`` counts on, ``packed`` is the relabelling
of :func:`packed_gemv.fragments.real_k`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from packed_gemv import fragments as f
from packed_gemv.layout import pack

N, K = 64, 512  # the labs' weight
BF16 = 2  # bytes
UNIT = 16  # bytes of one lane's load
SECTOR = 32  # bytes that the memory system moves at least
LABELLINGS = ("natural", "packed")
AXES = ("RB", "KB", "step", "g", "t", "j", "h", "e")

_Table = npt.NDArray[np.int64]


def positions(n: int = N, k: int = K) -> _Table:
    """The packed form ``[RB, KB, 2, 32, 8]`` of an ``[n, k]`` weight whose elements are 0, 1, 2, …"""
    return pack(np.arange(n * k).reshape(n, k))


def slot_k(labelling: str, step: int) -> _Table:
    """The k, inside its 32-wide block, of each of the 16 slots of mma ``step``."""
    return f.SLOTS * step + np.arange(f.SLOTS) if labelling == "natural" else f.real_k(step)


def a_places(labelling: str, step: int) -> tuple[_Table, _Table]:
    """Row and k of the 8 values of W in each lane's registers: ``[32, 8]`` each."""
    return f.A_ROW, slot_k(labelling, step)[f.A_SLOT]


def b_places(labelling: str, step: int) -> tuple[_Table, _Table]:
    """Token and k of the 4 values of x in each lane's registers: ``[32, 4]`` each."""
    return np.asarray(f.B_COLUMN), slot_k(labelling, step)[f.B_SLOT]


def row_major_bytes(row: _Table, k: _Table, width: int = K) -> _Table:
    """Where BF16 values lie in a row-major matrix ``width`` columns wide."""
    return BF16 * (row * width + k)


def packed_bytes(k_block: int, step: int) -> _Table:
    """Where each lane's 16 bytes start in the packed weight's first row block: ``[32]``."""
    shape, lanes = positions().shape, np.arange(f.LANES)
    return BF16 * np.ravel_multi_index((0, k_block, step, lanes, 0), shape)


def pieces(offsets: npt.ArrayLike) -> list[tuple[int, int]]:
    """Bytes of BF16 values as runs (first byte, length), in the order given."""
    runs: list[tuple[int, int]] = []
    for offset in np.asarray(offsets).tolist():
        if runs and sum(runs[-1]) == offset:
            runs[-1] = (runs[-1][0], runs[-1][1] + BF16)
        else:
            runs.append((offset, BF16))
    return runs


@dataclass(frozen=True)
class WarpLoad:
    """What one load instruction asks of memory when all 32 lanes make it.

    Attributes:
        wanted: bytes that end up in registers. sectors: distinct 32-byte sectors touched.
        rows: rows of W they lie in; 0 for the packed array, where rows no longer lie apart.
    """

    wanted: int
    sectors: int
    rows: int

    @property
    def moved(self) -> int:
        """Bytes in those sectors."""
        return SECTOR * self.sectors


def row_major_loads(step: int) -> list[WarpLoad]:
    """The load of each of A's four registers from row-major W, k counted naturally."""
    rows, k = a_places("natural", step)
    at = row_major_bytes(rows, k).reshape(f.LANES, 4, 2)
    return [
        WarpLoad(
            BF16 * at[:, r].size,
            len(np.unique(at[:, r] // SECTOR)),
            len(np.unique(rows.reshape(f.LANES, 4, 2)[:, r])),
        )
        for r in range(4)
    ]


def packed_load(step: int) -> WarpLoad:
    """The one load of all four registers from packed W."""
    at = packed_bytes(0, step)[:, None] + np.arange(0, UNIT, BF16)
    return WarpLoad(BF16 * at.size, len(np.unique(at // SECTOR)), 0)


# --- the operands, cell by cell


def holders(operand: str) -> tuple[_Table, _Table]:
    """Lane and register of each cell of ``A [16, 16]``, ``B [16, 8]`` or ``C [16, 8]``.

    A register holds two BF16 values of A or B, or one FP32 value of C.
    """
    first, second, a_register = {
        "A": (f.A_ROW, f.A_SLOT, 2),
        "B": (f.B_SLOT, f.B_COLUMN, 2),
        "C": (f.D_ROW, f.D_COLUMN, 1),
    }[operand]
    lane, register = (np.empty((16, 16 if operand == "A" else 8), np.int64) for _ in range(2))
    lane[first, second] = np.arange(f.LANES)[:, None]
    register[first, second] = np.arange(first.shape[1]) // a_register
    return lane, register


# --- pack, index by index


@dataclass(frozen=True)
class Axis:
    """One axis of the packed array.

    Attributes:
        name: of :data:`AXES`. size: its extent. stride: bytes from one index to the next.
        row, k: what one step along it adds to the row and to the k of the element there.
    """

    name: str
    size: int
    stride: int
    row: int
    k: int


def axes(n: int = N, k: int = K) -> list[Axis]:
    """The packed array's axes, slowest first, what each means read back from :func:`positions`."""
    packed = positions(n, k)
    split = packed.reshape(*packed.shape[:3], 8, 4, 2, 2, 2)
    found = []
    for dimension, (name, size) in enumerate(zip(AXES, split.shape)):
        one: list[Any] = [0] * split.ndim
        one[dimension] = min(1, size - 1)
        row, column = divmod(int(split[tuple(one)]), k)
        stride = BF16 * split.strides[dimension] // split.itemsize
        found.append(Axis(name, size, stride, row, column))
    return found


def index_formula(of: str) -> str:
    """``row`` or ``k`` as a sum over the packed array's axes, the largest part first."""
    parts = [(axis.row if of == "row" else axis.k, axis.name) for axis in axes()]
    terms = [f"{by}·{name}" if by > 1 else name for by, name in sorted(parts, reverse=True) if by]
    return f"{of} = " + " + ".join(terms)
