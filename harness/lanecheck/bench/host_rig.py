"""This machine's CPU, as a :class:`~lanecheck.bench.rig.Rig`: the whole machinery where there is no GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from lanecheck.bench import timing
from lanecheck.bench.host import Host
from lanecheck.bench.placing import Region
from lanecheck.bench.rig import COLD_CHAIN, COLD_SINGLE, WARM_CHAIN, Bytes
from lanecheck.bench.timing import Launch, Sample

METHODS = {
    COLD_CHAIN: "launches back to back on the CPU, rotating buffers, cold cache",
    WARM_CHAIN: "launches back to back on the CPU over one copy, warm cache",
    COLD_SINGLE: "one launch on the CPU, after a cold chain",
}
_STREAM = 0


class HostMemory:
    """A :class:`~lanecheck.bench.rig.Memory`."""

    def __init__(self, region: Region) -> None:
        assert region.memory is not None
        self.local: Bytes = region.memory
        self.address, self.size = region.address, self.local.size

    def read(self) -> Bytes:
        return self.local.copy()

    def write(self, contents: Bytes) -> None:
        self.local[...] = contents


class HostChain:
    """A :class:`~lanecheck.bench.timing.Chain` of launches that are over when they return."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self._launches = launches
        self.launches = len(launches)

    def enqueue(self) -> None:
        for launch in self._launches:
            launch(_STREAM)

    def time(self) -> float:
        return _took(self.enqueue)


class HostRig:
    """
    Args:
        host: lays out the operands, and holds the library of a host build, if there is one.
        l2_bytes: the cache that counts as the L2.
    """

    def __init__(self, host: Host, l2_bytes: int) -> None:
        self._host = host
        self.library: Any = host.library
        self.l2_bytes = l2_bytes
        self.methods = METHODS

    def copies(self, size: int) -> int:
        return timing.copies(size, self.l2_bytes, rotation=0)

    def hold(self, contents: Bytes, copies: int) -> list[HostMemory]:
        return [HostMemory(region) for region in self._host.hold(contents, copies)]

    def chain(self, launches: Sequence[Launch]) -> HostChain:
        return HostChain(launches)

    def single(self, before: HostChain, launch: Launch) -> Sample:
        def sample() -> float:
            before.enqueue()
            return _took(lambda: launch(_STREAM))

        return sample

    def enqueue(self, launch: Launch) -> None:
        launch(_STREAM)

    def settle(self) -> None:
        self._host.check()

    def persisting_bytes(self) -> int | None:
        return None

    def held_back(self) -> Sequence[str]:
        return ()


def _took(work: Callable[[], None]) -> float:
    """Microseconds of the host's clock."""
    start = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - start) / 1e3
