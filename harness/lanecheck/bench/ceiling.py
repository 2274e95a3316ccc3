"""The ceilings of one size: the best of a few loops that only read, and of a few that copy, measured like the
subject.

The loops, ``cuda/ceiling.cu``, are compiled for the device's own architecture on first use.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Mapping, Sequence
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


READERS = (
    *(Geometry(threads, 4, 2048 // threads) for threads in (256, 512, 1024)),
    *(Geometry(threads, 8, 1024 // threads) for threads in (256, 512, 1024)),
    *(Geometry(threads, unroll, 0) for threads in (128, 256, 512) for unroll in (4, 8)),
)
COPIERS = (
    *(Geometry(threads, unroll, 0) for threads, unroll in ((256, 4), (512, 4), (256, 8))),
    Geometry(512, 4, 4),
)
"""Beside torch's copy_, which on an H200 takes a third longer over some buffers, whatever their size."""


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
        raise NotImplementedError("a CPU has no ceiling to measure")


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


Found = tuple[str, list[Launch]]
"""What is fastest, in words, and its launches."""


class Ceiling:
    """The loops, on the current CUDA device with ``sms`` SMs."""

    def __init__(self, library: Path, sms: int) -> None:
        loops = ctypes.CDLL(str(library))
        self._read, self._copy = loops.lanecheck_read, loops.lanecheck_copy
        shape = [ctypes.c_int64, ctypes.c_int, ctypes.c_int, ctypes.c_int]
        self._read.argtypes = [ctypes.c_void_p, *shape, ctypes.c_int, *[ctypes.c_void_p] * 2]
        self._copy.argtypes = [*[ctypes.c_void_p] * 2, *shape, ctypes.c_void_p]
        self._sms = sms

    def reading(self, size: int, copies: int, clock: CudaGraphClock, rng: random.Random) -> Found:
        """The fastest of :data:`READERS` over ``copies`` buffers of ``size`` bytes of noise.

        It is chosen in rounds of its own; the ones that count are still to come.

        Raises:
            CannotRun: if a loop is found not to read every byte.
        """
        original = _noise(size)
        buffers = [original.clone() for _ in range(copies)]
        for geometry in READERS:
            self._verify_read(original, geometry)
        return _fastest(
            {
                str(geometry): [self._reads(buffer, geometry) for buffer in buffers]
                for geometry in READERS
            },
            clock,
            rng,
        )

    def copying(self, size: int, copies: int, clock: CudaGraphClock, rng: random.Random) -> Found:
        """The fastest of torch's copy and :data:`COPIERS`, chosen likewise: ``copies`` copies in memory, each
        of which reads half of ``size`` bytes, of noise, and writes as many.

        Raises:
            CannotRun: if a loop is found not to copy every byte.
        """
        import torch

        original = _noise(-(-size // 2))
        pairs = [(original.clone(), torch.empty_like(original)) for _ in range(copies)]
        for geometry in COPIERS:
            self._verify_copy(original, geometry)
        name, launches = _fastest(
            {
                "torch's copy_": [_torch_copies(*pair) for pair in pairs],
                **{
                    str(geometry): [self._copies(*pair, geometry) for pair in pairs]
                    for geometry in COPIERS
                },
            },
            clock,
            rng,
        )
        return f"{name}; bytes read and bytes written both count", launches

    def _reads(self, buffer: Any, geometry: Geometry, keep: Any = None) -> Launch:
        """One read of ``buffer``; ``keep`` is where the warps' sums go, if they are wanted."""
        vectors, grid = self._spread(buffer, geometry)
        sums = self._sums(grid, geometry) if keep is None else keep

        def launch(stream: int) -> None:
            code = self._read(
                *(buffer.data_ptr(), vectors, geometry.threads, geometry.unroll, grid),
                *(keep is not None, sums.data_ptr(), stream),
            )
            if code:
                raise CannotRun(f"the read ceiling's launch returned CUDA error {code}")

        return launch

    def _copies(self, source: Any, destination: Any, geometry: Geometry) -> Launch:
        vectors, grid = self._spread(source, geometry)

        def launch(stream: int) -> None:
            code = self._copy(
                *(source.data_ptr(), destination.data_ptr(), vectors),
                *(geometry.threads, geometry.unroll, grid, stream),
            )
            if code:
                raise CannotRun(f"the copy ceiling's launch returned CUDA error {code}")

        return launch

    def _spread(self, buffer: Any, geometry: Geometry) -> tuple[int, int]:
        """The buffer's vectors, and the CTAs of a launch over them."""
        vectors = buffer.numel() * buffer.element_size() // _VECTOR
        return vectors, geometry.grid(vectors, self._sms)

    def _verify_read(self, buffer: Any, geometry: Geometry) -> None:
        import torch

        sums = self._sums(self._spread(buffer, geometry)[1], geometry)
        self._reads(buffer, geometry, keep=sums)(torch.cuda.current_stream().cuda_stream)
        read, held = (int(t.sum(dtype=torch.int64)) % 2**32 for t in (sums, buffer))
        if read != held:
            raise CannotRun(f"the read ceiling ({geometry}) does not read every byte once")

    def _verify_copy(self, buffer: Any, geometry: Geometry) -> None:
        import torch

        copy = torch.zeros_like(buffer)
        self._copies(buffer, copy, geometry)(torch.cuda.current_stream().cuda_stream)
        if not torch.equal(copy, buffer):
            raise CannotRun(f"the copy ceiling ({geometry}) does not copy every byte")

    @staticmethod
    def _sums(grid: int, geometry: Geometry) -> Any:
        import torch

        return torch.zeros(grid * geometry.threads // _WARP, dtype=torch.int32, device="cuda")


def _fastest(
    candidates: Mapping[str, list[Launch]], clock: CudaGraphClock, rng: random.Random
) -> Found:
    samples = {name: clock.prepare(launches) for name, launches in candidates.items()}
    times = interleave(samples, SCOUT_ROUNDS, rng).times
    name = min(candidates, key=lambda name: median(times[name]))
    return name, candidates[name]


def _torch_copies(source: Any, destination: Any) -> Launch:
    def launch(stream: int) -> None:  # torch copies on its current stream, which is this one
        destination.copy_(source)

    return launch


def _noise(size: int) -> Any:
    """Random 32-bit words on the device: ``size`` bytes, rounded up to whole vectors."""
    import torch

    # torch's own generator is lost if a capture breaks off
    generator = torch.Generator("cuda").manual_seed(0)
    words = -(-size // _VECTOR) * _VECTOR // 4
    return torch.randint(
        -(2**31), 2**31, (words,), dtype=torch.int32, device="cuda", generator=generator
    )
