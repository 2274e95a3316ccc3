"""The record of a benchmark: plain, strict, complete enough to judge again without the GPU.

Derived numbers are kept beside the raw samples. A record cannot be made whose spreads, ratios or speeds do
not follow from its samples, or whose verdict does not follow from its evidence: no speed without
correctness, none faster than memory, none whose own timing is in doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from statistics import median
from typing import Literal

from pydantic import Field, model_validator

from lanecheck.bench.doubts import Facts, doubts
from lanecheck.bench.judgement import Judgement, doubt
from lanecheck.bench.machine import Absent, Environment, Telemetry
from lanecheck.bench.profiled import Profiled
from lanecheck.bench.rig import COLD_SINGLE, WARM_CHAIN
from lanecheck.bench.spread import Spread, same
from lanecheck.bench.strict import Strict

FASTER_THAN_MEMORY = "faster than memory: a fault of the benchmark"
ABOVE = 0.02
"""By how much the read ceiling may be beaten: it is the best of a few loops, not of all there could be."""


STEADY = 0.02
"""By how much the subject's time may change with what else the GPU does. Most change by 0.2 %."""


class Traffic(Strict):
    """Bytes that one launch must move, and how they are counted."""

    formula: str
    bytes: int = Field(gt=0)


class Measurement(Strict):
    """One contender's times."""

    name: str
    detail: str = ""
    samples_us: tuple[float, ...] = Field(min_length=1)
    """Microseconds a launch, one a round; a round has the same index in every contender."""
    time_us: Spread
    gbps: float
    """The traffic over the median time, in 10^9 bytes a second."""
    ready_s: float | None = None
    """Seconds in which a peer was compiled, tuned and checked."""
    sustained_us: float | None = None
    """Microseconds a launch without a rest, by :func:`.timing.without_rest`; None where it was not asked."""

    @classmethod
    def of(
        cls,
        name: str,
        samples: Sequence[float],
        size: int,
        detail: str = "",
        ready_s: float | None = None,
    ) -> Measurement:
        """``samples`` in microseconds a launch, kept to 0.1 ns; ``size`` in bytes a launch."""
        samples = [round(sample, 4) for sample in samples]
        time = Spread.of(samples)
        return cls(
            name=name,
            detail=detail,
            samples_us=tuple(samples),
            time_us=time,
            gbps=size / time.median / 1e3,
            ready_s=None if ready_s is None else round(ready_s, 2),
        )

    @model_validator(mode="after")
    def _follows(self) -> Measurement:
        if not all(0 < sample < inf for sample in self.samples_us):
            raise ValueError(f"{self.name}: a sample is no time")
        self.time_us.check(f"{self.name}: time_us", Spread.of(self.samples_us))
        return self

    @property
    def slowed(self) -> float | None:
        """Its time without a rest over that of the race; None where it was not asked."""
        return self.sustained_us and self.sustained_us / self.time_us.median


