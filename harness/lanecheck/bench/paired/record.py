"""The record of a paired comparison: plain, strict, complete enough to judge again without the machine.

A log holds it line by line while it comes about: first what is compared, then each arm's correctness,
then every process. A :class:`PairingRecord` is the whole, and none can be made whose verdict does not
follow from its processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from statistics import median
from typing import Annotated, Literal, TypeVar, Union

from pydantic import Field, TypeAdapter, model_validator

from lanecheck.bench.machine import Environment, Telemetry
from lanecheck.bench.paired.gate import Comparison, Verdict
from lanecheck.bench.paired.pairing import SIDES, Kind, Side, Turn, compared, concluded, schedule
from lanecheck.bench.paired.rates import Published
from lanecheck.bench.strict import Strict

Values = dict[str, Union[int, str]]
STATE_TOLERANCE = 0.03
"""Of the least launch's time. In processes alike it differs by some 0.1 %."""
Microseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Code(Strict):
    """What an arm executes.

    Attributes:
        gpu: digest of the GPU's machine code and of what governs its launch; None if there is none.
        library: digest of the library's host code; None if there is no library.
        files: digest of each file of the kernel's package outside its CUDA sources, by name.
    """

    gpu: str | None
    library: str | None
    files: dict[str, str]

    def changes(self, other: Code) -> Iterator[str]:
        """What differs, in words."""
        if self.gpu != other.gpu:
            yield "the GPU's machine code"
        if self.library != other.library:
            yield "the library's host code"
        names = sorted(self.files.keys() | other.files.keys())
        if files := [name for name in names if self.files.get(name) != other.files.get(name)]:
            yield ", ".join(files[:3]) + (f" and {len(files) - 3} more files" * (len(files) > 3))


class ArmRecord(Strict):
    """One arm.

    Attributes:
        given: what the user named.
        commit: of a revision; None for a folder.
        code: what it executes.
        configs: the parameters of its launches, by gated config.
    """

    given: str
    commit: str | None
    code: Code
    configs: dict[str, Values]


class Header(Strict):
    """What is compared, and how: a log goes on only under an equal one.

    Attributes:
        benchmark: digest of the code that times.
        machine: the GPU's name, or what the host is.
        unit: digest of the GPU's identifier; empty for host execution.
        environment: the GPU and what drives it; None for host execution, without torch, and in old records.
        pairs: of base and head, and as many of base and base again.
        rounds: samples of every config in a process.
    """

    entry: Literal["header"] = "header"
    subject: str
    benchmark: str
    device: Literal["host", "cuda"]
    arch: str
    machine: str
    unit: str
    seed: int
    pairs: int = Field(ge=1)
    rounds: int = Field(ge=1)
    base: ArmRecord
    head: ArmRecord
    environment: Environment | None = None

    @property
    def changes(self) -> list[str]:
        """What of the code differs, in words."""
        return [*self.base.code.changes(self.head.code)]

    @property
    def processes(self) -> int:
        """How many a whole comparison has: two a pair, of base and head and of the control."""
        return 4 * self.pairs


def unlike(first: Environment | None, second: Environment | None) -> list[str]:
    """The fields that tell two environments apart; ``environment`` where only one is known."""
    if first is None or second is None:
        return [] if first is second else ["environment"]
    fields = Environment.model_fields
    return [name for name in fields if getattr(first, name) != getattr(second, name)]


class ShownRecord(Strict):
    """The oracles found a config of an arm's library correct.

    Attributes:
        output: digest of what it computed from the operands that are timed.
    """

    entry: Literal["shown"] = "shown"
    arm: Side
    config: str
    output: str


class ProcessRecord(Strict):
    """One fresh process: its place in the order, and the median of its rounds for every config.

    Attributes:
        least_us: the same of the least launch there is; None for host execution, and in old records.
    """

    entry: Literal["process"] = "process"
    pair: int
    kind: Kind
    side: Side
    medians_us: dict[str, Microseconds]
    telemetry: Telemetry | None
    seconds: float
    least_us: Microseconds | None = None

    @property
    def turn(self) -> Turn:
        return Turn(self.pair, self.kind, self.side)


