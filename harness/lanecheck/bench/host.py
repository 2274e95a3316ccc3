"""Host execution, timed by the host's clock: the gate's whole procedure where there is no GPU.

How long the CPU takes to play a GPU says nothing of a GPU.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from lanecheck import simt
from lanecheck.bench.placing import Bytes, Region
from lanecheck.bench.timing import Launch, Sample
from lanecheck.errors import CannotRun
from lanecheck.tensorcore import model_for

SAYS_NOTHING = "host execution: this exercises the gate, and says nothing of a GPU"
LONG_ENOUGH = 2e6
"""Nanoseconds that a sample takes, at least: a clock's tick, and the call of it, become noise."""
COPIES = 4
_LINE = 64  # bytes of a cache line, to which operands are aligned
_STREAM = 0


class HostClock:
    """A :class:`~lanecheck.bench.timing.Clock` for launches that are over when they return."""

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now = now

    def prepare(self, launches: Sequence[Launch]) -> Sample:
        turns = cycle(launches)

        def elapsed(count: int) -> int:
            start = self._now()
            for launch in islice(turns, count):
                launch(_STREAM)
            return self._now() - start

        count = len(launches)
        while (took := elapsed(count)) < LONG_ENOUGH:
            count *= max(2, min(100, round(1.2 * LONG_ENOUGH / max(took, 1))))
        return lambda: elapsed(count) / count / 1e3


class Host:
    """This machine's CPU, as a :class:`~lanecheck.bench.placing.Device`.

    Args:
        library: a host build, or None for a subject that is a callable.
        capability: whose tensor core it computes with.
    """

    def __init__(self, library: Path | None, capability: str) -> None:
        self.clock = HostClock()
        self._library = simt.HostLibrary(library) if library else None
        self.library = self._library.cdll if self._library else None
        if self._library:
            self._library.configure(model=model_for(capability).name)

    def copies(self, size: int) -> int:
        return COPIES

    def hold(self, memory: Bytes, copies: int) -> list[Region]:
        return [_region(memory) for _ in range(copies)]

    def check(self) -> None:
        if self._library and (report := self._library.report()):
            raise CannotRun(f"{report.kind}: {report.message}")


def machine() -> str:
    """What the host is: its architecture, and the model of its CPU where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return " ".join([platform.machine(), *models[:1]])


def _region(memory: Bytes) -> Region:
    room = np.empty(memory.size + _LINE, np.uint8)
    start = -room.ctypes.data % _LINE
    own = room[start : start + memory.size]
    own[...] = memory
    return Region(own.ctypes.data, lambda: own, own)
