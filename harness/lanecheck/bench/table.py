"""The record as a table for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from lanecheck.bench.model import BenchRecord, Row, Timing
from lanecheck.bench.ncu import COLD, TOLERANCE, agreements
from lanecheck.bench.rig import COLD_SINGLE
from lanecheck.bench.spread import Spread
from lanecheck.subject import title

LISTED = 40
"""Rows up to which each is a line of its own."""


def render(record: BenchRecord) -> Group:
    """The shapes, or where they are many what they come to; the peers; and what counts for nothing."""
    void = [f"void: {title(row.params)}: {row.void}" for row in record.rows if row.void]
    shapes = _shapes(record) if len(record.rows) <= LISTED else _summary(record)
    return Group(shapes, _peers(_counted(record.rows)), *(Text(line, style="red") for line in void))


def _shapes(record: BenchRecord) -> Table:
    """One line a shape; the share of the ceiling as median ± half the distance of the quartiles."""
    axes = _axes(record)
    table = _titled(record)
    for heading in (*axes, "µs", "GB/s", "of ceiling", "alone µs", "sustained", "× fastest peer"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in record.rows:
        table.add_row(*(str(row.params.get(axis, "")) for axis in axes), *_numbers(row))
    return table


def _summary(record: BenchRecord) -> Table:
    """One line for each value of the first parameter: least, median and most over its shapes."""
    axis = next(iter(record.rows[0].params))
    table = _titled(record)
    headings = "shapes", "void", "of ceiling", "unsteady", "peers", "× fastest", "slower than it"
    for heading in (axis, *headings):
        table.add_column(heading, justify="right")
    for value in dict.fromkeys(row.params[axis] for row in record.rows):
        rows = [row for row in record.rows if row.params[axis] == value]
        timings = _counted(rows)
        against = [peer[1].median for timing in timings if (peer := timing.fastest)]
        table.add_row(
            str(value),
            str(len(rows)),
            str(sum(row.void is not None for row in rows)),
            _span([timing.share_of_ceiling.median for timing in timings], "{:.1%}"),
            _unsteady(timings),
            taking_part(timings),
            _span(against, "{:.3f}"),
            str(sum(ratio < 1 for ratio in against)),
        )
    return table


def _peers(timings: Sequence[Timing]) -> Table:
    """One line a peer: its time over the subject's, as least, median and most of the shapes."""
    table = Table(caption="×: the peer's time over the subject's, above 1 the subject is faster")
    for heading in ("peer", "shapes", "×", "fastest", "absent"):
        table.add_column(heading, justify="left" if heading in ("peer", "absent") else "right")
    fastest = Counter(peer[0] for timing in timings if (peer := timing.fastest))
    reasons: dict[str, Counter[str]] = {}
    for timing in timings:
        for absent in timing.absent_peers:
            reasons.setdefault(absent.name, Counter())[absent.reason] += 1
    raced = dict.fromkeys(name for timing in timings for name in timing.speedup)
    for name in raced | dict.fromkeys(reasons):
        ratios = [timing.speedup[name].median for timing in timings if name in timing.speedup]
        why = [f"{count}: {reason}" for reason, count in reasons.get(name, Counter()).items()]
        table.add_row(
            name,
            str(len(ratios)),
            _span(ratios, "{:.3f}"),
            str(fastest[name]),
            escape("; ".join(why)),
        )
    return table


def render_profiled(record: BenchRecord) -> Table:
    """One line for each shape that Nsight Compute measured: megabytes beside the traffic's, time as median
    [quartiles] beside the cold chain's, and how much of its reads the chain made from DRAM."""
    axes = _axes(record)
    methods = " / ".join(sorted({found.method for found in record.profiled}))
    table = Table(
        title=f"{record.subject} by Nsight Compute",
        caption=f"{methods}; red: more than {TOLERANCE:.0%} apart, or less than {COLD:.0%} cold",
    )
    for heading in (*axes, "MB", "of traffic", "µs", "of chain", "of alone", "chain from DRAM"):
        table.add_column(heading, justify="right")
    for each in agreements(record):
        found, time = each.found, each.found.time_us
        table.add_row(
            *(str(found.params.get(axis, "")) for axis in axes),
            f"{(found.read_bytes + found.written_bytes) / 1e6:.2f}",
            _marked(f"{each.of_traffic:.4f}", each.traffic_agrees),
            rf"{time.median:.2f} \[{time.q1:.2f}, {time.q3:.2f}]",
            _marked(f"{each.of_chain:.4f}", each.time_agrees),
            "–" if each.of_alone is None else f"{each.of_alone:.4f}",
            "–" if each.from_dram is None else _marked(f"{each.from_dram:.1%}", each.is_cold),
        )
    return table


