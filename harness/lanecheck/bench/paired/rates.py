"""How often the gate errs, as it is stored and said: shares of its runs, each with an exact interval."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field, model_validator

from lanecheck.bench.paired.gate import VERDICTS, Verdict
from lanecheck.bench.strict import Strict

ALARMS = (Verdict.SLOW, Verdict.FAST)
"""What identical code may not be called."""


class Rate(Strict):
    """A share of the gate's runs, and its exact 95 % interval (Clopper & Pearson 1934).

    Attributes:
        count: how many. runs: of so many.
        low, high: ends of the interval, as shares.
    """

    count: int = Field(ge=0)
    runs: int = Field(ge=1)
    low: float = Field(ge=0)
    high: float = Field(le=1)

    @classmethod
    def of(cls, count: int, runs: int) -> Rate:
        from scipy.stats import (
            binomtest,
        )  # takes a second, which whoever reads a rate need not spend

        interval = binomtest(count, runs).proportion_ci(method="exact")
        return cls(count=count, runs=runs, low=float(interval.low), high=float(interval.high))

    @property
    def share(self) -> float:
        return self.count / self.runs

    @model_validator(mode="after")
    def _lies_in_its_interval(self) -> Rate:
        if not self.low <= self.share <= self.high:
            raise ValueError(f"{self.count} of {self.runs} is outside of its own interval")
        return self

    @property
    def interval(self) -> str:
        """``≤ 26%``, or ``0.21% to 38%``."""
        if self.count:
            return f"{percent(self.low)} to {percent(self.high)}"
        return f"≤ {percent(self.high)}"

    def __str__(self) -> str:
        return f"{percent(self.share)} ({percent(self.low)} to {percent(self.high)})"


class Simulated(Strict):
    """Simulated runs of the whole gate, at one slow-down of head.

    Attributes:
        slow_down: head's time over base's, less 1, of one config alone, each in its turn; 0 is identical
            code.
        verdicts: on head, over all configs.
        found: by config, runs that were SLOW of those in which it was the slowed one; empty at 0.
        missed: by config, those of them in which no control alarmed and yet the verdict was not SLOW; empty
            at 0, None in old records.
    """

    slow_down: float = Field(ge=0)
    verdicts: dict[Verdict, Rate]
    found: dict[str, Rate]
    missed: dict[str, int] | None = None

    @property
    def alarmed(self) -> int:
        """Runs that were SLOW or FAST."""
        return sum(self.verdicts[each].count for each in ALARMS)

    @property
    def hardest(self) -> tuple[str, float] | None:
        """The config whose slow-down is missed most often, and the share in which it is found, both of the
        runs in which no control alarms: a control that does says nothing of the config. None if none is
        missed, or nobody knows."""
        shares = {
            name: 1 - missed / (missed + self.found[name].count)
            for name, missed in (self.missed or {}).items()
            if missed
        }
        return min(shares.items(), key=lambda each: each[1], default=None)

    @model_validator(mode="after")
    def _every_run_has_one_verdict(self) -> Simulated:
        counts = {verdict: rate.count for verdict, rate in self.verdicts.items()}
        runs = sum(counts.values())
        if counts.keys() != {*VERDICTS} or any(r.runs != runs for r in self.verdicts.values()):
            raise ValueError("not one verdict a run")
        if not self.found:
            return self
        slow, alarms = counts[Verdict.SLOW], counts[Verdict.INSUFFICIENT]
        if sum(rate.count for rate in self.found.values()) != slow:
            raise ValueError("not as many slow-downs were found")
        missed = self.missed
        if missed is not None and (
            missed.keys() != self.found.keys() or sum(missed.values()) != runs - slow - alarms
        ):
            raise ValueError("not as many slow-downs were missed")
        return self


class Published(Strict):
    """Recorded rates, as they stand beside a verdict.

    Attributes:
        recorded: when the last of those comparisons was; in old records, when they were judged.
        since: when the first was; None in old records.
        commit: what was compared, short, or several; None for folders. In old records, what judged.
        machine: whose processes they are from. units: of how many GPUs; None for host execution, and in old
            records.
        comparisons: real ones of identical code that were SLOW or FAST, of those that came to a verdict;
            None if none did.
        undecided: real ones that were INSUFFICIENT.
        processes: of those comparisons, which the simulated runs are drawn from.
        pairs: of base and head in a simulated run.
        false_alarms: simulated runs of identical code, base and head by a coin, that were SLOW or FAST.
        insufficient: simulated runs of identical code that were INSUFFICIENT; None in old records.
        by_place: the share of those whose pairs stayed as they were; None if they could not be simulated.
        found: simulated runs that were SLOW, by how much one config is slowed: ``2%``.
        otherwise: what of the comparison beside which they stand is otherwise than of those.
    """

    recorded: datetime
    commit: str | None
    machine: str
    comparisons: Rate | None
    undecided: int = Field(ge=0)
    processes: int
    pairs: int
    false_alarms: Rate
    by_place: float | None = Field(ge=0, le=1)
    found: dict[str, Rate]
    otherwise: tuple[str, ...]
    since: datetime | None = None
    units: int | None = None
    insufficient: Rate | None = None

    @property
    def sentence(self) -> str:
        """Without a full stop; what was real comes first."""
        alarms = self.false_alarms
        found = (f"of {size} in {percent(rate.share)}" for size, rate in self.found.items())
        place = "" if self.by_place is None else f", {percent(self.by_place)} with both as recorded"
        unsure = f"; {percent(self.insufficient.share)} INSUFFICIENT" if self.insufficient else ""
        units = f" ({self.units:,} GPU{'s' * (self.units != 1)})" if self.units else ""
        other = f", with other {', '.join(self.otherwise)} than here" if self.otherwise else ""
        days = dict.fromkeys(f"{day:%Y-%m-%d}" for day in (self.since, self.recorded) if day)
        return (
            f"{real(self.comparisons, self.undecided)}; simulated, from {self.processes:,} recorded "
            f"processes on {self.machine}{units} with base and head dealt by a coin: false alarms "
            f"{percent(alarms.share)} ({alarms.interval} of {alarms.runs:,} runs){place}{unsure}; a "
            f"slow-down of one config found: {', '.join(found)} ({' to '.join(days)}, "
            f"{self.commit or 'no commit'}, {self.pairs} pairs{other})"
        )


def real(alarmed: Rate | None, undecided: int) -> str:
    """What became of real comparisons of identical code: how many alarmed, of those with a verdict."""
    none = f"{undecided:,} more INSUFFICIENT" if undecided else ""
    if alarmed is None:
        return f"no real comparison of identical code came to a verdict, {undecided:,} INSUFFICIENT"
    return (
        f"of {alarmed.runs:,} real comparison{'s' * (alarmed.runs != 1)} of identical code "
        f"{alarmed.count:,} alarmed ({', '.join(filter(None, (alarmed.interval, none)))})"
    )


def percent(share: float) -> str:
    """Two digits of what tells the share from none or from all: 31%, 0.02%, 99.1%."""
    if share in (0, 1):
        return f"{share:.0%}"
    digits, rest = 0, min(share, 1 - share)
    while rest * 10 ** (2 + digits) < 9.5:
        digits += 1
    number = f"{100 * share:.{digits}f}"
    return (number.rstrip("0").rstrip(".") if digits else number) + "%"
