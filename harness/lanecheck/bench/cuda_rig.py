"""The current CUDA device, as a :class:`~lanecheck.bench.rig.Rig`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from lanecheck.bench import timing
from lanecheck.bench.rig import COLD_CHAIN, COLD_SINGLE, WARM_CHAIN, Bytes
from lanecheck.bench.timing import CudaGraphChain, CudaGraphClock, Launch, Sample

METHODS = {
    COLD_CHAIN: timing.METHOD,
    WARM_CHAIN: timing.WARM_CHAIN,
    COLD_SINGLE: timing.COLD_SINGLE,
}
_PERSISTING_L2_CACHE_SIZE = 6  # of cuda.h's CUlimit


class CudaMemory:
    """A :class:`~lanecheck.bench.rig.Memory`: a tensor of bytes, read on the stream that is timed."""

    local = None

    def __init__(self, tensor: Any, stream: Any) -> None:
        self._tensor, self._stream = tensor, stream
        self.address: int = tensor.data_ptr()
        self.size: int = tensor.numel()

    def read(self) -> Bytes:
        import torch

        with torch.cuda.stream(self._stream):  # not the default one, which waits for others
            contents: Bytes = self._tensor.cpu().numpy()
        return contents

    def write(self, contents: Bytes) -> None:
        import torch

        self._tensor.copy_(torch.from_numpy(contents))


class CudaRig:
    """
    Args:
        library: the subject's, loaded.
        l2_bytes: the device's L2.
        held_back: asks what holds it back.
    """

    def __init__(
        self, library: ctypes.CDLL, l2_bytes: int, held_back: Callable[[], Sequence[str]]
    ) -> None:
        import torch

        self._torch: Any = torch
        self.library: Any = library
        self.l2_bytes = l2_bytes
        self.methods = METHODS
        self.held_back = held_back
        self.clock = CudaGraphClock()

    def copies(self, size: int) -> int:
        return timing.copies(size, self.l2_bytes)

    def hold(self, contents: Bytes, copies: int) -> list[CudaMemory]:
        first = self._torch.from_numpy(contents).cuda()
        tensors = [first, *(first.clone() for _ in range(copies - 1))]
        return [CudaMemory(tensor, self.clock.stream) for tensor in tensors]

    def chain(self, launches: Sequence[Launch]) -> CudaGraphChain:
        return self.clock.chain(launches)

    def single(self, before: CudaGraphChain, launch: Launch) -> Sample:
        return self.clock.single(before, launch)

    def enqueue(self, launch: Launch) -> None:
        self.clock.enqueue(launch)

    def settle(self) -> None:
        self._torch.cuda.synchronize()

    def persisting_bytes(self) -> int | None:
        size = ctypes.c_size_t()
        ask = ctypes.CDLL("libcuda.so.1").cuCtxGetLimit  # of the context that torch made current
        code = ask(ctypes.byref(size), _PERSISTING_L2_CACHE_SIZE)
        return None if code else size.value
