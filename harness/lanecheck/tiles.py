"""Between matrices and the fragments of mma, when many tiles are computed at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lanecheck.order import Order
from lanecheck.subject import Bits


def fragments(order: Order, x: Bits, w: Bits) -> tuple[Bits, Bits]:
    """The operands of the order's mma: rows of w as A ``[⌈N/16⌉, L, 16, 16]``, tokens of x as B
    ``[⌈M/8⌉, L, 16, 8]``, with zeros for what is not there."""
    return _gathered(order, w, 16), _gathered(order, x, 8).swapaxes(-1, -2)


def by_element(tiles: npt.NDArray[Any], m: int, n: int) -> npt.NDArray[Any]:
    """What belongs to the outputs: ``[P, ⌈N/16⌉, ⌈M/8⌉, 16, 8]`` as ``[P, M, N]``."""
    parts, row_blocks, columns = tiles.shape[:3]
    full = tiles.transpose(0, 2, 4, 1, 3).reshape(parts, 8 * columns, 16 * row_blocks)
    return full[:, :m, :n]


def _gathered(order: Order, rows: Bits, height: int) -> Bits:
    """``[R, K]`` as ``[⌈R/height⌉, L, height, 16]``."""
    count, k = rows.shape
    padded = np.zeros((count + -count % height, k + 1), rows.dtype)
    padded[:count, :k] = rows
    slots = padded[:, np.minimum(order.steps, k)]
    return slots.reshape(-1, height, *order.steps.shape).swapaxes(1, 2)
