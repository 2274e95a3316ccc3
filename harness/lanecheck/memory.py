"""Where a case's tensors live while it runs: one interface, a class per kind of device."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lanecheck.observation import Problem
from lanecheck.simt import HostLibrary

Bytes = npt.NDArray[np.uint8]
_CANARY = 0xC7
STICKY = 86  # exit code of a worker whose CUDA device reported an error that stays


class Memory(Protocol):
    """Allocates guarded buffers and runs a launch over them."""

    def allocate(
        self, name: str, size: int, align: int, side: str, readonly: bool
    ) -> tuple[int, Bytes]:
        """A buffer's address on the device, and ``size`` bytes on the host that mirror it."""

    def run(self, launch: Callable[[int], str | None]) -> list[Problem]:
        """Call ``launch(stream)`` once, wait for it, and report every problem noticed."""

    def release(self) -> None:
        """Free every buffer."""


class HeapMemory:
    """Ordinary host memory between canaries, for subjects that are Python callables."""

    MARGIN = 64

    def __init__(self) -> None:
        self._buffers: list[tuple[str, Bytes, int, int, bytes | None]] = []

    def allocate(
        self, name: str, size: int, align: int, side: str, readonly: bool
    ) -> tuple[int, Bytes]:
        whole = np.full(size + 2 * self.MARGIN + align, _CANARY, np.uint8)
        start = self.MARGIN + -(whole.ctypes.data + self.MARGIN) % align
        self._buffers.append((name, whole, start, size, b"" if readonly else None))
        return whole.ctypes.data + start, whole[start : start + size]

    def run(self, launch: Callable[[int], str | None]) -> list[Problem]:
        before = [
            whole[start : start + size].tobytes() if kept is not None else None
            for _, whole, start, size, kept in self._buffers
        ]
        failure = launch(0)
        problems = [Problem("launch", failure)] if failure else []
        for (name, whole, start, size, _), inputs in zip(self._buffers, before):
            problems += _damage(name, whole, start, size)
            if inputs is not None and whole[start : start + size].tobytes() != inputs:
                problems.append(Problem("memory", f"input {name} was overwritten"))
        return problems

    def release(self) -> None:
        self._buffers.clear()


class SimtMemory:
    """Host execution's buffers: flush against inaccessible pages, canaries in the gap."""

    def __init__(self, library: HostLibrary) -> None:
        self._library = library

    def allocate(
        self, name: str, size: int, align: int, side: str, readonly: bool
    ) -> tuple[int, Bytes]:
        buffer = self._library.alloc(name, size, align, side, readonly)
        return buffer.address, buffer.view

    def run(self, launch: Callable[[int], str | None]) -> list[Problem]:
        failure = launch(0)
        report = self._library.report()
        problems = [Problem(report.kind, report.message)] if report else []
        if failure and not report:
            problems.append(Problem("launch", failure))
        return problems + [Problem("canary", text) for text in self._library.check()]

    def release(self) -> None:
        self._library.free_all()


class CudaMemory:
    """Memory of a CUDA device between canaries, staged through the host; torch allocates."""

    MARGIN = 512

    def __init__(self, device: int = 0) -> None:
        import torch

        self._torch = torch
        self._device = torch.device("cuda", device)
        self._buffers: list[tuple[str, Any, Bytes, int, int, bool]] = []

    def allocate(
        self, name: str, size: int, align: int, side: str, readonly: bool
    ) -> tuple[int, Bytes]:
        whole = np.full(size + 2 * self.MARGIN + align, _CANARY, np.uint8)
        on_device = self._torch.empty(whole.size, dtype=self._torch.uint8, device=self._device)
        start = self.MARGIN + -(on_device.data_ptr() + self.MARGIN) % align
        self._buffers.append((name, on_device, whole, start, size, readonly))
        return on_device.data_ptr() + start, whole[start : start + size]

    def run(self, launch: Callable[[int], str | None]) -> list[Problem]:
        try:
            return self._run(launch)
        except RuntimeError as error:
            # Sticky: nothing in this process can use the device again, and what comes next would be
            # blamed for it. So the process ends here, and the executor finds the case.
            print(f"CUDA: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
            os._exit(STICKY)

    def _run(self, launch: Callable[[int], str | None]) -> list[Problem]:
        torch = self._torch
        for _, on_device, whole, *_ in self._buffers:
            on_device.copy_(torch.from_numpy(whole))
        stream = torch.cuda.current_stream(self._device)
        failure = launch(stream.cuda_stream)
        stream.synchronize()
        problems = [Problem("launch", failure)] if failure else []
        for name, on_device, whole, start, size, readonly in self._buffers:
            after = on_device.cpu().numpy()
            problems += _damage(name, after, start, size)
            inside = slice(start, start + size)
            if readonly and not np.array_equal(after[inside], whole[inside]):
                problems.append(Problem("memory", f"input {name} was overwritten"))
            whole[:] = after
        return problems

    def release(self) -> None:
        self._buffers.clear()


def _damage(name: str, whole: Bytes, start: int, size: int) -> list[Problem]:
    changed = whole != _CANARY
    changed[start : start + size] = False
    if not changed.any():
        return []
    at = int(np.flatnonzero(changed)[0]) - start
    return [Problem("canary", f"byte {name}{at:+d} (size {size}) was overwritten")]
