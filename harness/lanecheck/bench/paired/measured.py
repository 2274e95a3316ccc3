"""What real comparisons of identical code show of the gate, as it is stored: complete enough to judge again.

The comparisons are kept as they came out, with every process, and the simulated runs that were drawn from
these; see :mod:`.power`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from statistics import median
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from lanecheck.bench.machine import Environment
from lanecheck.bench.paired import power
from lanecheck.bench.paired.gate import ALPHA, MARGIN, Floats, Verdict
from lanecheck.bench.paired.pairing import Kind, compared, concluded, schedule
from lanecheck.bench.paired.rates import ALARMS, Published, Rate, Simulated
from lanecheck.bench.paired.record import Header, Microseconds, PairingRecord, Values, unlike
from lanecheck.bench.spread import same
from lanecheck.bench.strict import Strict
from lanecheck.errors import BadInput

KINDS: tuple[Kind, Kind] = ("change", "control")


class Recording(Strict):
    """One real comparison of identical code.

    Attributes:
        code: digest of what both arms executed. commit: base's; None for a folder.
        created: when it came to its verdict, UTC; None in old records.
        benchmark: digest of the code that timed.
        unit: digest of the GPU's identifier; empty for host execution.
        seed, pairs: from which the places of the processes follow, by :func:`.pairing.schedule`.
        medians_us: by config, of each process that counts, in the order in which they ran.
        lost: processes that were repeated.
        verdicts: by config; empty where processes are missing.
    """

    code: str
    commit: str | None
    benchmark: str
    unit: str
    seed: int
    pairs: int
    medians_us: dict[str, tuple[Microseconds, ...]]
    lost: int
    verdicts: dict[str, Verdict]
    verdict: Verdict
    cause: str
    created: datetime | None = None

    @classmethod
    def of(cls, record: PairingRecord) -> Recording:
        """Of a comparison of which some process ran."""
        header, configs = record.header, record.processes[0].medians_us
        code = hashlib.sha256(header.base.code.model_dump_json().encode())
        return cls(
            code=code.hexdigest(),
            commit=header.base.commit,
            benchmark=header.benchmark,
            unit=header.unit,
            seed=header.seed,
            pairs=header.pairs,
            medians_us={
                name: tuple(each.medians_us[name] for each in record.processes) for name in configs
            },
            lost=len(record.lost),
            verdicts={name: each.verdict for name, each in record.configs.items()},
            verdict=record.verdict,
            cause=record.cause,
            created=record.created,
        )

    @property
    def processes(self) -> int:
        return max(map(len, self.medians_us.values()))

    @property
    def cut(self) -> bool:
        """Whether processes are missing."""
        return not self.verdicts

    def judged(self) -> tuple[dict[str, Verdict], Verdict]:
        """The verdicts that the medians give, by config and over all."""
        turns = schedule(self.pairs, self.seed)
        if self.processes < len(turns):
            return {}, Verdict.INSUFFICIENT
        rows = zip(*self.medians_us.values())
        found = compared(turns, [dict(zip(self.medians_us, row)) for row in rows])
        return {name: each.verdict for name, each in found.items()}, concluded(found)[0]

    def differences(self, kind: Kind) -> Floats:
        """log(head / base) of each of these pairs that is whole, as it was; shape (configs, pairs).

        In a control, head is base again.
        """
        turns = schedule(self.pairs, self.seed)[: self.processes]
        firsts = [i for i in range(0, len(turns) - 1, 2) if turns[i].kind == kind]
        signs = [1.0 if turns[i].side == "base" else -1.0 for i in firsts]
        logs = np.log(np.array([*self.medians_us.values()], float))
        later = logs[:, [i + 1 for i in firsts]]
        return np.round(np.array(signs) * (later - logs[:, firsts]), 12)

    @model_validator(mode="after")
    def _has_whole_processes(self) -> Recording:
        lengths = {*map(len, self.medians_us.values())}
        if len(lengths) != 1 or not 0 < max(lengths) <= 4 * self.pairs:
            raise ValueError("not one median of every config in every process")
        return self


class PowerRecord(Strict):
    """The gate's rates on one kind of machine.

    Attributes:
        subject: ``module:ATTRIBUTE``.
        environment: of the recordings, as in :class:`.record.Header`.
        rounds: samples of every config in a process.
        configs: the parameters of the launches.
        recordings: the real comparisons.
        alarmed: how many of them were SLOW or FAST, of those that were not INSUFFICIENT; None if all were.
        alpha, margin: the gate's.
        pairs: of base and head in a simulated run, and as many of the control.
        seed: of what is drawn for the simulated runs.
        false_alarms: simulated runs of identical code that were SLOW or FAST.
        by_place: :func:`.power.by_place`.
        noise: by config, :func:`.power.noise`: a log ratio, 0.01 is 1 %.
    """

    subject: str
    device: Literal["host", "cuda"]
    arch: str
    machine: str
    rounds: int
    configs: dict[str, Values]
    recordings: tuple[Recording, ...] = Field(min_length=1)
    alarmed: Rate | None
    alpha: float
    margin: float
    pairs: int
    seed: int
    simulated: tuple[Simulated, ...]
    false_alarms: Rate
    by_place: Simulated | None
    noise: dict[str, float]
    environment: Environment | None = None

    @classmethod
    def of(
        cls, named: Sequence[tuple[str, PairingRecord]], pairs: int, runs: int, seed: int
    ) -> PowerRecord:
        """Judge the gate by comparisons, each with a name for the messages.

        Raises:
            BadInput: if one is not of identical code, was not timed, is of something else than the first,
                or has processes or the random order of another one; if there are too few processes, or too
                few pairs.
        """
        held: dict[tuple[float, ...], str] = {}
        drawn: dict[tuple[str, int], str] = {}
        for name, record in named:
            _check(name, record, *named[0])
            taken = {(each.seconds, *each.medians_us.values()) for each in record.processes}
            if shared := next(iter(taken & held.keys()), None):
                raise BadInput(f"{held[shared]} and {name} hold the same processes")
            held |= dict.fromkeys(taken, name)
            order = (record.header.unit, record.header.seed)
            if (other := drawn.setdefault(order, name)) != name:
                raise BadInput(
                    f"{other} and {name} are of one GPU and of one seed, {order[1]}: they are one draw of "
                    "the order (lanecheck compare with another --seed)"
                )
        header = named[0][1].header
        recordings = tuple(Recording.of(record) for _, record in named)
        medians = [each.medians_us for each in recordings]
        simulated = power.simulate(medians, pairs, runs, seed)
        change, control = (
            np.concatenate([each.differences(kind) for each in recordings], axis=1)
            for kind in KINDS
        )
        alarmed, decided = _alarmed(recordings)
        return cls(
            subject=header.subject,
            device=header.device,
            arch=header.arch,
            machine=header.machine,
            environment=header.environment,
            rounds=header.rounds,
            configs=header.base.configs,
            recordings=recordings,
            alarmed=Rate.of(alarmed, decided) if decided else None,
            alpha=ALPHA,
            margin=MARGIN,
            pairs=pairs,
            seed=seed,
            simulated=simulated,
            false_alarms=Rate.of(simulated[0].alarmed, runs),
            by_place=power.by_place(change, control, pairs, runs, seed),
            noise=power.noise(medians),
        )

    @property
    def processes(self) -> int:
        """How many real ones stand behind the simulation."""
        return sum(each.processes for each in self.recordings)

    @property
    def cut(self) -> int:
        """How many of the real comparisons lack processes."""
        return sum(each.cut for each in self.recordings)

    @property
    def undecided(self) -> int:
        """How many of them were INSUFFICIENT, cut or not."""
        return self.verdicts[Verdict.INSUFFICIENT]

    @property
    def at_once(self) -> int:
        """How many runs the recorded pairs make at once."""
        return (
            min(sum(each.differences(kind).shape[1] for each in self.recordings) for kind in KINDS)
            // self.pairs
        )

    @property
    def quiet_to_noisy(self) -> list[str]:
        """The configs, by their noise."""
        return sorted(self.noise, key=lambda name: self.noise[name])

    @property
    def noise_of_units(self) -> list[float]:
        """The median over the configs of the noise on each GPU, smallest first."""
        units: dict[str, list[power.Medians]] = {}
        for each in self.recordings:
            units.setdefault(each.unit, []).append(each.medians_us)
        return sorted(median(power.noise(medians).values()) for medians in units.values())

    @property
    def verdicts(self) -> Counter[Verdict]:
        """Of the real comparisons."""
        return Counter(each.verdict for each in self.recordings)

    @property
    def config_verdicts(self) -> Counter[Verdict]:
        """Of the real comparisons on each config."""
        return Counter(verdict for each in self.recordings for verdict in each.verdicts.values())

    @property
    def commits(self) -> list[str]:
        """What the real comparisons compared, short, each once; none for folders."""
        return [*dict.fromkeys(each.commit[:12] for each in self.recordings if each.commit)]

    def moments(self, reported: datetime) -> list[datetime]:
        """When the real comparisons were, in order.

        Args:
            reported: when this was recorded, for old recordings, which have no date.
        """
        return sorted(each.created or reported for each in self.recordings)

    def published(self, reported: datetime, beside: Header) -> Published:
        """As it stands beside the verdict of a comparison.

        Args:
            reported: as of :meth:`moments`.
        """
        moments = self.moments(reported)
        return Published(
            recorded=moments[-1],
            since=moments[0],
            commit=", ".join(self.commits) or None,
            machine=self.machine,
            units=len({each.unit for each in self.recordings}) if self.device == "cuda" else None,
            comparisons=self.alarmed,
            undecided=self.undecided,
            processes=self.processes,
            pairs=self.pairs,
            false_alarms=self.false_alarms,
            insufficient=next(
                each.verdicts[Verdict.INSUFFICIENT] for each in self.simulated if not each.slow_down
            ),
            by_place=self.by_place.alarmed / self.false_alarms.runs if self.by_place else None,
            found={
                f"{each.slow_down:.0%}": each.verdicts[Verdict.SLOW]
                for each in self.simulated
                if each.slow_down
            },
            otherwise=tuple(self._otherwise(beside)),
        )

    def _otherwise(self, header: Header) -> Iterator[str]:
        """What a comparison has otherwise that the rates may depend on."""
        for name in ("arch", "pairs", "rounds"):
            if getattr(self, name) != getattr(header, name):
                yield name
        if self.configs != header.base.configs:
            yield "configs"
        yield from unlike(self.environment, header.environment)
        if self.recordings[0].benchmark != header.benchmark:
            yield "benchmark"
        if (self.alpha, self.margin) != (ALPHA, MARGIN):
            yield "levels"

    @model_validator(mode="after")
    def _follows(self) -> PowerRecord:
        """What the medians give is derived again, but for causes, whose words may change, and for what was
        drawn. Under other levels than these the verdicts were others."""
        if any(each.medians_us.keys() != self.configs.keys() for each in self.recordings):
            raise ValueError("a recording has other configs")
        for each in self.recordings if (self.alpha, self.margin) == (ALPHA, MARGIN) else ():
            if (each.verdicts, each.verdict) != each.judged():
                raise ValueError(
                    f"the verdict is {each.verdict.value}, but the medians give another"
                )
        if len({each.benchmark for each in self.recordings}) > 1:
            raise ValueError("recordings of several benchmarks")
        alarmed, decided = _alarmed(self.recordings)
        if (self.alarmed and (self.alarmed.count, self.alarmed.runs)) != (
            (alarmed, decided) if decided else None
        ):
            raise ValueError("not as many comparisons alarmed")
        identical = [each.alarmed for each in self.simulated if not each.slow_down]
        if [self.false_alarms.count] != identical:
            raise ValueError("not as many false alarms were simulated")
        noise = power.noise([each.medians_us for each in self.recordings])
        if self.noise.keys() != noise.keys() or not all(
            same(self.noise[name], noise[name]) for name in noise
        ):
            raise ValueError("the noise is not that of the medians")
        return self


def _alarmed(recordings: Sequence[Recording]) -> tuple[int, int]:
    """How many alarmed, of how many that came to a verdict."""
    decided = [each for each in recordings if each.verdict is not Verdict.INSUFFICIENT]
    return sum(each.verdict in ALARMS for each in decided), len(decided)


def _check(name: str, record: PairingRecord, other: str, first: PairingRecord) -> None:
    """Raises BadInput if it cannot serve."""
    header = record.header
    changes = header.changes
    if header.base.configs != header.head.configs:
        changes.append("their parameters")
    if changes:
        raise BadInput(
            f"{name} compares two versions of the code, which differ in {', '.join(changes)}: the "
            "gate's errors are those on identical code (lanecheck compare HEAD HEAD --force)"
        )
    if not record.processes:
        raise BadInput(f"{name} has no times: {record.cause} (lanecheck compare --force)")
    if record.refusal and len(record.processes) == header.processes:
        raise BadInput(f"{name} has every process, and yet no verdict: {record.cause}")
    if missing := [
        each for each in header.base.configs if each not in record.processes[0].medians_us
    ]:
        raise BadInput(f"{name} has no times of {missing[0]}")
    fields = ("subject", "device", "arch", "machine", "rounds", "benchmark")
    mine, theirs = (
        {field: getattr(each, field) for field in fields} | {"configs": each.base.configs}
        for each in (header, first.header)
    )
    differing = [field for field in mine if mine[field] != theirs[field]]
    if differing := differing + unlike(header.environment, first.header.environment):
        raise BadInput(f"{name} is of another {', '.join(differing)} than {other}")
