"""Who holds what: the operands of ``mma.sync.aligned.m16n8k16`` (BF16 in, FP32 out), lane by lane.

A warp's lane is written ``lane = 4 * g + t`` with group ``g`` in 0…7 and thread-in-group ``t`` in 0…3.
Every table below is an integer array indexed by lane first; they are the PTX ISA's fragment layouts
("Matrix Fragments for mma.m16n8k16 with floating point type") written out as data.

A *slot* is a position along the mma's inner dimension, 0…15. The tensor core multiplies slot j of A
by slot j of B and cannot know which real k a slot stands for; :func:`real_k` is the relabelling that
the packed layout chooses, the same for weights and activations, so the dot product is unchanged.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LANES = 32
ROWS = 16  # rows of A and D in one mma
SLOTS = 16  # inner dimension of one mma
TOKENS = 8  # columns of B and D in one mma
K_BLOCK = 32  # two mma steps of 16 slots share one 16-byte load of x per lane

_lane = np.arange(LANES)
G, T = _lane >> 2, _lane & 3

_Table = npt.NDArray[np.int64]


def _a_tables() -> tuple[_Table, _Table]:
    # Value v of a lane lives in register v // 2: registers alternate row g, row g + 8; the second
    # pair of registers is eight slots further on.
    v = np.arange(8)
    row = G[:, None] + 8 * ((v >> 1) & 1)
    slot = 2 * T[:, None] + (v & 1) + 8 * (v >> 2)
    return row, slot


def _b_tables() -> tuple[_Table, _Table]:
    v = np.arange(4)
    slot = 2 * T[:, None] + (v & 1) + 8 * (v >> 1)
    column = np.broadcast_to(G[:, None], slot.shape)
    return slot, column


def _d_tables() -> tuple[_Table, _Table]:
    v = np.arange(4)
    row = G[:, None] + 8 * (v >> 1)
    column = 2 * T[:, None] + (v & 1)
    return row, column


#: Row and slot of each of the 8 BF16 values of A in a lane's four registers: ``[32, 8]`` each.
A_ROW, A_SLOT = _a_tables()
#: Slot and column of each of the 4 BF16 values of B in a lane's two registers: ``[32, 4]`` each.
B_SLOT, B_COLUMN = _b_tables()
#: Row and column of each of the 4 FP32 accumulators of a lane: ``[32, 4]`` each.
D_ROW, D_COLUMN = _d_tables()


def real_k(step: int) -> _Table:
    """The real k, inside its 32-wide block, that each of the 16 slots of mma ``step`` stands for.

    Lane t's slots of both steps together cover k = 8t … 8t+7; step s takes 8t+4s … 8t+4s+3.

    Args:
        step: 0 or 1.

    Returns:
        ``[16]`` integers in 0…31. The two steps together are a permutation of 0…31.

    Raises:
        ValueError: if ``step`` is not 0 or 1.
    """
    if step not in (0, 1):
        raise ValueError(f"step is 0 or 1, not {step}: a 32-wide block of K is two mma of 16 slots")
    slot = np.arange(SLOTS)
    t = (slot & 7) >> 1
    j = slot >> 3
    e = slot & 1
    return 8 * t + 4 * step + 2 * j + e


def gather_a(lanes: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Assemble A ``[..., 16, 16]`` (row, slot) from the lanes' registers ``[..., 32, 8]``."""
    matrix = np.empty((*lanes.shape[:-2], ROWS, SLOTS), lanes.dtype)
    matrix[..., A_ROW, A_SLOT] = lanes
    return matrix


def gather_b(lanes: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Assemble B ``[..., 16, 8]`` (slot, column) from the lanes' registers ``[..., 32, 4]``."""
    matrix = np.empty((*lanes.shape[:-2], SLOTS, TOKENS), lanes.dtype)
    matrix[..., B_SLOT, B_COLUMN] = lanes
    return matrix
