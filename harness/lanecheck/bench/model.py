"""The record of a benchmark: plain, strict, complete enough to judge again without the GPU.

Derived numbers are kept beside the raw samples, and a record whose verdict does not follow from its
evidence cannot be made: no speed without correctness, none faster than memory, none whose own timing
is in doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lanecheck.bench.doubts import Facts, doubts
from lanecheck.verdict import Outcome

#: Oracles that look at the numbers; one of them must have spoken.
NUMERIC = frozenset({"integers", "bits"})
FASTER_THAN_MEMORY = "faster than memory: a fault of the benchmark"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Spread(_Strict):
    """Median and quartiles."""

    median: float
    q1: float
    q3: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value; quartiles interpolate between the values, ends included."""
        if len(values) == 1:
            return cls(median=values[0], q1=values[0], q3=values[0])
        q1, _, q3 = quantiles(values, n=4, method="inclusive")
        return cls(median=median(values), q1=q1, q3=q3)

    @classmethod
    def of_ratios(cls, above: Sequence[float], below: Sequence[float]) -> Spread:
        """Of ``above / below`` round by round."""
        return cls.of([a / b for a, b in zip(above, below, strict=True)])

    @property
    def width(self) -> float:
        """The distance between the quartiles."""
        return self.q3 - self.q1


class Absent(_Strict):
    """Something that could not take part, and why."""

    name: str
    reason: str


class Environment(_Strict):
    """The GPU and what drives it; None for what it does not tell."""

    gpu: str
    capability: str
    sms: int
    l2_bytes: int
    memory_bytes: int
    memory_clock_mhz: int | None
    driver: str | None
    torch: str
    cuda: str


class Reading(_Strict):
    """The state of the GPU at one moment; None for what it does not tell."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    power_limit_w: float | None
    clock_event_reasons: tuple[str, ...] | None
    other_processes: int | None
    """Processes that compute there; in a container this one may count itself."""


class Telemetry(_Strict):
    before: Reading | Absent
    after: Reading | Absent


class Judgement(_Strict):
    """One oracle's verdict on one case of a benchmarked shape."""

    line: str
    oracle: str
    outcome: Outcome
    evidence: str = ""


class Traffic(_Strict):
    """Bytes that one launch must move, and how they are counted."""

    formula: str
    bytes: int = Field(gt=0)


class Measurement(_Strict):
    """One contender's times."""

    name: str
    detail: str = ""
    samples_us: tuple[float, ...] = Field(min_length=1)
    """Microseconds a launch, one a round; a round has the same index in every contender."""
    time_us: Spread
    gbps: float
    """The traffic over the median time, in 10^9 bytes a second."""

    @classmethod
    def of(cls, name: str, samples: Sequence[float], size: int, detail: str = "") -> Measurement:
        """``samples`` in microseconds a launch, ``size`` in bytes a launch."""
        time = Spread.of(samples)
        return cls(
            name=name,
            detail=detail,
            samples_us=tuple(samples),
            time_us=time,
            gbps=size / time.median / 1e3,
        )


class Timing(_Strict):
    """The contenders of one shape, in one run.

    Attributes:
        copies: copies of the operands that launches rotate over.
        absent: peers, and modes of the subject, that could not take part.
        share_of_ceiling: the ceiling's time over the subject's, round by round.
        speedup: each peer's time over the subject's, round by round; above 1 the subject is faster.
        copy_ceiling: of a copy that reads and writes as many bytes in all as the subject moves; None in
            records from before there was one.
        modes: the subject timed in other ways, each named, with its method as the detail. In rounds of
            their own: equal indices mean nothing between these and the contenders.
        discarded: rounds in which the GPU was held back, and which count for nobody.
        held_back: by what.
        facts: what the doubts about this timing follow from; None in records from before there were any.
    """

    method: str
    copies: int
    subject: Measurement
    ceiling: Measurement
    peers: tuple[Measurement, ...]
    absent: tuple[Absent, ...]
    share_of_ceiling: Spread
    speedup: dict[str, Spread]
    copy_ceiling: Measurement | None = None
    modes: tuple[Measurement, ...] = ()
    discarded: int = Field(default=0, ge=0)
    held_back: tuple[str, ...] = ()
    facts: Facts | None = None

    @classmethod
    def of(
        cls,
        *,
        method: str,
        copies: int,
        subject: Measurement,
        ceiling: Measurement,
        peers: Sequence[Measurement] = (),
        absent: Sequence[Absent] = (),
        copy_ceiling: Measurement | None = None,
        modes: Sequence[Measurement] = (),
        discarded: int = 0,
        held_back: Sequence[str] = (),
        facts: Facts | None = None,
    ) -> Timing:
        own = subject.samples_us
        return cls(
            method=method,
            copies=copies,
            subject=subject,
            ceiling=ceiling,
            peers=tuple(peers),
            absent=tuple(absent),
            share_of_ceiling=Spread.of_ratios(ceiling.samples_us, own),
            speedup={peer.name: Spread.of_ratios(peer.samples_us, own) for peer in peers},
            copy_ceiling=copy_ceiling,
            modes=tuple(modes),
            discarded=discarded,
            held_back=tuple(held_back),
            facts=facts,
        )

    @property
    def faster_than_memory(self) -> bool:
        """Whether the subject beats the read ceiling of its own bytes by more than the spread."""
        return self.share_of_ceiling.median - 1 > self.share_of_ceiling.width

    @property
    def fault(self) -> str | None:
        """Why this timing counts for nothing, or None if it counts."""
        kept = len(self.subject.samples_us)
        if (
            self.discarded > kept
        ):  # then the GPU's ordinary state is another than the one that is left
            return disturbed(self.discarded, self.discarded + kept, self.held_back)
        if self.facts and (found := doubts(self.facts)):
            return "; ".join(map(str, found))
        return FASTER_THAN_MEMORY if self.faster_than_memory else None


