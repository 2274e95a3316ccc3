"""The current CUDA device, as a place where a comparison's processes time launches."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from lanecheck.bench import telemetry
from lanecheck.bench.model import Absent, Reading
from lanecheck.bench.placing import Bytes, Region
from lanecheck.bench.run import cuda_torch
from lanecheck.bench.timing import CudaGraphClock, copies


class Silicon:
    """A :class:`~lanecheck.bench.placing.Device`.

    Args:
        library: a build that loads there.
    """

    def __init__(self, library: Path) -> None:
        self._torch: Any = cuda_torch()
        self._gpu = self._torch.cuda.get_device_properties(self._torch.cuda.current_device())
        self._torch.zeros(1, device="cuda")  # makes the context that the library launches in
        self.library = ctypes.CDLL(str(library))
        self.clock = CudaGraphClock()

    def copies(self, size: int) -> int:
        return copies(size, self._gpu.L2_cache_size)

    def hold(self, memory: Bytes, copies: int) -> list[Region]:
        first = self._torch.from_numpy(memory).cuda()
        tensors = [first, *(first.clone() for _ in range(copies - 1))]
        return [_region(tensor) for tensor in tensors]

    def check(self) -> None:
        self._torch.cuda.synchronize()

    def reading(self) -> Reading | Absent:
        return telemetry.read(str(self._gpu.uuid))


def _region(tensor: Any) -> Region:
    def read() -> Bytes:
        memory: Bytes = tensor.cpu().numpy()
        return memory

    return Region(tensor.data_ptr(), read)
