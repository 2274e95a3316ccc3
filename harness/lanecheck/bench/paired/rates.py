"""How often the gate errs, as it is stored and said: shares of its runs, each with an exact interval."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field, model_validator

from lanecheck.bench.paired.gate import Verdict
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
    """

    slow_down: float = Field(ge=0)
    verdicts: dict[Verdict, Rate]
    found: dict[str, Rate]

    @property
    def alarmed(self) -> int:
        """Runs that were SLOW or FAST."""
        return sum(self.verdicts[each].count for each in ALARMS)

    @property
    def hardest(self) -> str | None:
        """The config whose slow-down is found least often; None at 0."""
        return min(self.found, key=lambda name: self.found[name].share, default=None)

    @model_validator(mode="after")
    def _every_run_has_one_verdict(self) -> Simulated:
        runs = {rate.runs for rate in self.verdicts.values()}
        if runs != {sum(rate.count for rate in self.verdicts.values())}:
            raise ValueError("not one verdict a run")
        return self


class Published(Strict):
    """Recorded rates, as they stand beside a verdict.

    Attributes:
        recorded: when. commit: of the source then, short.
        machine: whose processes they are from.
        comparisons: real ones of identical code that were SLOW or FAST, of those that came to a verdict;
            None if none did.
        undecided: real ones that were INSUFFICIENT.
        processes: of those comparisons, which the simulated runs are drawn from.
        pairs: of base and head in a simulated run.
        false_alarms: simulated runs of identical code, base and head by a coin, that were SLOW or FAST.
        by_place: the share of those whose pairs stayed as they were; None if they could not be simulated.
        found: simulated runs that were SLOW, by how much one config is slowed: ``2%``.
        otherwise: what of the comparison beside which they stand is otherwise than of those.
    """

    recorded: datetime
    commit: str
    machine: str
    comparisons: Rate | None
    undecided: int = Field(ge=0)
    processes: int
    pairs: int
    false_alarms: Rate
    by_place: float | None = Field(ge=0, le=1)
    found: dict[str, Rate]
    otherwise: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Without a full stop; what was real comes first."""
        alarms = self.false_alarms
        found = (f"of {size} in {percent(rate.share)}" for size, rate in self.found.items())
        place = "" if self.by_place is None else f", {percent(self.by_place)} by place, without it"
        other = f", with other {', '.join(self.otherwise)} than here" if self.otherwise else ""
        return (
            f"{real(self.comparisons, self.undecided)}; simulated, from {self.processes:,} recorded "
            f"processes on {self.machine} with base and head assigned by a coin: false alarms "
            f"{percent(alarms.share)} ({alarms.interval} of {alarms.runs:,} runs){place}; a slow-down of "
            f"one config found: {', '.join(found)} ({self.recorded:%Y-%m-%d}, {self.commit}, "
            f"{self.pairs} pairs{other})"
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
