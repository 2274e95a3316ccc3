"""Exercise 7: write ``pack``; the reader's is held against the kernel's, shape by shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from packed_gemv.fragments import K_BLOCK, ROWS
from packed_gemv.labs.exercises.model import Coding, Verdict
from packed_gemv.layout import pack

_Array = npt.NDArray[Any]

WHOLE = ((16, 32), (16, 64), (32, 32), (64, 512))
PADDED = ((20, 32), (16, 40), (37, 203), (1, 1))


def _cut(w: _Array, *axes: int) -> _Array:
    """The axes (RB, h, g, KB, t, step, j, e) of W, reordered."""
    n, k = w.shape
    return w.reshape(n // 16, 2, 8, k // 32, 4, 2, 2, 2).transpose(axes)


def _cut_otherwise(w: _Array, rows: tuple[int, int], ks: tuple[int, ...], *axes: int) -> _Array:
    n, k = w.shape
    return w.reshape(n // 16, *rows, k // 32, *ks).transpose(axes)


#: What a misreading of the layout gives, and its hint.
MISREADINGS: tuple[tuple[Callable[[_Array], _Array], str], ...] = (
    (lambda w: w, "That is W as it was: nothing is reordered yet."),
    (
        lambda w: _cut(w, 0, 3, 5, 2, 4, 1, 6, 7),
        "A lane's eight values lie row by row. They should lie register by register, (j, h, e): two k "
        "of row g, the same two of row g+8, then the next two of each.",
    ),
    (
        lambda w: _cut(w, 0, 3, 2, 4, 5, 6, 1, 7),
        "Both steps of a lane lie side by side. The step goes before the lane: then a warp's 32 loads "
        "of one step are one run of 512 bytes.",
    ),
    (
        lambda w: _cut(w, 0, 3, 5, 4, 2, 6, 1, 7),
        "The lanes are in the order 8t + g. A lane is 4g + t: g before t.",
    ),
    (
        lambda w: _cut(w, 3, 0, 5, 2, 4, 6, 1, 7),
        "The K block is outermost. The row block should be: a warp keeps its rows and walks along K.",
    ),
    (
        lambda w: _cut(w, 0, 5, 3, 2, 4, 6, 1, 7),
        "The step comes before the K block. A K block's two steps should lie one after the other.",
    ),
    (
        lambda w: _cut(w, 0, 3, 6, 2, 4, 5, 1, 7),
        "Step and j are exchanged: in k the step counts 4 and j counts 2.",
    ),
    (
        lambda w: _cut(w, 0, 3, 5, 2, 4, 6, 7, 1),
        "h and e are exchanged: the two values of a register are neighbours in k, not in h.",
    ),
    (
        lambda w: _cut_otherwise(w, (2, 8), (2, 2, 4, 2), 0, 3, 4, 2, 6, 5, 1, 7),
        "That is the natural layout's k, 16 a step, a lane's at 2t and 2t+8: right fragments, but x "
        "would take four loads. Cut 32 as (t, step, j, e) = (4, 2, 2, 2), so that a lane has 8t to "
        "8t+7.",
    ),
    (
        lambda w: _cut_otherwise(w, (8, 2), (4, 2, 2, 2), 0, 3, 5, 1, 4, 6, 2, 7),
        "A lane has rows 2g and 2g+1. It should have g and g+8: cut 16 as (h, g) = (2, 8).",
    ),
)


def check(function: Callable[..., Any]) -> Verdict:
    """Hold the reader's ``pack`` against :func:`packed_gemv.layout.pack`."""
    for n, k in (*WHOLE, *PADDED):
        w = (1 + np.arange(n * k)).astype(np.uint16).reshape(n, k)
        given = w.copy()
        result = function(given)
        changed = (
            "" if np.array_equal(given, w) else "pack changed w. Leave it as it is: copy it first."
        )
        complaint = changed or _complaint(result, w)
        if complaint:
            return Verdict(False, f"On W[{n}, {k}]: {complaint}")
    return Verdict(
        True,
        f"the same as the kernel's on {len(WHOLE)} shapes of whole blocks and {len(PADDED)} "
        "padded ones. reshape names the pieces of the two indices, transpose puts them in "
        "order, and the copy writes them down; all else is the choice of that order.",
    )


