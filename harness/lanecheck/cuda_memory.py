"""Guarded memory of a CUDA device: every buffer lies flush against addresses at which nothing is mapped.

A region is memory in the middle of a reserved range; what lies before and behind it in that range is never
mapped. A buffer takes the region's upper or lower end, by its case's ``side``, so an access beyond that
end is an error of the device. It stays: the process that hits it ends, and the executor names the case.

Towards the other end, and between an aligned buffer and its own end, lie canaries, :data:`MARGIN` bytes at
most. They are compared after every run, and are NaNs to whoever reads them. What goes further astray there
only a case of the other side sees. Inputs are compared with what they were, every byte.

Memory is mapped in units of the device's granularity (2 MiB), which costs more than a small launch. So
regions of up to :data:`KEPT` bytes are kept, and used again by the next buffer of their :func:`room`.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lanecheck.cuda_driver import CudaError, Driver
from lanecheck.errors import CannotRun
from lanecheck.memory import STICKY, Bytes, canaries, damage
from lanecheck.observation import Problem

#: Most bytes of canaries on either side of a buffer. Each is copied to the device and back: four times as
#: many cost one case in seven.
MARGIN = 16 * 1024
#: Bytes of the largest regions that outlive their case.
KEPT = 64 * 1024 * 1024


@dataclass(frozen=True)
class Placement:
    """Where a buffer lies, in bytes from its region's first.

    Attributes:
        start: its first byte. size: how many it has.
        low, high: the first byte that is looked after, and the one past the last.
    """

    start: int
    size: int
    low: int
    high: int

    @property
    def inside(self) -> slice:
        """The buffer's bytes among those looked after."""
        return slice(self.start - self.low, self.start - self.low + self.size)


def place(room: int, size: int, align: int, side: str) -> Placement:
    """A buffer's place at the ``upper`` or ``lower`` end of a region of ``room`` bytes.

    Args:
        align: a divisor of ``room``, and of the region's address.
    """
    start = 0 if side == "lower" else (room - size) // align * align
    return Placement(start, size, max(0, start - MARGIN), min(room, start + size + MARGIN))


def room(size: int, granularity: int) -> int:
    """Bytes of the region for a buffer: whole granules, and of more than 16 an eighth more at most.

    So few sizes of region serve buffers of many sizes.
    """
    granules, step = max(1, -(-size // granularity)), 1
    while granules > 16 * step:
        step *= 2
    return -(-granules // step) * step * granularity


@dataclass
class _Buffer:
    name: str
    region: int
    room: int
    at: Placement
    readonly: bool
    mirror: Bytes  # on the host, of all that is looked after


class CudaMemory:
    """A :class:`~lanecheck.memory.Memory` of guarded buffers on one device, staged through the host.

    Args:
        driver: of the device; the first visible one if absent.

    Raises:
        CannotRun: there is no such device, or it has too little memory.
    """

    def __init__(self, driver: Driver | None = None) -> None:
        self._driver = driver or Driver()
        self._granularity = self._driver.granularity()
        self._idle: defaultdict[int, list[int]] = defaultdict(list)  # regions, by their room
        self._buffers: list[_Buffer] = []

    def allocate(
        self, name: str, size: int, align: int, side: str, readonly: bool
    ) -> tuple[int, Bytes]:
        space = room(size, self._granularity)
        idle = self._idle[space]
        region = idle.pop() if idle else self._region(space)
        at = place(space, size, align, side)
        mirror = np.empty(at.high - at.low, np.uint8)
        before, after = at.inside.start, at.inside.stop
        mirror[:before] = canaries(before)
        mirror[after:] = canaries(mirror.size - after, after)
        self._buffers.append(_Buffer(name, region, space, at, readonly, mirror))
        return region + at.start, mirror[at.inside]

    def run(self, launch: Callable[[int], str | None]) -> list[Problem]:
        try:
            return self._run(launch)
        except CudaError as error:
            # Sticky: nothing in this process can use the device again, and what comes next would be
            # blamed for it. So the process ends here, and the executor finds the case.
            print(f"CUDA: {error}", file=sys.stderr, flush=True)
            os._exit(STICKY)

    def release(self) -> None:
        for buffer in self._buffers:
            if buffer.room <= KEPT:
                self._idle[buffer.room].append(buffer.region)
            else:
                self._driver.unmap(buffer.region, buffer.room)
                guard = self._granularity
                self._driver.surrender(buffer.region - guard, buffer.room + 2 * guard)
        self._buffers.clear()

    def _region(self, space: int) -> int:
        """The address of a new region, with a granule before and behind it that stays unmapped."""
        guard = self._granularity
        try:
            region = self._driver.reserve(space + 2 * guard) + guard
            self._driver.map(region, space)
        except CudaError as error:
            raise CannotRun(f"no {space:,} bytes to be had on the GPU: {error}") from error
        return region

    def _run(self, launch: Callable[[int], str | None]) -> list[Problem]:
        driver = self._driver
        for buffer in self._buffers:
            driver.upload(buffer.region + buffer.at.low, buffer.mirror)
        failure = launch(driver.stream)
        driver.synchronize()
        before = [buffer.mirror.copy() if buffer.readonly else None for buffer in self._buffers]
        for buffer in self._buffers:
            driver.download(buffer.region + buffer.at.low, buffer.mirror)
        driver.synchronize()
        problems = [Problem("launch", failure)] if failure else []
        for buffer, inputs in zip(self._buffers, before):
            inside = buffer.at.inside
            problems += damage(buffer.name, buffer.mirror, inside.start, buffer.at.size)
            if inputs is not None and not np.array_equal(buffer.mirror[inside], inputs[inside]):
                problems.append(Problem("memory", f"input {buffer.name} was overwritten"))
        return problems
