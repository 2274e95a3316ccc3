"""The tensor core models in C++, for volume; compiled on first use by this machine's compiler.

Same bits as :meth:`lanecheck.tensorcore.TensorCore.mma`, four orders of magnitude faster. The
library lands in ``$LANECHECK_CACHE`` or ``~/.cache/lanecheck`` under a name that changes with its
sources, the flags and the compiler.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanecheck.tensorcore import AMPERE, HOPPER, TensorCore, check_operand

_INCLUDE = Path(__file__).parent.parent / "simt" / "include"

_COMPILERS = ("g++", "clang++", "c++")
_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-pthread")
_SOURCE = Path(__file__).parent / "volume.cpp"
_HEADERS = (_INCLUDE / "lanecheck" / "mma.h", _INCLUDE / "lanecheck" / "mma_plain.h")
_MODELS = (AMPERE, HOPPER)  # in the order of mma.h's enum


class NoCompiler(RuntimeError):
    """This machine has no C++ compiler to build the native library with."""


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


def mma_chain(
    model: TensorCore, a: NDArray[np.uint16], b: NDArray[np.uint16], *, threads: int = 1
) -> NDArray[np.float32]:
    """Every row's chain against every column's: a [R, L, 16, 16], b [C, L, 16, 8] to [R, C, 16, 8].

    Each chain starts from +0 and accumulates ``mma(a[r, l], b[c, l], acc)`` in the order of l.
    """
    _check(a=a, b=b, leading=2)
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"a's chains have {a.shape[1]} steps and b's {b.shape[1]}")
    if threads < 1:
        raise ValueError(f"threads should be at least 1, not {threads}")
    rows, length, columns = a.shape[0], a.shape[1], b.shape[0]
    d = np.empty((rows, columns, 16, 8), np.float32)
    a, b = map(np.ascontiguousarray, (a, b))
    sizes = rows, columns, length
    pointers = a.ctypes.data, b.ctypes.data, d.ctypes.data
    if build().lanecheck_mma_chain(_index(model), *sizes, *pointers, threads) != 0:
        raise MemoryError(f"{columns} x {length} decoded fragments of b do not fit in memory")
    return d


@functools.cache
def build(*flags: str) -> ctypes.CDLL:
    """The library, compiled unless the cache has it; ``flags`` come after the usual ones."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise NoCompiler(
            f"the native tensor core needs a C++17 compiler: none of {', '.join(_COMPILERS)} "
            "is on PATH; install one (for example g++), or use lanecheck.tensorcore"
        )
    command = [compiler, *_FLAGS, *flags, f"-I{_INCLUDE}", str(_SOURCE), "-o"]
    path = _cache() / f"volume-{_key(compiler, *_FLAGS, *flags)}.so"
    if not path.exists():
        _compile(command, path)
    return _declare(ctypes.CDLL(str(path)))


def _cache() -> Path:
    return Path(os.environ.get("LANECHECK_CACHE") or Path.home() / ".cache" / "lanecheck")


def _key(compiler: str, *flags: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    parts = [path.read_bytes() for path in (_SOURCE, *_HEADERS)]
    parts += [version, platform.machine().encode(), "\0".join(flags).encode()]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[
        :16
    ]


def _compile(command: list[str], path: Path) -> None:
    """Compiles beside ``path`` and renames, so that a concurrent reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        output = Path(folder) / path.name
        done = subprocess.run([*command, str(output)], check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(done.args)} failed:\n{done.stderr}")
        os.replace(output, path)


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    for function in (library.lanecheck_mma_batch, library.lanecheck_mma_batch_plain):
        function.argtypes = [ctypes.c_int, size, pointer, pointer, pointer, pointer]
        function.restype = None
    library.lanecheck_mma_chain.argtypes = [
        ctypes.c_int,
        size,
        size,
        size,
        pointer,
        pointer,
        pointer,
        ctypes.c_uint,
    ]
    library.lanecheck_mma_chain.restype = ctypes.c_int
    return library


def _index(model: TensorCore) -> int:
    if model not in _MODELS:
        raise ValueError(f"no native implementation of {model}")
    return _MODELS.index(model)


def _check(*, leading: int = 1, **operands: NDArray[Any]) -> None:
    for name, operand in operands.items():
        check_operand(name, operand)
        if operand.ndim != leading + 2:
            raise ValueError(
                f"{name} should have {leading} leading dimensions, not {list(operand.shape)}"
            )