def _complaint(result: Any, w: _Array) -> str:
    if not isinstance(result, np.ndarray):
        return f"pack returns {type(result).__name__}, not an array." + (
            " Did you forget to return?" if result is None else ""
        )
    expected = pack(w)
    if result.size != expected.size:
        return _size(result, expected, w)
    if not np.array_equal(result.ravel(), expected.ravel()):
        return _misread(result, w) + _first_difference(result, expected, w.shape[1])
    if result.dtype != w.dtype:
        return (
            f"the values are right, but {w.dtype} became {result.dtype}, and the kernel reads bytes. "
            "Make new arrays with w.dtype."
        )
    if not result.flags.c_contiguous:
        return (
            "the indices are right, but the array is a view: in memory nothing has moved, and the "
            "kernel reads memory. Copy it, for example with np.ascontiguousarray."
        )
    return ""


def _size(result: _Array, expected: _Array, w: _Array) -> str:
    n, k = w.shape
    if n % ROWS or k % K_BLOCK:
        return (
            f"{result.size} values; with zeros up to whole blocks of {ROWS} rows and {K_BLOCK} "
            f"columns there are {expected.size}."
        )
    return f"{result.size} values came out of {w.size}."


def _misread(result: _Array, w: _Array) -> str:
    if w.shape in WHOLE:
        for misread, hint in MISREADINGS:
            if np.array_equal(result.ravel(), misread(w).ravel()):
                return hint + "\n"
    return ""


def _first_difference(result: _Array, expected: _Array, k: int) -> str:
    at = int(np.flatnonzero(result.ravel() != expected.ravel())[0])
    names = ("row block", "K block", "step", "lane", "value")
    index = np.unravel_index(at, expected.shape)
    place = ", ".join(f"{name} {i}" for name, i in zip(names, index))
    return (
        f"The first that differs is element {at} ({place}): it should hold "
        f"{_named(expected.ravel()[at], k)}, and yours holds {_named(result.ravel()[at], k)}."
    )


def _named(value: Any, k: int) -> str:
    """Which element of W a value is; the elements are 1, 2, 3, …"""
    try:
        row, column = divmod(int(value) - 1, k)
    except (TypeError, ValueError, OverflowError):
        return repr(value)
    return f"W[{row}, {column}]" if row >= 0 else f"{value}"


_STUB = '''\
"""Exercise 7: pack a weight for mma.m16n8k16."""

import numpy as np


def pack(w):
    """Reorder w [N, K] into [RB, KB, step, lane, 8].

    lane = 4g + t, and a lane's eight values are in the order (j, h, e), where

        row = 16 RB + 8 h + g        k = 32 KB + 8 t + 4 step + 2 j + e

    w is a numpy array. Begin with whole blocks, N a multiple of 16 and K of 32;
    then let others be padded with zeros.
    """
    n, k = w.shape
    # 1. Cut both indices into their pieces, slowest first:  w.reshape(…)
    # 2. Put the pieces in the order of the packed array:    .transpose(…)
    # 3. Write it down in that order: the result must be a copy, not a view.
    return w
'''

_SOLUTION = """\
import numpy as np


def pack(w):
    n, k = w.shape
    padded = np.zeros((-(-n // 16) * 16, -(-k // 32) * 32), w.dtype)
    padded[:n, :k] = w
    rb, kb = padded.shape[0] // 16, padded.shape[1] // 32
    # axes:                RB  h  g  KB  t step j  e
    pieces = padded.reshape(rb, 2, 8, kb, 4, 2, 2, 2)
    order = (0, 3, 5, 2, 4, 6, 1, 7)  # RB, KB, step, g, t, j, h, e
    packed = np.ascontiguousarray(pieces.transpose(order))
    return packed.reshape(rb, kb, 2, 32, 8)
"""

WRITE_PACK = Coding(
    "Write pack",
    "A function of yours, held against the kernel's layout.",
    "Write a function pack(w) that reorders a numpy array w[N, K] into [RB, KB, step, lane, 8], "
    "lane = 4g + t, the eight values of a lane in the order (j, h, e):\n"
    "  row = 16 RB + 8 h + g        k = 32 KB + 8 t + 4 step + 2 j + e\n"
    "Any shape with these elements in this order will do. Where N is no multiple of 16, or K none of "
    "32, pad with zeros.",
    "pack",
    _STUB,
    _SOLUTION,
    check,
)
