"""A paired comparison for the terminal."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from lanecheck.bench.paired.gate import ALPHA, MARGIN, Estimate, Verdict
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


def marked(verdict: Verdict) -> str:
    """The verdict in its colour."""
    return f"[{COLOURS[verdict]}]{verdict.value}[/]"


def _numbers(found: Estimate | None) -> list[str]:
    if found is None:
        return ["–"] * 4
    changes = (found.effect, found.low, found.high)
    return [*(f"{change:+.2%}" for change in changes), f"{found.p_holm:.2g}"]