def _marked(text: str, good: bool) -> str:
    return text if good else f"[bold red]{text} !![/]"


def _titled(record: BenchRecord) -> Table:
    methods = " / ".join(sorted({row.timing.method for row in record.rows if row.timing}))
    return Table(
        title=f"{record.subject} on {record.environment.gpu}",
        caption=f"{methods or 'untimed'}; {record.rounds} rounds; ratios: medians in one run; sustained: "
        "alone, without a rest; unsteady: a time that changes with what else runs",
    )


def _axes(record: BenchRecord) -> list[str]:
    """The parameters that tell the rows apart: the sizes, if these are enough."""
    sizes = [axis for axis in "mnk" if axis in record.rows[0].params]
    if len({tuple(row.params.get(axis) for axis in sizes) for row in record.rows}) == len(
        record.rows
    ):
        return sizes
    return [
        name
        for name in record.rows[0].params
        if len({row.params.get(name) for row in record.rows}) > 1
    ]


def _numbers(row: Row) -> list[str]:
    if row.timing is None:
        return ["–"] * 6
    timing = row.timing
    alone = timing.mode(COLD_SINGLE)
    return [
        f"{timing.subject.time_us.median:.2f}",
        f"{timing.subject.gbps:.0f}",
        _percent(timing.share_of_ceiling),
        f"{alone.time_us.median:.2f}" if alone else "–",
        f"{timing.sustained:.3f}" if timing.sustained else "–",
        _against(timing),
    ]


def _counted(rows: Sequence[Row]) -> list[Timing]:
    return [timing for row in rows if (timing := row.counted)]


def _against(timing: Timing) -> str:
    """The fastest peer's time over the subject's; where that is unsteady, also when neither rests."""
    if timing.fastest is None:
        return "–"
    name, ratio = timing.fastest
    said = f"{ratio.median:.3f} {name}"
    if timing.fastest_sustained:
        name, sustained = timing.fastest_sustained
        said += f"; sustained {sustained:.3f} {name}"
    return escape(said)


def _unsteady(timings: Sequence[Timing]) -> str:
    """Of how many shapes the time is not steady, and the fastest peer's over it when neither rests."""
    count = sum(not timing.steady for timing in timings)
    ratios = [peer[1] for timing in timings if (peer := timing.fastest_sustained)]
    return f"{count}: × {_span(ratios, '{:.3f}')}" if ratios else f"{count}"


def taking_part(timings: Sequence[Timing]) -> str:
    """How many peers raced, of all that are known: ``4 of 7``, ``4 to 6 of 7``."""
    raced = [len(timing.peers) for timing in timings] or [0]
    known = max((len(timing.peers) + len(timing.absent_peers) for timing in timings), default=0)
    span = f"{min(raced)}" + (f" to {max(raced)}" if max(raced) > min(raced) else "")
    return f"{span} of {known}"


def _percent(share: Spread) -> str:
    return f"{share.median:.1%} ±{share.width / 2:.1%}"


def _span(values: Sequence[float], form: str) -> str:
    """Least, median and most."""
    if not values:
        return "–"
    return " … ".join(form.format(each) for each in (min(values), median(values), max(values)))


def span(record: BenchRecord) -> str:
    """Smallest and largest share of the ceiling in a record."""
    shares = [timing.share_of_ceiling.median for timing in _counted(record.rows)]
    return f"{min(shares):.1%} to {max(shares):.1%}" if shares else "void"
