"""A paired comparison, and the gate's own rates, for the terminal."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from rich.markup import escape
from rich.table import Table

from lanecheck.bench.machine import Absent
from lanecheck.bench.paired.gate import ALPHA, MARGIN, VERDICTS, Estimate, Verdict
from lanecheck.bench.paired.measured import PowerRecord
from lanecheck.bench.paired.rates import Simulated, percent, real
from lanecheck.bench.paired.record import PairingRecord

COLOURS = {
    Verdict.SLOW: "bold red",
    Verdict.INSUFFICIENT: "bold yellow",
    Verdict.AMBIGUOUS: "yellow",
    Verdict.FAST: "green",
    Verdict.SAME: "green",
}


def render(record: PairingRecord) -> Table:
    """One line a config."""
    table = Table(
        title=f"{record.header.subject} on {record.header.machine}",
        caption=(
            f"change: head's time over base's, less 1, of {record.header.pairs} pairs; each bound "
            f"with {1 - ALPHA:.0%} confidence; p over all configs; margin {MARGIN:.2%}"
        ),
    )
    table.add_column("config")
    for heading in ("change", "at least", "at most", "p"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for name, config in record.configs.items():
        table.add_row(escape(name), *_numbers(config.estimate), marked(config.verdict))
    return table


def render_rates(record: PowerRecord) -> Table:
    """One line a slow-down."""
    table = Table(
        title=f"{record.subject} on {record.machine}: how often the gate errs",
        caption=(
            "slow-down: of one config alone, each in its turn; the verdict is on head, over all "
            f"{len(record.configs)} configs; in brackets 95% intervals, which cover the simulation alone; "
            "found least often: a config's slow-down, of the runs in which no control alarms"
        ),
    )
    table.add_column("slow-down")
    for verdict in VERDICTS:
        table.add_column(verdict.value, justify="right")
    table.add_column("found least often")
    for name, each in rows(record):
        slow, *others = (each.verdicts[verdict] for verdict in VERDICTS)
        shares = [str(slow), *(percent(rate.share) for rate in others)]
        table.add_row(name, *shares, hardest(each))
    return table


def rows(record: PowerRecord) -> list[tuple[str, Simulated]]:
    """What was simulated, each with its slow-down in words."""
    named = [(f"{each.slow_down:.0%}", each) for each in record.simulated if each.slow_down]
    identical = [("none", each) for each in record.simulated if not each.slow_down]
    place = [("none, as recorded", record.by_place)] if record.by_place else []
    return [*identical, *place, *named]


def hardest(simulated: Simulated) -> str:
    """The config whose slow-down is found least often, and how often, where no control alarms; empty where
    nobody knows, or nothing is slowed."""
    if found := simulated.hardest:
        return f"{percent(found[1])}, {found[0]}"
    return "none is missed" if simulated.missed else ""


def recorded(record: PowerRecord, reported: datetime) -> str:
    """When the real comparisons were, and of which commits.

    Args:
        reported: as of :meth:`PowerRecord.moments`.
    """
    days = dict.fromkeys(f"{moment:%Y-%m-%d}" for moment in record.moments(reported))
    return f"{', '.join(days)}, {', '.join(record.commits) or 'no commit'}"


def reality(record: PowerRecord) -> str:
    """What the real comparisons came to, in a sentence."""
    units = len({each.unit for each in record.recordings})
    where = f" on {_count(units, 'GPU')}" if record.device == "cuda" else ""
    configs = record.config_verdicts
    cut = f", {record.cut:,} of them cut" if record.cut else ""
    return (
        f"{real(record.alarmed, record.undecided)}{where}: {_listed(record.verdicts)}{cut}; of their "
        f"{_count(configs.total(), 'verdict')} on one config {_listed(configs) or 'none'}"
    )


def simulation(record: PowerRecord) -> str:
    """What the simulated runs are made of, and their false alarms, in a sentence."""
    alarms, place = record.false_alarms, record.by_place
    said = (
        f"{alarms.runs:,} simulated runs of {record.pairs} pairs, drawn from {record.processes:,} recorded "
        f"processes, with base and head dealt by a coin, which hides a bias of their places: false "
        f"alarms {alarms}"
    )
    if place is None:
        return f"{said}; too few pairs to simulate base and head as recorded"
    share, evidence = percent(place.alarmed / alarms.runs), _count(record.at_once, "comparison")
    return (
        f"{said}; as many, with base and head as recorded: {share}, "
        f"no more evidence than {evidence}"
    )


def noises(record: PowerRecord) -> str:
    """How much neighbours differ, in a sentence."""
    names, units = record.quiet_to_noisy, record.noise_of_units
    low, middle, high = (
        f"{record.noise[name]:.2%} at {name}"
        for name in (names[0], names[len(names) // 2], names[-1])
    )
    by_unit = f"; by GPU, median of the configs: {units[0]:.2%} to {units[-1]:.2%}"
    return (
        f"noise between processes that ran one after the other, smallest, median and largest: {low}, "
        f"{middle}, {high}{by_unit if len(units) > 1 else ''}"
    )


def unwatched(record: PairingRecord) -> str | None:
    """Why nobody watched whether the GPU was held back, at least for a while; None if somebody did."""
    for each in record.processes:
        for reading in (each.telemetry.before, each.telemetry.after) if each.telemetry else ():
            if isinstance(reading, Absent):
                return reading.reason
            if reading.clock_event_reasons is None:
                return "its driver does not say what determines its clocks"
    return None


def marked(verdict: Verdict) -> str:
    """The verdict in its colour."""
    return f"[{COLOURS[verdict]}]{verdict.value}[/]"


def _numbers(found: Estimate | None) -> list[str]:
    if found is None:
        return ["–"] * 4
    changes = (found.effect, found.low, found.high)
    return [*(f"{change:+.2%}" for change in changes), f"{found.p_holm:.2g}"]


def _listed(verdicts: Counter[Verdict]) -> str:
    return ", ".join(f"{verdicts[each]:,} {each.value}" for each in VERDICTS if verdicts[each])


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