class Timing(Strict):
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
        return cls(
            method=method,
            copies=copies,
            subject=subject,
            ceiling=ceiling,
            peers=tuple(peers),
            absent=tuple(absent),
            share_of_ceiling=Spread.of_ratios(ceiling.samples_us, subject.samples_us),
            speedup=_speedup(subject, peers),
            copy_ceiling=copy_ceiling,
            modes=tuple(modes),
            discarded=discarded,
            held_back=tuple(held_back),
            facts=facts,
        )

    @model_validator(mode="after")
    def _follows(self) -> Timing:
        rounds = len(self.subject.samples_us)
        if any(len(each.samples_us) != rounds for each in self.contenders):
            raise ValueError("a round lacks a contender")
        share = Spread.of_ratios(self.ceiling.samples_us, self.subject.samples_us)
        self.share_of_ceiling.check("share_of_ceiling", share)
        speedup = _speedup(self.subject, self.peers)
        if self.speedup.keys() != speedup.keys():
            raise ValueError("speedup is not of the peers")
        for name, derived in speedup.items():
            self.speedup[name].check(f"speedup over {name}", derived)
        return self

    @property
    def contenders(self) -> tuple[Measurement, ...]:
        """Who was timed in the same rounds."""
        copying = (self.copy_ceiling,) if self.copy_ceiling else ()
        return (self.subject, self.ceiling, *copying, *self.peers)

    @property
    def fastest(self) -> tuple[str, Spread] | None:
        """The peer that takes least, and its time over the subject's; None without peers."""
        return min(self.speedup.items(), key=lambda each: each[1].median, default=None)

    @property
    def absent_peers(self) -> tuple[Absent, ...]:
        """Those of the absent that are no modes of the subject."""
        return tuple(each for each in self.absent if each.name not in (COLD_SINGLE, WARM_CHAIN))

    def mode(self, name: str) -> Measurement | None:
        """The subject timed in another way, or None if it was not."""
        return next((mode for mode in self.modes if mode.name == name), None)

    @property
    def sustained(self) -> float | None:
        """The subject's time when its chain runs again and again, over that in the race; None in old records.

        In a race it runs for a seventh of the time. Where it draws so much power that the GPU lowers its
        clocks, it takes longer when nobody else has a turn; where the others draw more, less.
        """
        if self.facts is None:
            return None
        # Old records have a graph's: as many whole turns as made 128 launches, four at most.
        launches = self.facts.launches or self.copies * min(-(-128 // self.copies), 4)
        alone = median(each.once_us for each in self.facts.doublings) / launches
        return alone / self.subject.time_us.median

    @property
    def drift(self) -> float:
        """The subject's time in the last third of the rounds over that in the first; they are in the order in
        which they ran."""
        samples = self.subject.samples_us
        third = max(1, len(samples) // 3)
        return median(samples[-third:]) / median(samples[:third])

    @property
    def steady(self) -> bool:
        """Whether the subject's time is its own: it neither drifts while the others have their turns nor
        changes when they have none, by :data:`STEADY`. If not, all are timed without a rest as well."""
        changes = self.drift, 1.0 if self.sustained is None else self.sustained
        return all(abs(change - 1) <= STEADY for change in changes)

    @property
    def fastest_sustained(self) -> tuple[str, float] | None:
        """The peer that takes least without a rest, and its time over the subject's then; None where they
        were not asked."""
        own = self.subject.sustained_us
        ratios = {
            each.name: each.sustained_us / own for each in self.peers if own and each.sustained_us
        }
        return min(ratios.items(), key=lambda each: each[1], default=None)

    @property
    def faster_than_memory(self) -> bool:
        """Whether the subject beats the read ceiling of its own bytes by more than :data:`ABOVE` and the
        standard error."""
        share = self.share_of_ceiling
        return share.median - 1 > ABOVE + share.error(len(self.subject.samples_us))

    @property
    def disturbed(self) -> bool:
        """Whether most rounds were discarded: then the GPU's ordinary state is another than the one left."""
        return self.discarded > len(self.subject.samples_us)

    @property
    def fault(self) -> str | None:
        """Why this timing counts for nothing, or None if it counts."""
        if self.disturbed:
            rounds = self.discarded + len(self.subject.samples_us)
            return disturbed(self.discarded, rounds, self.held_back)
        if self.facts and (found := doubts(self.facts)):
            return "; ".join(map(str, found))
        return FASTER_THAN_MEMORY if self.faster_than_memory else None


class Row(Strict):
    """One benchmarked shape.

    Attributes:
        void: why its numbers count for nothing, or None.
        untimed: why it has none although nothing was found wrong, or None: no memory, no end, a GPU that was
            held back. Without an end or memory, nothing may have been judged either.
        unit: digest of the identifier of the GPU that it ran on. telemetry: of that GPU, before and after.
            Both are None in records from before a run could have several GPUs.
    """

    params: dict[str, int | str]
    traffic: Traffic
    correctness: tuple[Judgement, ...]
    timing: Timing | None
    void: str | None
    untimed: str | None = None
    unit: str | None = None
    telemetry: Telemetry | None = None

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

    @property
    def counted(self) -> Timing | None:
        """The timing, if it counts."""
        return self.timing if self.void is None else None

    @property
    def unsettled(self) -> bool:
        """Whether it is void for what says nothing against the subject, and may be better another time."""
        if self.timing:
            return self.timing.disturbed
        return self.void is not None and self.untimed == self.void

    @property
    def disproven(self) -> bool:
        """Whether it is void for its correctness, or for doubts about its times."""
        return self.void is not None and not self.unsettled

    @model_validator(mode="after")
    def _follows(self) -> Row:
        if self.timing and doubt(self.correctness):
            raise ValueError("a shape whose correctness did not pass has no timing")
        if self.timing and self.untimed:
            raise ValueError("a shape with a timing has no reason to lack it")
        for each in (*self.timing.contenders, *self.timing.modes) if self.timing else ():
            if not same(each.gbps * each.time_us.median * 1e3, self.traffic.bytes):
                raise ValueError(
                    f"{each.name}: gbps is {each.gbps}, which is not traffic over time"
                )
        if self.void != (reason := void(self.correctness, self.timing, self.untimed)):
            raise ValueError(f"void is {self.void!r}, but the evidence says {reason!r}")
        return self


class BenchRecord(Strict):
    """One run of the benchmark, on GPUs that are all alike.

    Attributes:
        telemetry: of the only GPU, in records from before rows had their own.
        profiled: of some timed rows, what Nsight Compute measured, where it was asked.
        benchmark, versions: as in :class:`lanecheck.bench.log.BenchHeader`; not in old records.
    """

    format: Literal[1] = 1
    subject: str
    library_sha256: str
    seed: int
    rounds: int
    environment: Environment
    telemetry: Telemetry | None = None
    rows: tuple[Row, ...] = Field(min_length=1)
    profiled: tuple[Profiled, ...] = ()
    benchmark: str | None = None
    versions: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _profiled_was_timed(self) -> BenchRecord:
        timed = [row.params for row in self.rows if row.timing]
        if strange := [each.params for each in self.profiled if each.params not in timed]:
            raise ValueError(f"no timed row is of {strange[0]}, which Nsight Compute measured")
        return self

    @property
    def valid(self) -> bool:
        """Whether every row counts."""
        return all(row.void is None for row in self.rows)


def _speedup(subject: Measurement, peers: Sequence[Measurement]) -> dict[str, Spread]:
    own = subject.samples_us
    return {peer.name: Spread.of_ratios(peer.samples_us, own) for peer in peers}


def void(
    correctness: Sequence[Judgement], timing: Timing | None, untimed: str | None = None
) -> str | None:
    """Why a row's numbers count for nothing, or None if they count."""
    if untimed and not correctness:  # the attempt ended before anything was judged
        return untimed
    if reason := doubt(correctness):
        return f"not shown correct: {reason}"
    if timing is None:
        return untimed or "not timed"
    return timing.fault


def disturbed(discarded: int, rounds: int, reasons: Sequence[str]) -> str:
    """That too many rounds were discarded, in words."""
    return f"the GPU was held back in {discarded} of {rounds} rounds ({', '.join(reasons)})"
