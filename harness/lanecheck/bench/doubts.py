"""Reasons to doubt a time: facts that were measured beside it, and the faults that follow from them.

Not seen here: a kernel whose own cache hints keep some of its operands in the L2. Where ten times the L2
passes between two uses, a tenth can stay at most; :mod:`.ncu` counts what comes from DRAM.

No threshold here is an absolute speed but one: facts are counts of bytes and elements, which are right or
not, and ratios of times, which a healthy benchmark keeps far from their limit on a loaded machine too.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from pydantic import Field

from lanecheck.bench.strict import Strict
from lanecheck.bench.timing import L2_MULTIPLE

DENSE = 0.55
"""Most zero bits of dense operands, a share. BF16 normals have 0.39, random bits 0.50; with every other
value zero, normals have 0.70, and with one in four 0.54. Zeros toggle no wires, so clocks stay higher."""
APART = 2.0
"""Most by which timer and wall may differ, a factor. In the best of a few replays they agree within a few
per cent; a timer that waits for nothing sees less than a tenth."""
FOLLOWS = 2**0.5
"""Least factor that twice as many launches take: halfway, on a scale of ratios, from 1, a time that has
nothing to do with them, to 2."""
SLEPT_US = 200.0
"""Least microseconds without the CPU that make a sleep. An enqueue takes some ten all told; the shortest
sleep that anyone writes, a millisecond."""
SLEPT = 0.5
"""… and the least share of the launch's wall time. Of a few launches the least idle one counts, because
the system may take the CPU away from any."""


class Fault(str, Enum):
    """What is wrong with a timing."""

    SLEEP = "a sleep"
    CACHED = "a cached output"
    SIDE_STREAM = "work on a side stream"
    SKIPPED = "skipped work"
    PERSISTING = "persisting L2"
    SPARSE = "sparse inputs"
    ALTERED = "altered inputs"
    WARM = "warm buffers"
    UNSYNCHRONIZED = "an unsynchronized timer"
    CONSTANT = "a time that does not follow the work"


OF_TIMES = frozenset({Fault.SLEEP, Fault.UNSYNCHRONIZED, Fault.CONSTANT})
"""What times show, which mean nothing while others use the device as well."""


class Operands(Strict):
    """What the timed launches read, looked at after the last of them.

    Attributes:
        elements: of all copies of the inputs and packed tensors.
        differing: how many of these are not those drawn.
        zero_bits: share of the bits of one copy that are zero, padding apart.
    """

    elements: int = Field(gt=0)
    differing: int = Field(ge=0)
    zero_bits: float = Field(ge=0, le=1)


class Placement(Strict):
    """Where the copies lie, and what the L2 keeps of them.

    Attributes:
        shared_bytes: addresses that two copies have in common.
        apart_bytes: addresses that the other copies cover: what passes between two uses of one.
        l2_bytes: the L2.
        persisting_before: bytes of the L2 set aside for persisting accesses before the timing, beyond what
            the device sets aside by itself; None if it does not tell.
        persisting_after: … and after it.
        persisting_launches: timed launches that ask the L2 to keep what they read; None likewise.
    """

    shared_bytes: int = Field(ge=0)
    apart_bytes: int = Field(ge=0)
    l2_bytes: int = Field(ge=0)
    persisting_before: int | None
    persisting_after: int | None
    persisting_launches: int | None


class Outputs(Strict):
    """What the timed chain computes when it runs again, against what ordinary launches computed before the
    timing: once over poison, every other copy's inputs exchanged, and once for each input, exchanged alone
    over what a launch before left there. Each element counts once in each run.

    Attributes:
        elements: of all copies' outputs.
        late: right, but not yet when the timer had stopped.
        untouched: poison to the end.
        stale: right for other inputs than it now has.
        wrong: anything else.
    """

    elements: int = Field(gt=0)
    late: int = Field(ge=0)
    untouched: int = Field(ge=0)
    stale: int = Field(ge=0)
    wrong: int = Field(ge=0)


class Replay(Strict):
    """One replay of the timed chain, on a device that was idle before: microseconds by the timer, and by the
    host's clock until the device was idle again."""

    timed_us: float = Field(ge=0)
    wall_us: float = Field(gt=0)


