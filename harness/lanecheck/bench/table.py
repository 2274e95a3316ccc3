"""The record as a table for the terminal."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from lanecheck.bench.model import BenchRecord, Row, Spread
from lanecheck.bench.paired.pairing import title


def render(record: BenchRecord) -> Table:
    """One line a shape; ratios as median [quartiles]."""
    axes = _axes(record)
    timings = [row.timing for row in record.rows if row.timing]
    peers = sorted({name for timing in timings for name in timing.speedup})
    modes = sorted({mode.name for timing in timings for mode in timing.modes})
    gpu = record.environment
    table = Table(
        title=f"{record.subject} on {gpu.gpu}",
        caption=f"{_methods(record)}; {record.rounds} rounds; ratios: median [quartiles]",
    )
    for axis in axes:
        table.add_column(axis, justify="right")
    numbers = ("µs", "GB/s", "ceiling GB/s", "copy GB/s", "of ceiling")
    for heading in (*numbers, *(f"{mode} µs" for mode in modes), *(f"× {peer}" for peer in peers)):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for row in record.rows:
        table.add_row(
            *(str(row.params.get(axis, "")) for axis in axes),
            *_numbers(row, modes, peers),
            f"[red]void[/]: {escape(row.void)}" if row.void else "[green]counts[/]",
        )
    return table


def _axes(record: BenchRecord) -> list[str]:
    """The parameters that tell the rows apart."""
    first = record.rows[0].params
    return [
        name
        for name in first
        if len(record.rows) == 1 or len({row.params.get(name) for row in record.rows}) > 1
    ]


def _methods(record: BenchRecord) -> str:
    return " / ".join(sorted({row.timing.method for row in record.rows if row.timing})) or "untimed"


def _numbers(row: Row, modes: list[str], peers: list[str]) -> list[str]:
    if row.timing is None:
        return ["–"] * (5 + len(modes) + len(peers))
    timing = row.timing
    measured = {mode.name: f"{mode.time_us.median:.2f}" for mode in timing.modes}
    return [
        f"{timing.subject.time_us.median:.2f}",
        f"{timing.subject.gbps:.0f}",
        f"{timing.ceiling.gbps:.0f}",
        f"{timing.copy_ceiling.gbps:.0f}" if timing.copy_ceiling else "–",
        _percent(timing.share_of_ceiling),
        *(measured.get(mode, "–") for mode in modes),
        *(_ratio(timing.speedup.get(peer)) for peer in peers),
    ]


def _percent(share: Spread) -> str:
    return rf"{share.median:.1%} \[{share.q1:.1%}, {share.q3:.1%}]"


def _ratio(speedup: Spread | None) -> str:
    if speedup is None:
        return "absent"
    return rf"{speedup.median:.3f} \[{speedup.q1:.3f}, {speedup.q3:.3f}]"


def shape(row: Row) -> str:
    """``M=1 N=6144 K=4096``; every parameter, where these are not the subject's axes."""
    return title(row.params)


def span(record: BenchRecord) -> str:
    """Smallest and largest share of the ceiling in a record."""
    shares = [
        row.timing.share_of_ceiling.median for row in record.rows if row.timing and row.void is None
    ]
    return f"{min(shares):.1%} to {max(shares):.1%}" if shares else "void"