class StateRecord(Strict):
    """How long the least launch takes in some processes of base before those that count.

    A GPU may serve one process otherwise than the others: on an H200 every launch of 3 processes in 144 took
    0.2 µs less, 7 % of a small one. What such a process says of the subject says nothing of its code.
    """

    entry: Literal["state"] = "state"
    least_us: tuple[Microseconds, ...] = Field(min_length=1)

    @property
    def usual_us(self) -> float:
        return median(self.least_us)

    def refuses(self, least_us: float) -> bool:
        """Whether a process of which the least launch takes so long met another state."""
        return abs(least_us / self.usual_us - 1) > STATE_TOLERANCE


class LostRecord(Strict):
    """A process that counts for nothing, and why. It was repeated."""

    entry: Literal["lost"] = "lost"
    pair: int
    kind: Kind
    side: Side
    reason: str


Entry = Union[ShownRecord, StateRecord, ProcessRecord, LostRecord]
ENTRY: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="entry")])
E = TypeVar("E", ShownRecord, StateRecord, ProcessRecord, LostRecord)


def only(kind: type[E], entries: Iterable[Entry]) -> tuple[E, ...]:
    """The entries of one kind, in their order."""
    return tuple(each for each in entries if isinstance(each, kind))


class PairingRecord(Strict):
    """A comparison and its verdict.

    Attributes:
        state: of the GPU; None for host execution, and in old records.
        refusal: why there is no complete set of processes; None if there is, or none was needed.
        wrong: whether that is because a kernel was shown wrong.
        configs: the gate's verdicts; empty where nothing was timed, or not enough.
        rates: how often the gate errs on this kind of machine, as recorded when it gave the verdict; None
            where nothing was recorded, or nothing gated.
        created: when it came to its verdict, UTC; None in old records.
    """

    format: Literal[1] = 1
    header: Header
    shown: tuple[ShownRecord, ...]
    processes: tuple[ProcessRecord, ...]
    lost: tuple[LostRecord, ...]
    refusal: str | None
    state: StateRecord | None = None
    configs: dict[str, Comparison]
    verdict: Verdict
    cause: str
    rates: Published | None = None
    created: datetime | None = None
    wrong: bool = False

    @classmethod
    def of(
        cls,
        header: Header,
        entries: Sequence[Entry],
        refusal: str | None,
        created: datetime | None = None,
        wrong: bool = False,
    ) -> PairingRecord:
        """The verdict that a log's entries give."""
        processes = only(ProcessRecord, entries)
        configs, verdict, cause = _judged(header, processes, refusal)
        return cls(
            header=header,
            shown=only(ShownRecord, entries),
            processes=processes,
            lost=only(LostRecord, entries),
            refusal=refusal,
            state=next(iter(only(StateRecord, entries)), None),
            configs=configs,
            verdict=verdict,
            cause=cause,
            created=created,
            wrong=wrong,
        )

    @model_validator(mode="after")
    def _follows(self) -> PairingRecord:
        shown = {(each.arm, each.config) for each in self.shown}
        needed = {(side, config) for side in SIDES for config in self.header.base.configs}
        if self.processes and shown != needed:
            raise ValueError("an arm that was not shown correct has no times")
        if self.state and any(
            each.least_us is None or self.state.refuses(each.least_us) for each in self.processes
        ):
            raise ValueError("a process counts that met another state of the GPU")
        planned = schedule(self.header.pairs, self.header.seed)[: len(self.processes)]
        if [each.turn for each in self.processes] != planned:
            raise ValueError("the processes are not those that the seed draws")
        configs, verdict, cause = _judged(self.header, self.processes, self.refusal)
        if (self.configs, self.verdict, self.cause) != (configs, verdict, cause):
            raise ValueError(f"the verdict is {self.verdict.value}, but the processes give {cause}")
        return self


def _judged(
    header: Header, processes: Sequence[ProcessRecord], refusal: str | None
) -> tuple[dict[str, Comparison], Verdict, str]:
    if refusal is not None:
        return {}, Verdict.INSUFFICIENT, refusal
    if not processes and not header.changes:
        return {}, Verdict.SAME, "same machine code and same host code: there is nothing to time"
    if len(processes) != header.processes:
        missing = f"{len(processes)} of {header.processes} processes ran"
        return {}, Verdict.INSUFFICIENT, missing
    found = compared([each.turn for each in processes], [each.medians_us for each in processes])
    verdict, cause = concluded(found)
    return found, verdict, cause
