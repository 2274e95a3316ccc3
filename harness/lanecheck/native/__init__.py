"""The tensor core models in C++, for volume; compiled on first use by this machine's compiler.

Same bits as :meth:`lanecheck.tensorcore.TensorCore.mma`, four orders of magnitude faster. The
library lands in lanecheck's cache under a name that changes with its
sources, the flags and the compiler.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lanecheck.build import run, unfit, workplace
from lanecheck.errors import CannotRun
from lanecheck.tensorcore import AMPERE, HOPPER, TensorCore, check_operand
from lanecheck.toolchain import Toolchain, cache_root

_INCLUDE = Path(__file__).parent.parent / "simt" / "include"

_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-pthread")
_SOURCE = Path(__file__).parent / "volume.cpp"
_HEADERS = (_INCLUDE / "lanecheck" / "mma.h", _INCLUDE / "lanecheck" / "mma_plain.h")
_MODELS = (AMPERE, HOPPER)  # in the order of mma.h's enum


def mma_batch(
    model: TensorCore,
    a: NDArray[np.uint16],
    b: NDArray[np.uint16],
    c: NDArray[np.float32],
    *,
    plain: bool = False,
) -> NDArray[np.float32]:
    """Independent mma: a [N, 16, 16], b [N, 16, 8], c [N, 16, 8] to d [N, 16, 8].

    ``plain`` takes the straightforward implementation, the fast one's specification.
    """
    _check(a=a, b=b, c=c)
    if not a.shape[0] == b.shape[0] == c.shape[0]:
        raise ValueError(f"a, b and c hold {a.shape[0]}, {b.shape[0]} and {c.shape[0]} fragments")
    d = np.empty_like(c, order="C")
    library = build()
    function = library.lanecheck_mma_batch_plain if plain else library.lanecheck_mma_batch
    a, b, c = map(np.ascontiguousarray, (a, b, c))
    function(_index(model), len(a), a.ctypes.data, b.ctypes.data, c.ctypes.data, d.ctypes.data)
    return d


def mma_chains(
    model: TensorCore,
    a: NDArray[np.uint16],
    b: NDArray[np.uint16],
    slices: Sequence[range],
    *,
    threads: int = 1,
) -> NDArray[np.float32]:
    """Every row's chains against every column's, one for each slice of the steps.

    Each chain starts from +0 and accumulates ``mma(a[r, l], b[c, l], acc)`` for l in its slice.

    Args:
        a: ``[R, L, 16, 16]`` BF16 bits. b: ``[C, L, 16, 8]``.
        slices: P contiguous ranges within 0…L; an empty one gives +0.
        threads: at most this many.

    Returns:
        ``[P, R, C, 16, 8]``.

    Raises:
        ValueError: if shapes, slices or threads cannot be right.
    """
    _check_chains(a, b, slices)
    if threads < 1:
        raise ValueError(f"threads should be at least 1, not {threads}")
    (rows, length), columns = a.shape[:2], len(b)
    ends = _ends(slices)
    d = np.empty((len(slices), rows, columns, 16, 8), np.float32)
    a, b = map(np.ascontiguousarray, (a, b))
    sizes = rows, columns, length, len(slices)
    pointers = ends.ctypes.data, a.ctypes.data, b.ctypes.data, d.ctypes.data
    if build().lanecheck_mma_chains(_index(model), *sizes, *pointers, threads) != 0:
        raise MemoryError(f"{columns} x {length} decoded fragments of b do not fit in memory")
    return d


class ChainBounds(NamedTuple):
    """Of every chain's output: the exact sum ``hi + lo`` of its products, and how far from it at most
    the computed sum lies, all float64. Where the computed sum is no number at some step, ``slack`` is
    +inf and the rest means nothing."""

    hi: NDArray[np.float64]
    lo: NDArray[np.float64]
    slack: NDArray[np.float64]


def mma_bounds(
    model: TensorCore,
    a: NDArray[np.uint16],
    b: NDArray[np.uint16],
    slices: Sequence[range],
) -> ChainBounds:
    """What the chains of :func:`mma_chains` should have summed to, and how near they come.

    :mod:`lanecheck.oracles.bound` derives the formula; it follows the model's own run.

    Args:
        model, a, b, slices: as for :func:`mma_chains`.

    Returns:
        Arrays ``[P, R, C, 16, 8]``.

    Raises:
        ValueError: if shapes or slices cannot be right.
    """
    _check_chains(a, b, slices)
    (rows, length), columns = a.shape[:2], len(b)
    ends = _ends(slices)
    result = ChainBounds(*np.empty((3, len(slices), rows, columns, 16, 8)))
    a, b = map(np.ascontiguousarray, (a, b))
    sizes = rows, columns, length, len(slices)
    pointers = (array.ctypes.data for array in (ends, a, b, *result))
    build().lanecheck_mma_bounds(_index(model), *sizes, *pointers)
    return result


def check(count: int = 200) -> int:
    """Compare the three implementations of both models on this machine.

    Ordinary values and any bit patterns, special ones included.

    Returns:
        How many outputs were compared.

    Raises:
        CannotRun: if they differ, so that nothing computed with them would be worth having.
    """
    rng = np.random.default_rng(0)

    def operands(any_bits: bool, *shape: int) -> NDArray[np.uint32]:
        bits = rng.integers(0, 2**32, shape, np.uint32)
        return bits if any_bits else rng.standard_normal(shape, np.float32).view(np.uint32)

    outputs = 0
    for model, any_bits in itertools.product(_MODELS, (False, True)):
        a, b = ((operands(any_bits, count, 16, width) >> 16).astype(np.uint16) for width in (16, 8))
        c = operands(any_bits, count, 16, 8).view(np.float32)
        read = model.mma(a, b, c).view(np.uint32)
        for plain in (False, True):
            if (mma_batch(model, a, b, c, plain=plain).view(np.uint32) != read).any():
                raise CannotRun(
                    f"the {model.name} model as compiled here has other bits than its definition; "
                    "set CXX to another compiler"
                )
        outputs += read.size
    return outputs


@functools.cache
def build(*flags: str) -> ctypes.CDLL:
    """The library, compiled unless the cache has it; ``flags`` come after the usual ones.

    Raises:
        CannotRun: if this machine has no C++ compiler that compiles it, or the cache cannot be written.
    """
    tools = Toolchain()
    flags = (*_FLAGS, *flags)
    path = cache_root() / "native" / f"volume-{_key(tools, flags)}.so"
    if not os.path.exists(path):
        _compile(tools, flags, path)
    return _declare(ctypes.CDLL(str(path)))


def _key(tools: Toolchain, flags: Sequence[str]) -> str:
    parts = [path.read_bytes() for path in (_SOURCE, *_HEADERS)]
    parts += [word.encode() for word in (tools.cxx_version, platform.machine(), "\0".join(flags))]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[
        :16
    ]


def _compile(tools: Toolchain, flags: Sequence[str], path: Path) -> None:
    with workplace(path.parent, path.stem) as work:
        made = work / path.name
        command = [str(tools.cxx), *flags, f"-I{_INCLUDE}", str(_SOURCE), "-o", str(made)]
        status, said, _ = run(command, work, {**tools.environment, "LC_ALL": "C"})
        if status or not made.is_file():
            raise unfit(tools.cxx, "tensor core models", said)
        made.replace(path)


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    for function in (library.lanecheck_mma_batch, library.lanecheck_mma_batch_plain):
        function.argtypes = [ctypes.c_int, size, pointer, pointer, pointer, pointer]
        function.restype = None
    chains = library.lanecheck_mma_chains
    chains.argtypes = [ctypes.c_int, *[size] * 4, *[pointer] * 4, ctypes.c_uint]
    chains.restype = ctypes.c_int
    bounds = library.lanecheck_mma_bounds
    bounds.argtypes = [ctypes.c_int, *[size] * 4, *[pointer] * 6]
    bounds.restype = None
    return library


def _index(model: TensorCore) -> int:
    if model not in _MODELS:
        raise ValueError(f"no native implementation of {model}")
    return _MODELS.index(model)


def _ends(slices: Sequence[range]) -> NDArray[np.uintp]:
    return np.array([(part.start, part.stop) for part in slices], np.uintp).reshape(-1, 2)


def _check_chains(a: NDArray[Any], b: NDArray[Any], slices: Sequence[range]) -> None:
    _check(a=a, b=b, leading=2)
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"a's chains have {a.shape[1]} steps and b's {b.shape[1]}")
    for part in slices:
        if part.step != 1 or not 0 <= part.start <= part.stop <= a.shape[1]:
            raise ValueError(f"{part} is not a slice of {a.shape[1]} steps")


def _check(*, leading: int = 1, **operands: NDArray[Any]) -> None:
    for name, operand in operands.items():
        check_operand(name, operand)
        if operand.ndim != leading + 2:
            raise ValueError(
                f"{name} should have {leading} leading dimensions, not {list(operand.shape)}"
            )
