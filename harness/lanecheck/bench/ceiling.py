"""The ceilings of one size: the best of a few loops that only read, and a copy, measured like the subject.

The reading loops, ``cuda/ceiling.cu``, are compiled for the device's own architecture on first use.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from lanecheck.bench.timing import CudaGraphClock, Launch, interleave
from lanecheck.build import build_device
from lanecheck.errors import CannotRun
from lanecheck.matrix import Arch
from lanecheck.toolchain import Toolchain

SCOUT_ROUNDS = 5
_VECTOR = 16  # bytes of one load
_PAGE = 4096  # bytes; at other sizes an H200's driver copies a third slower
_WARP = 32


@dataclass(frozen=True)
class Geometry:
    """How the loop is spread over the GPU.

    Attributes:
        threads: threads a CTA.
        unroll: 16-byte loads in flight a thread.
        ctas: CTAs an SM, which share all tiles; 0 for one CTA a tile.
    """

    threads: int
    unroll: int
    ctas: int

    def __str__(self) -> str:
        spread = f"{self.ctas} CTAs an SM" if self.ctas else "a CTA a tile"
        return f"{self.threads} threads, {self.unroll} loads in flight, {spread}"

    def grid(self, vectors: int, sms: int) -> int:
        """CTAs of a launch over ``vectors`` 16-byte vectors on ``sms`` SMs."""
        tiles = max(1, -(-vectors // (self.threads * self.unroll)))
        return min(tiles, self.ctas * sms) if self.ctas else tiles


GEOMETRIES = (
    *(Geometry(threads, 4, 2048 // threads) for threads in (256, 512, 1024)),
    *(Geometry(threads, 8, 1024 // threads) for threads in (256, 512, 1024)),
    *(Geometry(threads, unroll, 0) for threads in (128, 256, 512) for unroll in (4, 8)),
)


class Recipe:
    """How the ceiling's library is compiled."""

    root = Path(__file__).parent / "cuda"
    twins: tuple[Path, ...] = ()

    def device(self, nvcc: Path, gencode: Sequence[str], source: Path, out: Path) -> list[str]:
        targets = [f"-gencode={code}" for code in gencode]
        return [
            *(str(nvcc), "-std=c++17", "-O3", "-shared", "-cudart=static", "-Xptxas=-v"),
            *("-Xcompiler=-fPIC,-fvisibility=hidden", *targets),
            *(str(source / "ceiling.cu"), "-o", str(out)),
        ]

    def host(
        self, cxx: Path, flags: Sequence[str], include: Sequence[Path], source: Path, out: Path
    ) -> list[str]:
        raise NotImplementedError("a CPU has no read ceiling to measure")


def build(capability: str, toolchain: Toolchain) -> Path:
    """The library for one compute capability, such as ``9.0``; from the cache if it can be."""
    number = capability.replace(".", "")
    arch = Arch(
        name=f"ceiling_{number}",
        gencode=(f"arch=compute_{number},code=sm_{number}",),
        loads_on=(capability,),
        min_ctk="11.0",
        role="native",
    )
    return build_device(Recipe(), arch, toolchain).path


COPY = "torch's copy_; bytes read and bytes written both count"


def copying(size: int, copies: int) -> list[Launch]:
    """``copies`` copies in memory on the current CUDA device, each of which reads half of ``size`` bytes, of
    noise, and writes as many; rounded up to whole pages."""
    import torch

    noise = _noise(-(-size // (2 * _PAGE)) * _PAGE // 4)

    def one_copy() -> Launch:
        source, destination = noise.clone(), torch.empty_like(noise)

        def launch(stream: int) -> None:  # torch copies on its current stream, which is this one
            destination.copy_(source)

        return launch

    return [one_copy() for _ in range(copies)]


def _noise(words: int) -> Any:
    """So many random 32-bit words on the device."""
    import torch

    generator = torch.Generator("cuda").manual_seed(
        0
    )  # torch's own is lost if a capture breaks off
    return torch.randint(
        -(2**31), 2**31, (words,), dtype=torch.int32, device="cuda", generator=generator
    )


class Ceiling:
    """The loop, on the current CUDA device with ``sms`` SMs."""

    def __init__(self, library: Path, sms: int) -> None:
        self._read = ctypes.CDLL(str(library)).lanecheck_read
        self._read.argtypes = [
            *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_int, ctypes.c_int),
            *(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
        ]
        self._sms = sms

    def best(
        self, size: int, copies: int, clock: CudaGraphClock, rng: random.Random
    ) -> tuple[Geometry, list[Launch]]:
        """The fastest of :data:`GEOMETRIES` over ``copies`` buffers of ``size`` bytes of noise.

        It is chosen in rounds of its own; the ones that count are still to come.

        Raises:
            CannotRun: if a loop is found not to read every byte.
        """
        original = _noise(-(-size // _VECTOR) * _VECTOR // 4)
        buffers = [original.clone() for _ in range(copies)]
        for geometry in GEOMETRIES:
            self._verify(original, geometry)
        launches = {
            geometry: [self._launch(buffer, geometry) for buffer in buffers]
            for geometry in GEOMETRIES
        }
        samples = {str(geometry): clock.prepare(launches[geometry]) for geometry in GEOMETRIES}
        times = interleave(samples, SCOUT_ROUNDS, rng).times
        fastest = min(GEOMETRIES, key=lambda geometry: median(times[str(geometry)]))
        return fastest, launches[fastest]

    def _launch(self, buffer: Any, geometry: Geometry, keep: Any = None) -> Launch:
        """One read of ``buffer``; ``keep`` is where the warps' sums go, if they are wanted."""
        vectors = buffer.numel() * buffer.element_size() // _VECTOR
        grid = geometry.grid(vectors, self._sms)
        sums = self._sums(grid, geometry) if keep is None else keep

        def launch(stream: int) -> None:
            code = self._read(
                *(buffer.data_ptr(), vectors, geometry.threads, geometry.unroll, grid),
                *(keep is not None, sums.data_ptr(), stream),
            )
            if code:
                raise CannotRun(f"the read ceiling's launch returned CUDA error {code}")

        return launch

    def _verify(self, buffer: Any, geometry: Geometry) -> None:
        import torch

        vectors = buffer.numel() * buffer.element_size() // _VECTOR
        sums = self._sums(geometry.grid(vectors, self._sms), geometry)
        self._launch(buffer, geometry, keep=sums)(torch.cuda.current_stream().cuda_stream)
        read, held = (int(t.sum(dtype=torch.int64)) % 2**32 for t in (sums, buffer))
        if read != held:
            raise CannotRun(f"the read ceiling ({geometry}) does not read every byte once")

    @staticmethod
    def _sums(grid: int, geometry: Geometry) -> Any:
        import torch

        return torch.zeros(grid * geometry.threads // _WARP, dtype=torch.int32, device="cuda")
