"""Where a case's tensors live while it runs: one interface, a class per kind of device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lanecheck.observation import Problem
from lanecheck.simt import HostLibrary

Bytes = npt.NDArray[np.uint8]
_CANARY = (
    0xFFC7  # twice in a word: a NaN as BF16 and as FP32, so that a read of it shows in what follows
)
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
        whole = canaries(size + 2 * self.MARGIN + align).copy()
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
            problems += damage(name, whole, start, size)
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


def canaries(count: int, start: int = 0) -> Bytes:
    """``count`` bytes of canaries, the first of them ``start`` bytes from an even address."""
    odd = start % 2
    return np.full(count // 2 + 1, _CANARY, np.uint16).view(np.uint8)[odd : odd + count]


def damage(name: str, whole: Bytes, start: int, size: int) -> list[Problem]:
    """What became of the canaries around the ``size`` bytes from ``start`` on."""
    for first, last in ((0, start), (start + size, whole.size)):
        changed = np.flatnonzero(whole[first:last] != canaries(last - first, first))
        if changed.size:
            at = first + int(changed[0]) - start
            return [Problem("canary", f"byte {name}{at:+d} (size {size}) was overwritten")]
    return []