class Row(_Strict):
    """One benchmarked shape.

    Attributes:
        void: why its numbers count for nothing, or None.
        untimed: why it has none although it was found correct, or None.
    """

    params: dict[str, int | str]
    traffic: Traffic
    correctness: tuple[Judgement, ...]
    timing: Timing | None
    void: str | None
    untimed: str | None = None

    @classmethod
    def of(
        cls,
        params: dict[str, int | str],
        traffic: Traffic,
        correctness: Sequence[Judgement],
        timing: Timing | None,
        untimed: str | None = None,
    ) -> Row:
        return cls(
            params=params,
            traffic=traffic,
            correctness=tuple(correctness),
            timing=timing,
            void=void(correctness, timing, untimed),
            untimed=untimed,
        )

    @model_validator(mode="after")
    def _follows(self) -> Row:
        if self.timing and doubt(self.correctness):
            raise ValueError("a shape whose correctness did not pass has no timing")
        if self.timing and self.untimed:
            raise ValueError("a shape with a timing has no reason to lack it")
        if self.void != (reason := void(self.correctness, self.timing, self.untimed)):
            raise ValueError(f"void is {self.void!r}, but the evidence says {reason!r}")
        return self


class BenchHeader(_Strict):
    """What a benchmark is of; the log of one with the same header can be gone on with.

    Attributes:
        benchmark: digest of the benchmark's own code. unit: of the GPU's identifier.
    """

    subject: str
    benchmark: str
    library_sha256: str
    unit: str
    rounds: int
    seed: int


class RowEntry(_Strict):
    """A row in a log, and the seconds that it took."""

    seconds: float
    row: Row


class BenchRecord(_Strict):
    """One run of the benchmark in one process."""

    format: Literal[1] = 1
    subject: str
    library_sha256: str
    seed: int
    rounds: int
    environment: Environment
    telemetry: Telemetry
    rows: tuple[Row, ...] = Field(min_length=1)

    @property
    def valid(self) -> bool:
        """Whether every row counts."""
        return all(row.void is None for row in self.rows)


def doubt(correctness: Sequence[Judgement]) -> str | None:
    """Why these verdicts do not show that the subject is correct, or None if they do."""
    for judgement in correctness:
        if judgement.outcome is not Outcome.PASS:
            return f"{judgement.oracle}: {judgement.outcome.value}: {judgement.evidence}"
    if not NUMERIC & {judgement.oracle for judgement in correctness}:
        return "no oracle looked at the numbers"
    return None


def void(
    correctness: Sequence[Judgement], timing: Timing | None, untimed: str | None = None
) -> str | None:
    """Why a row's numbers count for nothing, or None if they count."""
    if reason := doubt(correctness):
        return f"not shown correct: {reason}"
    if timing is None:
        return untimed or "not timed"
    return timing.fault


def disturbed(discarded: int, rounds: int, reasons: Sequence[str]) -> str:
    """That too many rounds were discarded, in words."""
    return f"the GPU was held back in {discarded} of {rounds} rounds ({', '.join(reasons)})"
