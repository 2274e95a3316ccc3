"""Measures the facts from which the doubts about a timing follow: of the very launches that were timed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle, islice

from lanecheck.bench.correctness import Expected
from lanecheck.bench.doubts import (
    Doubling,
    Enqueue,
    Facts,
    Operands,
    Outputs,
    Placement,
    Replay,
)
from lanecheck.bench.plan import MOVED, Copies, Workload, held_bytes
from lanecheck.bench.rig import Array, Rig
from lanecheck.bench.timing import Chain, Launch

TRIES = 10
"""Of every measurement of time."""
GRACE = 0.1
"""Seconds for work that a rig does not know of and cannot wait for, when nothing seems to run any more."""

_PIECE = 2**26
"""Elements that are counted at a time."""

Span = tuple[int, int]
"""A first address and a size in bytes."""


def inquire(
    workload: Workload,
    copies: Copies,
    chain: Chain,
    expected: Expected,
    rig: Rig,
    persisting_before: int | None,
) -> Facts:
    """Look behind a timing that is over. Afterwards the copies hold other inputs.

    Args:
        copies: at least two.
        chain: of the copies' launches, the one that was timed.
        persisting_before: what :meth:`~lanecheck.bench.rig.Rig.persisting_bytes` said before it.
    """
    launches = [*copies.launches]
    twice = rig.chain(launches, turns=2 * chain.launches // len(launches))
    return Facts(
        replays=tuple(_replay(chain, rig) for _ in range(TRIES)),
        doublings=tuple(
            Doubling(once_us=_warmed(chain), twice_us=_warmed(twice)) for _ in range(TRIES)
        ),
        enqueues=tuple(_enqueue(launch, rig) for launch in islice(cycle(launches), TRIES)),
        placement=_placement(workload, copies, chain, rig, persisting_before),
        operands=_operands(workload, copies, expected),
        outputs=_outputs(workload, copies, chain, expected, rig),  # the last: it exchanges inputs
        launches=chain.launches,
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


def classified(
    end: Array, at_stop: Array, expected: Array, exchanged: Array, poison: int
) -> Outputs:
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
        elements=math.prod(end.shape),
        late=int(late.sum()),
        untouched=int(untouched.sum()),
        stale=int(stale.sum()),
        wrong=int((~right & ~untouched & ~stale).sum()),
    )


def ones(bits: Array) -> int:
    """How many of 16-bit or 32-bit elements' bits are one, in numpy or in torch, signed or not."""
    total = 0
    flat = bits.reshape(-1)
    for start in range(0, flat.shape[0], _PIECE):
        piece = flat[start : start + _PIECE]
        for half in range(0, 8 * piece.itemsize, 16):
            v = (piece >> half) & 0x5555
            v = v + ((piece >> half + 1) & 0x5555)
            v = (v & 0x3333) + ((v >> 2) & 0x3333)
            v = (v & 0x0F0F) + ((v >> 4) & 0x0F0F)
            total += int(((v & 0x1F) + (v >> 8)).sum())
    return total


def _warmed(chain: Chain) -> float:
    chain.enqueue()
    return round(chain.time(), 2)


def _replay(chain: Chain, rig: Rig) -> Replay:
    rig.settle()
    start = time.perf_counter_ns()
    timed = chain.time()
    rig.settle()
    wall = (time.perf_counter_ns() - start) / 1e3
    return Replay(timed_us=round(timed, 2), wall_us=round(wall, 2))


def _enqueue(launch: Launch, rig: Rig) -> Enqueue:
    rig.settle()
    wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
    rig.enqueue(launch)
    cpu_us, wall_us = (time.thread_time_ns() - cpu) / 1e3, (time.perf_counter_ns() - wall) / 1e3
    return Enqueue(wall_us=wall_us, cpu_us=cpu_us)


def _placement(
    workload: Workload, copies: Copies, chain: Chain, rig: Rig, persisting_before: int | None
) -> Placement:
    moved = [copies.held[name] for name in workload.named(*MOVED)]
    shared, apart = overlap(
        [
            [(held.addresses[index], held.size) for held in moved]
            for index in range(len(copies.launches))
        ]
    )
    return Placement(
        shared_bytes=shared,
        apart_bytes=apart,
        l2_bytes=rig.l2_bytes,
        persisting_before=persisting_before,
        persisting_after=rig.persisting_bytes(),
        persisting_launches=rig.persisting_launches(chain),
    )


def _operands(workload: Workload, copies: Copies, expected: Expected) -> Operands:
    elements = differing = set_bits = 0
    for name in workload.named("input", "packed"):
        held = copies.held[name].elements
        elements += math.prod(held.shape)
        together = max(1, _PIECE // math.prod(held.shape[1:]))
        differing += sum(
            int((held[start : start + together] != expected.inputs[name]).sum())
            for start in range(0, len(held), together)
        )
        set_bits += ones(held[0])
    drawn = workload.named("input", "source").values()  # padding has to be zeros
    dense = 8 * sum(map(held_bytes, drawn))
    return Operands(
        elements=elements, differing=differing, zero_bits=max(0.0, 1 - set_bits / dense)
    )


def _outputs(
    workload: Workload, copies: Copies, chain: Chain, expected: Expected, rig: Rig
) -> Outputs:
    rig.settle()
    time.sleep(GRACE)  # or a launch from before would write what the replay should
    for name, others in expected.others.items():
        copies.held[name].elements[1::2] = others
    copies.poison(workload, rig)

    def compared(end: Mapping[str, Array], at_stop: Mapping[str, Array]) -> Outputs:
        parts = []
        for name, tensor in workload.named("output").items():
            poison = rig.poison(tensor)
            sides = expected.outputs[name], expected.from_others[name]
            for first, (right, exchanged) in enumerate((sides, sides[::-1])):
                last, early = end[name][first::2], at_stop[name][first::2]
                parts.append(classified(last, early, right, exchanged, poison))
        return _total(parts)

    rig.settle()
    chain.time()
    at_stop = copies.outputs(workload)
    rig.settle()
    found = compared(copies.outputs(workload), at_stop)
    if found.untouched or found.stale or found.wrong:  # for good, or not yet right
        time.sleep(GRACE)
        found = compared(copies.outputs(workload), at_stop)
    return _total([found, *_exchanged_alone(workload, copies, chain, expected, rig)])


def _exchanged_alone(
    workload: Workload, copies: Copies, chain: Chain, expected: Expected, rig: Rig
) -> Iterator[Outputs]:
    """Exchange one input at a time, and leave the outputs before in place: so a kernel is caught that skips
    work because its output looks computed, or because one input is the same."""
    for name, values in expected.inputs.items():
        copies.held[name].elements[...] = values
    before, outputs = expected.outputs, workload.named("output")
    for name, right in expected.one_exchanged.items():
        for output in outputs:
            copies.held[output].elements[...] = before[output]
        copies.held[name].elements[...] = expected.others[name]
        rig.settle()
        chain.time()
        rig.settle()
        seen = copies.outputs(workload)
        if not all(bool((bits == right[output]).all()) for output, bits in seen.items()):
            time.sleep(GRACE)  # for good, or not yet right
            seen = copies.outputs(workload)
        for output, bits in seen.items():
            poison = rig.poison(outputs[output])
            yield classified(bits, bits, right[output], before[output], poison)
        copies.held[name].elements[...] = expected.inputs[name]


def _total(parts: Iterable[Outputs]) -> Outputs:
    each = [part.model_dump() for part in parts]
    return Outputs(**{name: sum(part[name] for part in each) for name in Outputs.model_fields})
