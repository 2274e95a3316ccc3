"""Device time of one launch, with a cold L2.

A graph holds launches back to back, each over the next copy of its operands, and there are so many
copies that whatever a launch reads has long left the L2. CUDA events time whole replays. Contenders
are sampled in turn, in an order drawn anew each round, so that a drift of the GPU's clocks meets
them all; a round in which the GPU was held back counts for none of them.

A launch back to back is not a launch alone: with programmatic dependent launch it begins before the one
before it ends. So the subject is timed alone too, and with a warm L2, each under its own name.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

ROTATION = 600_000_000
"""Bytes of other copies that pass, at least, between two uses of one."""
L2_MULTIPLE = 8
"""… and at least this many times the L2."""
GRAPH_LAUNCHES = 128
"""Launches in a graph: the microsecond between two graphs becomes noise."""
GRAPH_TURNS = 4
"""Turns over the copies after which there may be fewer: each reads ROTATION bytes, so that these take half
a millisecond on the fastest memory there is."""

WINDOW_US = 200_000.0
"""How long a chain runs alone until its time is compared with the one before: a GPU that draws too much power
lowers its clocks over some tenths of a second."""
SETTLED = 0.005
"""By how much two of these times may differ."""
WINDOWS = 6
"""After so many, the last one counts."""

Launch = Callable[[int], Any]
"""Enqueues one launch on a stream, given by its handle. What it returns is kept until the chain is made, so
that launches which allocate their output do not all write the same memory."""
Sample = Callable[[], float]
"""Takes one sample: microseconds a launch."""


class Chain(Protocol):
    """Launches back to back, ready to run again and again.

    Attributes:
        launches: how many.
    """

    launches: int

    def enqueue(self) -> None:
        """Run them all, untimed; on a device that may return before they end."""

    def time(self) -> float:
        """Run them all: microseconds, by the timer. It waits for the timer, and for nothing else."""


def sampled(chain: Chain) -> Sample:
    """Samples of a chain. While the first of two replays warms it up, the host enqueues the other.

    One is enough: after 16 the medians of seven contenders over five shapes differed by 0.4 % at most.
    """

    def sample() -> float:
        chain.enqueue()
        return chain.time() / chain.launches

    return sample


def without_rest(chain: Chain) -> float:
    """Microseconds a launch when a chain runs again and again, alone: the median over :data:`WINDOW_US`, once
    two in a row are :data:`SETTLED`. So it matters little what heated the GPU before."""
    tries, sample = 1 + int(WINDOW_US / 2 / max(1.0, chain.time())), sampled(chain)
    now = median(sample() for _ in range(tries))
    for _ in range(WINDOWS - 1):
        before, now = now, median(sample() for _ in range(tries))
        if abs(now - before) <= SETTLED * before:
            break
    return now


def copies(size: int, l2: int, rotation: int = ROTATION) -> int:
    """How many copies of ``size`` bytes of operands to rotate over, with ``l2`` bytes of L2."""
    apart = max(rotation, L2_MULTIPLE * l2)
    return 1 + -(-apart // size)


def warms(size: int, l2: int) -> bool:
    """Whether ``size`` bytes of operands stay in ``l2`` bytes of L2 from launch to launch.

    In a quarter of it: a cache of two partitions keeps a line in both, and half of what is left is room for
    what shares a set by chance. On an H200, launches over up to 19 of its 60 MiB took three quarters of the
    cold time when they were repeated, and over 21 MiB or more as long as cold ones.
    """
    return size <= l2 // 4


def rotation(launches: Sequence[Launch], count: int | None = None) -> list[Launch]:
    """The launches of one graph: so many whole turns over the copies, or as many as it needs."""
    return [*launches] * (turns(len(launches)) if count is None else count)


def turns(copies: int) -> int:
    """Turns over so many copies in one graph."""
    return min(-(-GRAPH_LAUNCHES // copies), GRAPH_TURNS)


@dataclass(frozen=True)
class Rounds:
    """What interleaved sampling took.

    Attributes:
        times: microseconds a launch by contender, one a round that counts; equal indices belong together.
        discarded: rounds that count for nobody.
        reasons: what held the device back in those.
    """

    times: dict[str, tuple[float, ...]]
    discarded: int
    reasons: tuple[str, ...]


def interleave(
    samples: Mapping[str, Sample],
    rounds: int,
    rng: random.Random,
    held_back: Callable[[], Sequence[str]] = tuple,
) -> Rounds:
    """Sample every contender once a round, in random order, and drop the rounds in which the device was
    held back.

    Args:
        held_back: asked after each sample, says by what.
    """
    kept: list[dict[str, float]] = []
    reasons: set[str] = set()
    for _ in range(rounds):
        taken, found = {}, set[str]()
        for name in rng.sample(list(samples), len(samples)):
            taken[name] = samples[name]()
            found.update(held_back())
        if found:
            reasons |= found
        else:
            kept.append(taken)
    return Rounds(
        times={name: tuple(taken[name] for taken in kept) for name in samples},
        discarded=rounds - len(kept),
        reasons=tuple(sorted(reasons)),
    )


class CudaGraphClock:
    """The device's clock: CUDA events around the replay of a graph, on a stream of its own."""

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self.stream: Any = self._torch.cuda.Stream()

    def prepare(self, launches: Sequence[Launch]) -> Sample:
        return sampled(self.chain(launches))

    def chain(self, launches: Sequence[Launch], count: int | None = None) -> CudaGraphChain:
        """Whole turns over the launches, captured: so many, or as many as :func:`turns` says."""
        torch, stream = self._torch, self.stream
        captured = rotation(launches, count)
        stream.wait_stream(torch.cuda.current_stream())
        for launch in launches:  # loads modules, makes handles and workspaces
            self.enqueue(launch)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.stream(stream):
            graph.capture_begin()
            try:
                kept = [launch(stream.cuda_stream) for launch in captured]
            except BaseException:
                with suppress(Exception):  # of a capture that failed; the launch says why
                    graph.capture_end()
                raise
            graph.capture_end()
            del kept
            graph.instantiate()
        return CudaGraphChain(self, graph, captured)

    def single(self, before: CudaGraphChain, launch: Launch) -> Sample:
        """One launch, enqueued while the device still works at the chain ``before``: so neither the host
        nor the copies that the launch does not read are in its time."""

        def sample() -> float:
            before.enqueue()
            with self.timing() as elapsed:
                self.enqueue(launch)
            return elapsed()

        return sample

    def enqueue(self, launch: Launch) -> None:
        """Launch it on the clock's stream, which is torch's current one meanwhile."""
        with self._torch.cuda.stream(self.stream):
            launch(self.stream.cuda_stream)

    @contextmanager
    def timing(self) -> Iterator[Sample]:
        """Between two events on the clock's stream; what is yielded waits for the second, and then
        returns the microseconds from one to the other."""
        start, stop = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))

        def elapsed() -> float:
            stop.synchronize()
            return float(start.elapsed_time(stop)) * 1e3

        start.record(self.stream)
        yield elapsed
        stop.record(self.stream)


class CudaGraphChain:
    """A :class:`Chain` in a CUDA graph; it owns its launches, and they the operands."""

    def __init__(self, clock: CudaGraphClock, graph: Any, captured: Sequence[Launch]) -> None:
        self._clock, self._graph, self._captured = clock, graph, captured
        self.launches = len(captured)

    @property
    def handle(self) -> int:
        """The driver's CUgraph of what was captured."""
        return int(self._graph.raw_cuda_graph())

    def enqueue(self) -> None:
        self._clock.enqueue(lambda stream: self._graph.replay())

    def time(self) -> float:
        with self._clock.timing() as elapsed:
            self.enqueue()
        return elapsed()


class Instant:
    """A moment on a CUDA stream. The difference of two is seconds of device time; taking it waits for the
    later one.

    Args:
        event: recorded, with timing enabled.
    """

    def __init__(self, event: Any) -> None:
        self._event = event

    def __sub__(self, earlier: Instant) -> float:
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1e3  # milliseconds


def event_timer() -> Instant:
    """Now, on torch's current stream: ``@pytest.mark.benchmark(timer=event_timer)``."""
    import torch

    event: Any = torch.cuda.Event(enable_timing=True)
    event.record()
    return Instant(event)
