"""The packed weight layout: each lane's 16 bytes are one m16n8k16 A fragment.

A weight ``W[N, K]`` becomes ``[RB, KB, step, lane, 8]``: row block, 32-wide K block, mma step, lane
``4g + t`` and the lane's eight values ``(j, h, e)``, where

    row = 16 RB + 8 h + g        k = 32 KB + 8 t + 4 step + 2 j + e

so that a warp reads 512 contiguous bytes a step, and the eight values lie in A's register order.
Works on numpy arrays and torch tensors alike, of any element type; both are only relabelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from packed_gemv.fragments import K_BLOCK, LANES, ROWS

#: A numpy array or a torch tensor.
Array = TypeVar("Array", bound=Any)

# Axes of W once both indices are split: RB, h, g, KB, t, step, j, e; and their packed order.
_PACK = (0, 3, 5, 2, 4, 6, 1, 7)  # RB, KB, step, g, t, j, h, e
_UNPACK = (0, 6, 3, 1, 4, 2, 5, 7)  # the inverse permutation


def blocks(size: int, block: int) -> int:
    """How many blocks of ``block`` cover ``size``."""
    return -(-size // block)


def pack(weight: Array) -> Array:
    """Pack ``weight [N, K]`` into ``[RB, KB, 2, 32, 8]``, padded with zeros to 16 rows and 32 columns.

    Args:
        weight: two-dimensional, N >= 1 and K >= 1, any strides.

    Returns:
        A new contiguous array of the same type with RB = ceil(N/16) and KB = ceil(K/32).

    Raises:
        ValueError: if ``weight`` is not two-dimensional or is empty.
    """
    if weight.ndim != 2 or 0 in weight.shape:
        raise ValueError(
            f"weight must be [N, K] with N >= 1 and K >= 1, not shape {tuple(weight.shape)}"
        )
    n, k = weight.shape
    rb, kb = blocks(n, ROWS), blocks(k, K_BLOCK)
    if (n, k) != (rb * ROWS, kb * K_BLOCK):
        weight = _zero_padded(weight, rb * ROWS, kb * K_BLOCK)
    split = weight.reshape(rb, 2, 8, kb, 4, 2, 2, 2)
    return _permuted(split, _PACK).reshape(rb, kb, 2, LANES, 8)


def unpack(packed: Array, n: int, k: int) -> Array:
    """The exact inverse of :func:`pack`: ``[RB, KB, 2, 32, 8]`` to ``[n, k]``, padding dropped.

    Raises:
        ValueError: if ``packed`` is not the packed form of an ``[n, k]`` weight.
    """
    rb, kb = blocks(n, ROWS), blocks(k, K_BLOCK)
    if tuple(packed.shape) != (rb, kb, 2, LANES, 8):
        raise ValueError(
            f"packed must have shape {(rb, kb, 2, LANES, 8)} for n={n}, k={k}, "
            f"not {tuple(packed.shape)}"
        )
    split = packed.reshape(rb, kb, 2, 8, 4, 2, 2, 2)
    return _permuted(split, _UNPACK).reshape(rb * ROWS, kb * K_BLOCK)[:n, :k]


@dataclass(frozen=True)
class PackedWeight:
    """A packed weight with its logical size.

    Attributes:
        data: ``[RB, KB, 2, 32, 8]``, contiguous, BF16 (or BF16 bits in numpy).
        n: logical rows (output features).
        k: logical columns (input features).
    """

    data: Any
    n: int
    k: int

    def __post_init__(self) -> None:
        shape = (self.row_blocks, self.k_blocks, 2, LANES, 8)
        if tuple(self.data.shape) != shape:
            raise ValueError(
                f"data must have shape {shape} for n={self.n}, k={self.k}, "
                f"not {tuple(self.data.shape)}"
            )

    @classmethod
    def of(cls, weight: Any) -> PackedWeight:
        """Pack ``weight [N, K]``; see :func:`pack` for what it raises."""
        n, k = weight.shape if weight.ndim == 2 else (0, 0)
        return cls(pack(weight), n, k)

    @property
    def row_blocks(self) -> int:
        return blocks(self.n, ROWS)

    @property
    def k_blocks(self) -> int:
        return blocks(self.k, K_BLOCK)

    def unpacked(self) -> Any:
        """The weight as ``[n, k]`` again."""
        return unpack(self.data, self.n, self.k)


def _permuted(array: Any, axes: tuple[int, ...]) -> Any:
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array.transpose(axes))
    return array.permute(axes).contiguous()


def _zero_padded(weight: Any, rows: int, columns: int) -> Any:
    n, k = weight.shape
    if isinstance(weight, np.ndarray):
        padded: Any = np.zeros((rows, columns), weight.dtype)
    else:
        padded = weight.new_zeros((rows, columns))
    padded[:n, :k] = weight
    return padded
