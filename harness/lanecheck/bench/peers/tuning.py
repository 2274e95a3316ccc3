"""Choosing a peer's fastest variant the way the race times it.

Tuners time one launch at a time, often over operands that their own warm-up left in the L2, and from the
host, where a small launch is lost in the gap between two events; the variant that wins warm is not the
one that wins cold. Here each variant runs as it will in the race: a CUDA graph, back to back, over
rotating copies of its operands, the variants in random order.

Of thousands of copies, capturing a launch over each for every variant would take seconds. Then the variants
are captured over the first few only, and before each sample the others pass through the L2: between two
uses of a copy lie all of the others, as in the race.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

from lanecheck.bench.peers.product import (
    FAILURES,
    Copies,
    Multiply,
    Operands,
    Unavailable,
    error,
    refuse_wrong,
    why,
)
from lanecheck.bench.timing import (
    GRAPH_LAUNCHES,
    Chain,
    CudaGraphClock,
    Launch,
    Sample,
    interleave,
    sampled,
)

ROUNDS = 3
FEW = GRAPH_LAUNCHES
"""Copies that each variant is captured over if there are twice as many, so that the others keep the device
busy while the host enqueues what is timed."""

Variant = Callable[[Operands], Any]
"""Enqueues the product of one copy; returns y."""


def fastest(
    variants: Sequence[Variant], copies: Copies, clock: CudaGraphClock | None = None
) -> list[Multiply]:
    """The fastest of the variants that run and are right, for each copy.

    Args:
        variants: what to choose from.
        copies: what they are timed over. Without a clock, the first variant that is right is taken on a
            CPU, where nothing is raced.
        clock: times them; by default the device's.

    Raises:
        Unavailable: why the last variant cannot take part, if none can.
    """
    made = list(copies)
    right = _right(variants, made[0], copies.product.reference)
    if clock is None and copies.device.type == "cuda":
        clock = CudaGraphClock()
    chosen = right[0] if clock is None or len(right) == 1 else _timed(right, made, clock)
    return [partial(chosen, each) for each in made]


def _right(variants: Sequence[Variant], copy: Operands, reference: Any) -> list[Variant]:
    found: list[Variant] = []
    reason = "it has no kernel for this shape"
    for variant in variants:
        try:
            refuse_wrong(error(partial(variant, copy), reference))
            found.append(variant)
        except FAILURES as failure:  # too much shared memory, a size that it does not know
            reason = why(failure)
    if not found:
        raise Unavailable(reason)
    return found


def _timed(variants: Sequence[Variant], made: Sequence[Operands], clock: CudaGraphClock) -> Variant:
    few, others = (made[:FEW], made[FEW:]) if len(made) >= 2 * FEW else (made, [])
    samples: dict[str, Sample] = {}
    before, reason = None, ""
    for index, variant in enumerate(variants):
        try:
            chain = clock.chain(_launches(variant, few))
            if others and before is None:
                before = clock.chain(_launches(variant, others))
            samples[str(index)] = clock.single(before, _replay(chain)) if before else sampled(chain)
        except FAILURES as failure:  # it waits for the device, or asks what a graph cannot hold
            reason = why(failure)
    if not samples:
        raise Unavailable(reason)
    times = interleave(samples, ROUNDS, random.Random(0)).times
    return variants[int(min(times, key=lambda index: median(times[index])))]


def _launches(variant: Variant, copies: Sequence[Operands]) -> list[Launch]:
    def launch(copy: Operands) -> Launch:
        return lambda stream: variant(copy)

    return [launch(copy) for copy in copies]


def _replay(chain: Chain) -> Launch:
    """All of a chain as one launch."""
    return lambda stream: chain.enqueue()
