"""Device time of one launch, with a cold L2.

A graph holds launches back to back, each over the next copy of its operands, and there are so many
copies that whatever a launch reads has long left the L2. CUDA events time whole replays. Contenders
are sampled in turn, in an order drawn anew each round, so that a drift of the GPU's clocks meets
them all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

METHOD = "cuda graph, rotating buffers, cold L2"
ROTATION = 600_000_000
"""Bytes of other copies that pass, at least, between two uses of one."""
L2_MULTIPLE = 8
"""… and at least this many times the L2."""
GRAPH_LAUNCHES = 128
"""Launches in a graph, at least: the microsecond between two graphs becomes noise."""

Launch = Callable[[int], None]
"""Enqueues one launch on a stream, given by its handle."""
Sample = Callable[[], float]
"""Takes one sample: microseconds a launch."""


class Clock(Protocol):
    """Turns launches, one for each copy of the operands, into something that can be sampled."""

    def prepare(self, launches: Sequence[Launch]) -> Sample: ...


def copies(size: int, l2: int) -> int:
    """How many copies of ``size`` bytes of operands to rotate over, with ``l2`` bytes of L2."""
    apart = max(ROTATION, L2_MULTIPLE * l2)
    return 1 + -(-apart // size)


def rotation(launches: Sequence[Launch]) -> list[Launch]:
    """The launches of one graph: whole turns over the copies."""
    turns = -(-GRAPH_LAUNCHES // len(launches))
    return [*launches] * turns


def interleave(
    samples: Mapping[str, Sample], rounds: int, rng: random.Random
) -> dict[str, tuple[float, ...]]:
    """Sample every contender once a round, in random order.

    Returns:
        Microseconds a launch by contender, one a round, so that equal indices belong together.
    """
    taken: dict[str, list[float]] = {name: [] for name in samples}
    for _ in range(rounds):
        for name in rng.sample(list(samples), len(samples)):
            taken[name].append(samples[name]())
    return {name: tuple(times) for name, times in taken.items()}


class CudaGraphClock:
    """The device's clock: CUDA events around the replay of a graph, on a stream of its own."""

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self._stream = self._torch.cuda.Stream()

    def prepare(self, launches: Sequence[Launch]) -> Sample:
        torch, stream = self._torch, self._stream
        turns = rotation(launches)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # loads modules, makes handles and workspaces
            for launch in launches:
                launch(stream.cuda_stream)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            graph.capture_begin()
            try:
                for launch in turns:
                    launch(stream.cuda_stream)
            finally:
                graph.capture_end()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def sample() -> float:
            with torch.cuda.stream(stream):
                graph.replay()  # warm-up; while it runs, the host enqueues the timed replay
                start.record()
                graph.replay()
                stop.record()
            stop.synchronize()
            return float(start.elapsed_time(stop)) * 1e3 / len(turns)  # `turns` owns the operands

        return sample
