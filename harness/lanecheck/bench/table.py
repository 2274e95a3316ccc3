"""The record as a table for the terminal."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from lanecheck.bench.model import BenchRecord, Row, Spread


def render(record: BenchRecord) -> Table:
    """One line a shape; ratios as median [quartiles]."""
    axes = _axes(record)
    peers = sorted({name for row in record.rows if row.timing for name in row.timing.speedup})
    gpu = record.environment
    table = Table(
        title=f"{record.subject} on {gpu.gpu}",
        caption=f"{_methods(record)}; {record.rounds} rounds; ratios: median [quartiles]",
    )
    for axis in axes:
        table.add_column(axis, justify="right")
    for heading in ("µs", "GB/s", "ceiling GB/s", "of ceiling", *(f"× {p}" for p in peers)):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for row in record.rows:
        table.add_row(
            *(str(row.params.get(axis, "")) for axis in axes),
            *_numbers(row, peers),
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


def _numbers(row: Row, peers: list[str]) -> list[str]:
    if row.timing is None:
        return ["–"] * (4 + len(peers))
    timing = row.timing
    return [
        f"{timing.subject.time_us.median:.2f}",
        f"{timing.subject.gbps:.0f}",
        f"{timing.ceiling.gbps:.0f}",
        _percent(timing.share_of_ceiling),
        *(_ratio(timing.speedup.get(peer)) for peer in peers),
    ]


def _percent(share: Spread) -> str:
    return rf"{share.median:.1%} \[{share.q1:.1%}, {share.q3:.1%}]"


def _ratio(speedup: Spread | None) -> str:
    if speedup is None:
        return "absent"
    return rf"{speedup.median:.3f} \[{speedup.q1:.3f}, {speedup.q3:.3f}]"
