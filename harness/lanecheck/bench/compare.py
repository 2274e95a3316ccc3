"""Two benchmark records side by side. Ratios only: one process each proves no difference."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from lanecheck.bench.model import BenchRecord, Row
from lanecheck.errors import BadInput


@dataclass(frozen=True)
class Pair:
    """One shape in both records: medians of the share of the ceiling."""

    shape: str
    base: float
    head: float

    @property
    def ratio(self) -> float:
        """Above 1, head is closer to the ceiling."""
        return self.head / self.base


def rows(base: BenchRecord, head: BenchRecord) -> list[Pair]:
    """The shapes that count in both records.

    Raises:
        BadInput: if they ran on different GPUs, or share no shape that counts.
    """
    if base.environment.gpu != head.environment.gpu:
        raise BadInput(
            f"the reports are of {base.environment.gpu} and {head.environment.gpu}: "
            "compare runs of one device"
        )
    shares, others = _shares(base), _shares(head)
    pairs = [Pair(name, share, others[name]) for name, share in shares.items() if name in others]
    if not pairs:
        raise BadInput("the reports have no valid shape in common")
    return pairs


def render(pairs: list[Pair]) -> Table:
    """One line a shape."""
    table = Table("of ceiling", "base", "head", "head / base", "verdict")
    for pair in pairs:
        table.add_row(
            pair.shape,
            f"{pair.base:.1%}",
            f"{pair.head:.1%}",
            f"{pair.ratio:.3f}",
            "INSUFFICIENT",
        )
    return table


def shape(row: Row) -> str:
    """``M=1 N=6144 K=4096``; every parameter, where these are not the subject's axes."""
    axes = [axis for axis in "mnk" if axis in row.params] or list(row.params)
    return " ".join(f"{axis.upper()}={row.params[axis]}" for axis in axes)


def span(record: BenchRecord) -> str:
    """Smallest and largest share of the ceiling in a record."""
    shares = _shares(record).values()
    return f"{min(shares):.1%} to {max(shares):.1%}" if shares else "void"


def _shares(record: BenchRecord) -> dict[str, float]:
    return {
        shape(row): row.timing.share_of_ceiling.median
        for row in record.rows
        if row.timing and row.void is None
    }