class Doubling(Strict):
    """Microseconds, by the timer, of the timed chain and of one with twice as many of its launches."""

    once_us: float = Field(ge=0)
    twice_us: float = Field(ge=0)


class Enqueue(Strict):
    """One launch without a graph: microseconds until it returned to the host, and of them those in which the
    thread had the CPU."""

    wall_us: float = Field(ge=0)
    cpu_us: float = Field(ge=0)

    @property
    def slept(self) -> bool:
        idle = self.wall_us - self.cpu_us
        return idle > SLEPT_US and idle > SLEPT * self.wall_us


class Facts(Strict):
    """Measured of the subject's own timed launches; times in several tries, of which the best counts.

    Attributes:
        launches: of the timed chain; None in old records, which are of CUDA graphs.
    """

    operands: Operands
    placement: Placement
    outputs: Outputs
    replays: tuple[Replay, ...] = Field(min_length=1)
    doublings: tuple[Doubling, ...] = Field(min_length=1)
    enqueues: tuple[Enqueue, ...] = Field(min_length=1)
    launches: int | None = None


class Doubt(Strict):
    """A fault and what shows it."""

    fault: Fault
    evidence: str

    def __str__(self) -> str:
        return f"{self.fault.value}: {self.evidence}"


def doubts(facts: Facts) -> list[Doubt]:
    """Every fault that the facts show; none if the timing is sound."""
    found = [*_of_time(facts), *_of_outputs(facts.outputs), *_of_data(facts)]
    return [Doubt(fault=fault, evidence=evidence) for fault, evidence in found]


def _of_time(facts: Facts) -> Iterator[tuple[Fault, str]]:
    if all(each.slept for each in facts.enqueues):
        least = min(facts.enqueues, key=lambda each: each.wall_us - each.cpu_us)
        yield (
            Fault.SLEEP,
            f"of the {least.wall_us:.0f} µs of a launch the CPU worked {least.cpu_us:.0f}",
        )
    if not any(1 / APART <= each.timed_us / each.wall_us <= APART for each in facts.replays):
        best = max(facts.replays, key=lambda each: each.timed_us / each.wall_us)
        yield (
            Fault.UNSYNCHRONIZED,
            f"it says {best.timed_us:.1f} µs of a replay that takes {best.wall_us:.1f}",
        )
    once, twice = (
        min(getattr(each, name) for each in facts.doublings) for name in ("once_us", "twice_us")
    )
    if twice < FOLLOWS * once:
        yield Fault.CONSTANT, f"{once:.1f} µs, and {twice:.1f} for twice as many launches"


def _of_outputs(outputs: Outputs) -> Iterator[tuple[Fault, str]]:
    of = f"of {outputs.elements} output elements"
    if outputs.late:
        yield Fault.SIDE_STREAM, f"{outputs.late} {of} came after the timer had stopped"
    if outputs.untouched:
        yield Fault.CACHED, f"{outputs.untouched} {of} were not written"
    if outputs.stale:
        yield Fault.CACHED, f"{outputs.stale} {of} belong to other inputs"
    if outputs.wrong:
        yield Fault.SKIPPED, f"{outputs.wrong} {of} are not those of an ordinary launch"


def _of_data(facts: Facts) -> Iterator[tuple[Fault, str]]:
    operands, placement = facts.operands, facts.placement
    if kept := max(placement.persisting_before or 0, placement.persisting_after or 0):
        yield Fault.PERSISTING, f"{kept} bytes of it are set aside"
    if placement.persisting_launches:
        yield (
            Fault.PERSISTING,
            f"{placement.persisting_launches} launches ask it to keep what they read",
        )
    if operands.zero_bits > DENSE:
        yield Fault.SPARSE, f"{operands.zero_bits:.0%} of their bits are zero"
    if operands.differing:
        yield (
            Fault.ALTERED,
            f"{operands.differing} of {operands.elements} elements are not those drawn",
        )
    if placement.shared_bytes:
        yield Fault.WARM, f"copies share {placement.shared_bytes} bytes"
    if placement.apart_bytes < L2_MULTIPLE * placement.l2_bytes:
        yield (
            Fault.WARM,
            f"{placement.apart_bytes} bytes pass between two uses of one, the L2 holds "
            f"{placement.l2_bytes}",
        )
