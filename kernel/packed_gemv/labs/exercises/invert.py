"""Exercise 8: from a place in the packed array back to (row, k), and there again."""

from __future__ import annotations

import numpy as np

from packed_gemv import fragments as f
from packed_gemv.labs.exercises.forms import Tuples
from packed_gemv.labs.exercises.lookup import BF16, PACKED, UNIT, split, unit
from packed_gemv.labs.exercises.model import Exercise, Part, Sheet, mistake
from packed_gemv.labs.fragments import K, N

_RB, _KB, _STEP, _VALUE = 1, 7, 1, 5
_ROW, _COLUMN = 37, 211


def sheet(lane: int) -> Sheet:
    """The questions for one lane's load, and for one element."""
    return Sheet(
        f"W[{N}, {K}] is packed as [row block, K block, step, lane, value]: "
        f"{list(PACKED.shape)}. A debugger gives places in it; you want to know what they are.",
        (_back(lane), _there()),
    )


def _back(lane: int) -> Part:
    g, t = split(lane)
    value = unit(_RB, _KB, _STEP, lane) * (UNIT // BF16) + _VALUE
    byte = BF16 * value
    row, k = divmod(int(PACKED.ravel()[value]), K)
    j, h, e = _VALUE >> 2, (_VALUE >> 1) & 1, _VALUE & 1
    base_row, base_k = f.ROWS * _RB, f.K_BLOCK * _KB
    slot = int(f.A_SLOT[lane, _VALUE])
    doubled = divmod(int(PACKED.ravel()[byte]), K)
    return Part(
        f"The BF16 at byte offset {byte} looks wrong. Which (row, k) of W is it?",
        Tuples(("row", "k")),
        (row, k),
        f"Byte {byte} is value {value}; with 8 values a lane, 32 lanes, 2 steps and "
        f"{PACKED.shape[1]} K blocks that is row block {_RB}, K block {_KB}, step {_STEP}, lane "
        f"{lane}, value {_VALUE}. Lane {lane} has g = {g}, t = {t}; value {_VALUE} has (j, h, e) = "
        f"({j}, {h}, {e}).\n"
        f"  row = 16 · {_RB} + 8 · {h} + {g} = {row}\n"
        f"  k = 32 · {_KB} + 8 · {t} + 4 · {_STEP} + 2 · {j} + {e} = {k}",
        "Halve it for the value, then divide: by 8 for the lane, 32 for the step, 2 for the K block. "
        "The remainders are value, lane, step, K block.",
        (
            mistake(
                f"That is where value {byte} lies. The offset is in bytes: value {value}.", doubled
            ),
            mistake(
                "That is the place in a row-major W. This one is packed.",
                divmod(value, K),
                divmod(byte, K),
            ),
            mistake(
                "The bits of the value are (j, h, e), slowest first: the row's h is in the middle.",
                (base_row + 8 * j + g, base_k + 8 * t + 4 * _STEP + 2 * h + e),
            ),
            mistake(
                "g and t are exchanged: lane = 4g + t, so g = lane >> 2 and t = lane & 3.",
                (
                    base_row + 8 * h + (lane & 3),
                    base_k + 8 * (lane >> 2) + 4 * _STEP + 2 * j + e,
                ),
            ),
            mistake(
                "The row is right. Step 1 has the upper four of the lane's eight k.",
                (row, k - 4 * _STEP),
            ),
            mistake(
                "The row is right. k is the natural layout's, by slots; lane t has 8t to 8t+7.",
                (row, base_k + f.SLOTS * _STEP + slot),
            ),
            mistake(
                "That is right inside its blocks: add 16 for each row block, 32 for each K block.",
                (row - base_row, k - base_k),
                (row, k - base_k),
                (row - base_row, k),
            ),
            mistake("The row is right. A K block is 32 wide, not 16.", (row, k - f.SLOTS * _KB)),
            mistake(
                "That is the first value of the lane's load. Yours is further on.",
                divmod(int(PACKED[_RB, _KB, _STEP, lane, 0]), K),
            ),
            mistake("The row comes first, then k: (row, k).", (k, row)),
        ),
        "(4, 100)",
    )


def _there() -> Part:
    right = tuple(int(i) for i in np.argwhere(_ROW * K + _COLUMN == PACKED)[0])
    row_block, k_block, step, lane, value = right
    g, t = split(lane)
    h, inside = (_ROW >> 3) & 1, _COLUMN % f.K_BLOCK
    j, e = (inside >> 1) & 1, inside & 1
    slot = _COLUMN % f.SLOTS
    natural_lane, natural_value = 4 * g + (slot & 7) // 2, 4 * (slot >> 3) + 2 * h + e
    return Part(
        f"And where is W[{_ROW}, {_COLUMN}]? Give (row block, K block, step, lane, value).",
        Tuples(("row block", "K block", "step", "lane", "value")),
        right,
        f"{_ROW} = 16 · {row_block} + 8 · {h} + {g}, and {_COLUMN} = 32 · {k_block} + 8 · {t} + 4 · "
        f"{step} + 2 · {j} + {e}. So lane = 4 · {g} + {t} = {lane} and value = 4j + 2h + e = "
        f"{value}.",
        "Row: 16, then 8 for h, then g. k: 32, then 8 for t, 4 for the step, 2 for j, 1 for e.",
        (
            mistake(
                "That is the natural layout: 16 k a step, and slots counted on. Here a lane's eight "
                "k are neighbours, and the step is the 4 in k.",
                (row_block, k_block, inside >> 4, natural_lane, natural_value),
            ),
            mistake(
                "The lane is 4g + t, not 8t + g.",
                (row_block, k_block, step, 8 * t + g, value),
            ),
            mistake(
                "The value is 4j + 2h + e, for the registers alternate between rows: you have h and "
                "j exchanged.",
                (row_block, k_block, step, lane, 4 * h + 2 * j + e),
            ),
            mistake(
                "The step and j are exchanged: in k the step counts 4, j counts 2.",
                (row_block, k_block, j, lane, 4 * step + 2 * h + e),
            ),
            mistake("A K block is 32 wide, not 16.", (row_block, _COLUMN // f.SLOTS, *right[2:])),
            mistake("The row block comes first.", (k_block, row_block, *right[2:])),
            mistake(
                "The other row of the lane: h is 1 for rows 8 to 15 of a block, 0 below.",
                (row_block, k_block, step, lane, value ^ 2),
            ),
        ),
        "(0, 1, 0, 7, 2)",
    )


INVERT = Exercise("Backwards", "From a byte of the packed array to (row, k), and back.", sheet)
