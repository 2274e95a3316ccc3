"""Choosing a peer's fastest variant the way the race times it.

Tuners time one launch at a time, often over operands that their own warm-up left in the L2, and from the
host, where a small launch is lost in the gap between two events; the variant that wins warm is not the
one that wins cold. Here each variant runs as it will in the race: a CUDA graph, back to back, over
rotating copies of its operands, the variants in random order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

from lanecheck.bench.peers.peer import Multiply
from lanecheck.bench.peers.product import Operands
from lanecheck.bench.timing import Clock, CudaGraphClock, Launch, interleave

ROUNDS = 3

Variant = Callable[[Operands], Any]
"""Enqueues the product of one copy; returns y."""


def fastest(
    variants: Sequence[Variant], copies: Sequence[Operands], clock: Clock | None = None
) -> list[Multiply]:
    """The fastest of the variants that run at all, for each copy.

    Args:
        variants: at least one.
        copies: what they are timed over, all on one device. Without a clock, the first variant that
            runs is taken on a CPU, where nothing is raced.
        clock: times them; by default the device's.

    Raises:
        Exception: what the last variant raised, if none of them runs.
    """
    running = _running(variants, copies[0])
    if clock is None and copies[0].x.is_cuda:
        clock = CudaGraphClock()
    chosen = running[0] if clock is None or len(running) == 1 else _timed(running, copies, clock)
    return [partial(chosen, each) for each in copies]


def _running(variants: Sequence[Variant], copy: Operands) -> list[Variant]:
    found: list[Variant] = []
    for last, variant in enumerate(variants, 1 - len(variants)):
        try:
            variant(copy)
        except Exception:  # too much shared memory, a size that it does not know
            if last == 0 and not found:
                raise  # not kept: its traceback would keep every copy in memory
        else:
            found.append(variant)
    return found


def _timed(variants: Sequence[Variant], copies: Sequence[Operands], clock: Clock) -> Variant:
    def launch(variant: Variant, copy: Operands) -> Launch:
        return lambda stream: variant(copy)

    samples = {
        str(index): clock.prepare([launch(variant, copy) for copy in copies])
        for index, variant in enumerate(variants)
    }
    times = interleave(samples, ROUNDS, random.Random(0))
    return variants[int(min(times, key=lambda index: median(times[index])))]
