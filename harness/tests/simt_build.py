"""Builds the little kernels of the simt tests, and runs split_k.cu on plain arrays.

As a script it runs one library under one fault: ASan needs a process that preloads it.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lanecheck.simt import INCLUDE, RUNTIME, VARIANTS, HostLibrary

KERNELS = Path(__file__).parent / "simt_kernels"
TWINS = KERNELS / "host"
TILE, WARPS = 128, 4


def enumerators(kernel: str, enum: str) -> dict[str, int]:
    """The names of an enum in a kernel's source, as in `kNotReset` -> `not_reset`."""
    body = re.search(rf"enum {enum} \{{(.*?)\}}", (KERNELS / kernel).read_text(), re.DOTALL)
    assert body
    names = re.findall(r"^  k(\w+),", body[1], re.MULTILINE)
    return {re.sub(r"(?<!^)(?=[A-Z])", "_", n).lower(): i for i, n in enumerate(names)}


FAULTS = enumerators("split_k.cu", "Fault")
ORDERS = enumerators("features.cu", "Order")


def build_all(out: Path) -> Mapping[str, Path]:
    """Every library the tests use, by kernel and variant, in parallel."""
    kernels = [(k, v) for k in ("split_k", "features") for v in ("plain", "hooks")]
    kernels.append(("split_k", "asan"))
    compiles = [
        ["g++", *VARIANTS[v].compile_flags, f"-I{INCLUDE}", f"-I{TWINS}", "-c",
         str(KERNELS / f"{k}.cu"), "-o", str(out / f"{k}-{v}.o")]
        for k, v in kernels
    ]  # fmt: skip
    runtimes = {v: VARIANTS[v].runtime_flags for v in VARIANTS}
    runtimes["ucontext"] = (*VARIANTS["plain"].runtime_flags, "-DSIMT_UCONTEXT", "-O1")
    compiles += [
        ["g++", *flags, "-c", str(RUNTIME), "-o", str(out / f"runtime-{v}.o")]
        for v, flags in runtimes.items()
    ]
    running = [subprocess.Popen(command) for command in compiles]
    assert not any([process.wait() for process in running])

    libraries = {}
    for kernel, variant, runtime in [
        *((k, v, v) for k, v in kernels),
        ("split_k", "plain", "ucontext"),
    ]:
        library = out / f"{kernel}-{runtime}.so"
        objects = [str(out / f"{kernel}-{variant}.o"), str(out / f"runtime-{runtime}.o")]
        link = ["g++", *objects, *VARIANTS[variant].link_flags, "-o", str(library)]
        subprocess.run(link, check=True)
        libraries[library.stem] = library
    return libraries


class Params(ctypes.Structure):
    _fields_ = [
        ("w", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("partials", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("arrivals", ctypes.c_void_p),
        ("steps", ctypes.c_int),
        ("fault", ctypes.c_int),
    ]


@dataclass
class SplitK:
    """One problem with integer values, so that every order of addition gives the same bits."""

    library: HostLibrary
    row_blocks: int = 2
    slices: int = 3
    steps: int = 2
    dynamic: bool = True
    side: str = "upper"

    def __post_init__(self) -> None:
        rng = np.random.default_rng(1)
        parts = self.slices * WARPS * self.steps
        a = rng.integers(-3, 4, (self.row_blocks, parts, 16, 16)).astype(np.float32)
        b = rng.integers(-3, 4, (parts, 16, 8)).astype(np.float32)
        self.w, self.x = fragments_a(a), fragments_b(b)
        self.expected = fragments_c(np.einsum("rpik,pkj->rij", a, b))

    def prepare(self, fault: str = "healthy") -> Params:
        lib, side = self.library, self.side
        lib.free_all()
        sizes = {"partials": self.row_blocks * self.slices * TILE * 4, "y": self.expected.nbytes}
        w = lib.alloc("w", self.w.nbytes, side=side, readonly=True)
        x = lib.alloc("x", self.x.nbytes, side=side, readonly=True)
        w.view[:] = self.w.reshape(-1).view(np.uint8)
        x.view[:] = self.x.reshape(-1).view(np.uint8)
        out = {name: lib.alloc(name, size, side=side) for name, size in sizes.items()}
        arrivals = lib.alloc("arrivals", self.row_blocks * 4, side=side)
        arrivals.view[:] = 0
        self.y, self.arrivals = out["y"].view, arrivals.view
        return Params(
            w.address, x.address, out["partials"].address, out["y"].address, arrivals.address,
            self.steps, FAULTS[fault],
        )  # fmt: skip

    def launch(self, params: Params) -> int:
        run = self.library.cdll.split_k_launch
        return int(run(ctypes.byref(params), self.row_blocks, self.slices, int(self.dynamic)))

    def run(self, fault: str = "healthy") -> bool:
        """Whether the launch succeeded, with the right result."""
        error = self.launch(self.prepare(fault))
        y = self.y.view(np.float32).reshape(self.expected.shape)
        return error == 0 and np.array_equal(y, self.expected) and not self.arrivals.any()


def _bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


_G, _T = np.divmod(np.arange(32), 4)


def fragments_a(a: NDArray[np.float32]) -> NDArray[np.uint16]:
    """[..., 16, 16] to [..., lane, register, half]."""
    rows = [_G[:, None] + 8 * (r % 2) for r in range(4)]
    columns = [2 * _T[:, None] + [0, 1] + 8 * (r // 2) for r in range(4)]
    return _bits(np.stack([a[..., i, k] for i, k in zip(rows, columns, strict=True)], axis=-2))


def fragments_b(b: NDArray[np.float32]) -> NDArray[np.uint16]:
    """[..., 16, 8] to [..., lane, register, half]."""
    rows = [2 * _T[:, None] + [0, 1] + 8 * r for r in range(2)]
    return _bits(np.stack([b[..., k, _G[:, None]] for k in rows], axis=-2))


def fragments_c(c: NDArray[np.float32]) -> NDArray[np.float32]:
    """[..., 16, 8] to [..., register · 32 + lane]."""
    registers = [c[..., _G + 8 * (r // 2), 2 * _T + r % 2] for r in range(4)]
    return np.concatenate(registers, axis=-1)


def main(path: str, fault: str, seeds: int) -> None:
    library = HostLibrary(path, twins=[TWINS])
    results = []
    for dynamic in (True, False):
        problem = SplitK(library, dynamic=dynamic)
        for seed in range(seeds):
            library.configure(schedule_seed=seed, poison_seed=seed)
            right = problem.run(fault)
            results.append([right, str(library.report() or ""), library.check()])
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
