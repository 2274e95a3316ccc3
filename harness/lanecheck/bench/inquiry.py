"""Measures the facts from which the doubts about a timing follow: of the very launches that were timed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import cycle, islice

import numpy as np

from lanecheck.bench.correctness import Ordinary
from lanecheck.bench.doubts import (
    Doubling,
    Enqueue,
    Facts,
    Operands,
    Outputs,
    Placement,
    Replay,
)
from lanecheck.bench.plan import MOVED, Copy, Workload
from lanecheck.bench.rig import Rig
from lanecheck.bench.timing import Chain, Launch
from lanecheck.observation import POISON
from lanecheck.subject import Bits, Tensor

TRIES = 10
"""Of every measurement of time."""
GRACE = 0.1
"""Seconds for work that a rig does not know of and cannot wait for, when nothing seems to run any more."""

Span = tuple[int, int]
"""A first address and a size in bytes."""


def inquire(
    workload: Workload,
    copies: Sequence[Copy],
    chain: Chain,
    ordinary: Ordinary,
    rig: Rig,
    persisting_before: int | None,
) -> Facts:
    """Look behind a timing that is over. Afterwards the copies hold other inputs.

    Args:
        copies: at least two.
        chain: of the copies' launches, the one that was timed.
        persisting_before: what :meth:`~lanecheck.bench.rig.Rig.persisting_bytes` said before it.
    """
    launches = [copy.launch for copy in copies]
    twice = rig.chain(launches * (2 * chain.launches // len(launches)))
    return Facts(
        replays=tuple(_replay(chain, rig) for _ in range(TRIES)),
        doublings=tuple(
            Doubling(once_us=_warmed(chain), twice_us=_warmed(twice)) for _ in range(TRIES)
        ),
        enqueues=tuple(_enqueue(launch, rig) for launch in islice(cycle(launches), TRIES)),
        placement=_placement(workload, copies, rig, persisting_before),
        operands=_operands(workload, copies),
        outputs=_outputs(workload, copies, chain, ordinary, rig),  # the last: it exchanges inputs
    )


def covered(spans: Iterable[Span]) -> int:
    """How many addresses lie in any of the spans."""
    total = end = 0
    for start, size in sorted(spans):
        total += max(0, start + size - max(start, end))
        end = max(end, start + size)
    return total


def overlap(copies: Sequence[Sequence[Span]]) -> tuple[int, int]:
    """Addresses that copies have in common, counted once for each copy too many; and those that are
    covered besides the largest copy's."""
    own = [covered(spans) for spans in copies]
    everything = covered(span for spans in copies for span in spans)
    return sum(own) - everything, everything - max(own)


def compare(end: Bits, at_stop: Bits, expected: Bits, exchanged: Bits, poison: int) -> Outputs:
    """What became of the elements of one output.

    Args:
        end: its bits when nothing ran any more. at_stop: when the timer had stopped.
        expected: of an ordinary launch on the same inputs. exchanged: on the other inputs.
        poison: what they were before.
    """
    right = end == expected
    late = right & (at_stop != expected)
    untouched = ~right & (end == poison)
    stale = ~right & ~untouched & (end == exchanged)
    return Outputs(
        elements=end.size,
        late=int(late.sum()),
        untouched=int(untouched.sum()),
        stale=int(stale.sum()),
        wrong=int((~right & ~untouched & ~stale).sum()),
    )


def _warmed(chain: Chain) -> float:
    chain.enqueue()
    return chain.time()


def _replay(chain: Chain, rig: Rig) -> Replay:
    rig.settle()
    start = time.perf_counter_ns()
    timed = chain.time()
    rig.settle()
    return Replay(timed_us=timed, wall_us=(time.perf_counter_ns() - start) / 1e3)


def _enqueue(launch: Launch, rig: Rig) -> Enqueue:
    rig.settle()
    wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
    rig.enqueue(launch)
    cpu_us, wall_us = (time.thread_time_ns() - cpu) / 1e3, (time.perf_counter_ns() - wall) / 1e3
    return Enqueue(wall_us=wall_us, cpu_us=cpu_us)


def _placement(
    workload: Workload, copies: Sequence[Copy], rig: Rig, persisting_before: int | None
) -> Placement:
    moved = [name for name, tensor in workload.given.items() if tensor.role in MOVED]
    shared, apart = overlap(
        [[(copy.memory[name].address, copy.memory[name].size) for name in moved] for copy in copies]
    )
    return Placement(
        shared_bytes=shared,
        apart_bytes=apart,
        l2_bytes=rig.l2_bytes,
        persisting_before=persisting_before,
        persisting_after=rig.persisting_bytes(),
    )


def _operands(workload: Workload, copies: Sequence[Copy]) -> Operands:
    drawn = workload.placed(workload.inputs)
    read = [name for name, tensor in workload.given.items() if tensor.role in ("input", "packed")]
    held = sum(drawn[name].size for name in read)
    differing = ones = 0
    for copy in copies:
        for name in read:
            contents = copy.memory[name].read()
            differing += int(np.count_nonzero(contents != drawn[name]))
            ones += int(np.bitwise_count(contents).sum(dtype=np.int64)) if copy is copies[0] else 0
    dense = 8 * sum(bits.nbytes for bits in workload.inputs.values())  # padding has to be zeros
    return Operands(
        bytes=held * len(copies), differing_bytes=differing, zero_bits=max(0.0, 1 - ones / dense)
    )


def _outputs(
    workload: Workload, copies: Sequence[Copy], chain: Chain, ordinary: Ordinary, rig: Rig
) -> Outputs:
    rig.settle()
    time.sleep(GRACE)  # or a launch from before would write what the replay should
    written = [tensor for tensor in workload.given.values() if tensor.role == "output"]
    others = workload.placed(workload.others)
    for copy in copies[1::2]:
        for name, tensor in workload.given.items():
            if tensor.role in ("input", "packed"):
                copy.memory[name].write(others[name])
    for copy in copies:
        for tensor in written:
            poison = np.full(tensor.span, POISON[0][tensor.dtype], tensor.item)
            copy.memory[tensor.name].write(poison.view(np.uint8))

    def look() -> list[list[Bits]]:
        return [[_elements(copy, tensor) for tensor in written] for copy in copies]

    def compared(end: list[list[Bits]], at_stop: list[list[Bits]]) -> Outputs:
        parts = []
        for index, outputs in enumerate(zip(end, at_stop)):
            right, exchanged = ordinary.drawn, ordinary.others
            if index % 2:
                right, exchanged = exchanged, right
            for tensor, last, first in zip(written, *outputs):
                name, poison = tensor.name, POISON[0][tensor.dtype]
                parts.append(compare(last, first, right[name], exchanged[name], poison))
        return _total(parts)

    rig.settle()
    chain.time()
    at_stop = look()
    rig.settle()
    found = compared(look(), at_stop)
    if found.untouched or found.stale or found.wrong:  # for good, or not yet right
        time.sleep(GRACE)
        found = compared(look(), at_stop)
    return found


def _elements(copy: Copy, tensor: Tensor) -> Bits:
    return tensor.view(copy.memory[tensor.name].read())


def _total(parts: Iterable[Outputs]) -> Outputs:
    each = [part.model_dump() for part in parts]
    return Outputs(**{name: sum(part[name] for part in each) for name in Outputs.model_fields})
