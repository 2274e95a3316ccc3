"""``bandwidth.html`` and ``bandwidth.csv``: the standings of :mod:`lanecheck.site.bandwidth`, drawn and
written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from jinja2 import Environment

from lanecheck.bench.model import STEADY
from lanecheck.site import chart, sheet
from lanecheck.site.bandwidth import Shown, Standing

AXIS = "MB that one launch moves (logarithmic)"
TINTS = (0.5, 0.7, 0.8, 0.9)
"""Shares of the ceiling from which a cell has the next tint."""


def files(
    environment: Environment,
    subject: str,
    standings: Sequence[Standing],
    data_sheets: Mapping[str, int | None],
) -> dict[str, str]:
    """The texts by file name.

    Args:
        data_sheets: by GPU product, the bandwidth that its data sheet names, in 10^9 bytes a second.
    """
    page = environment.get_template("bandwidth.html.j2").render(
        subject=subject,
        standings=standings,
        data_sheets=data_sheets,
        charts=charts,
        colours=chart.COLOURS,
        **FACTS,
        ratio=ratio,
        compact=compact,
        tint=tint,
        tints=TINTS,
        steady=STEADY,
        config=config,
        times=times,
        peers_of=peers_of,
    )
    return {"bandwidth.html": page, "bandwidth.csv": sheet.text(standings)}


def charts(standing: Standing) -> str:
    """Shares over bytes, for wide and for narrow pages; safe as markup."""
    series = [
        (
            f"M = {tokens.m}",
            [_point(each) for each in standing.rows if each.at and each.at[0] == tokens.m],
        )
        for tokens in standing.tokens
    ]
    series.append(("other shapes", [_point(each) for each in standing.rows if not each.at]))
    said = f"Share of the read ceiling over megabytes, on {standing.gpu}"
    drawn = [(name, [point for point in points if point]) for name, points in series]
    return "".join(
        chart.draw(drawn, layout, said, AXIS, standing.anchor)
        for layout in (chart.WIDE, chart.NARROW)
    )


def dated(shown: Shown) -> str:
    return shown.date


FACTS: dict[str, Callable[[Shown], object]] = {
    "dated": dated,
    "committed": lambda shown: shown.report.source.commit,
    "unit": lambda shown: shown.row.unit,
    "driver": lambda shown: shown.bench.environment.driver,
    "torch": lambda shown: shown.bench.environment.torch,
    "versions": lambda shown: sheet.versions(shown) or None,
    "cuda": lambda shown: shown.bench.environment.cuda,
    "method": lambda shown: shown.row.timing.method if shown.row.timing else None,
    "rounds": lambda shown: shown.bench.rounds,
}
"""What the page says once for all rows of a GPU."""


def middle(values: Sequence[float]) -> float | None:
    """The median, if there is one."""
    return median(values) if values else None


def ratio(value: float) -> str:
    """To three places, because two make 1.00 of what is not 1; of a large one, fewer."""
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def compact(megabytes: float) -> str:
    """Three digits, or all before the point."""
    return f"{megabytes:,.{max(0, 2 - math.floor(math.log10(megabytes)))}f}"


def tint(share: float) -> int:
    """How many of :data:`TINTS` a share reaches."""
    return sum(share >= least for least in TINTS)


def config(standing: Standing, shown: Shown) -> str:
    """The parameters beside M, N and K in which rows differ: ``nw=4 u=4``."""
    given = shown.row.params
    return " ".join(f"{name}={given[name]}" for name in standing.varying if name in given)


def times(standing: Standing, shown: Shown) -> str:
    """What a cell leaves out: the spread, the times, where and when."""
    timing = shown.counted
    if timing is None:
        return shown.row.void or ""
    share, own = timing.share_of_ceiling, timing.subject
    said = [
        f"{shown.title}: {share.median:.1%} ({share.q1:.1%} to {share.q3:.1%}) of the ceiling",
        f"{own.time_us.median:.2f} µs, {own.gbps:,.0f} GB/s; read ceiling {timing.ceiling.gbps:,.0f}"
        + (f", copy ceiling {timing.copy_ceiling.gbps:,.0f}" if timing.copy_ceiling else ""),
        *(f"{mode.name} {mode.time_us.median:.2f} µs" for mode in timing.modes),
        *(() if timing.steady else ("unsteady:",)),
        f"from the first rounds to the last {timing.drift:.3f} × the time",
        f"alone, without a rest, {timing.sustained:.3f} ×" if timing.sustained else "",
        "without a rest {1:.3f} × {0}".format(*timing.fastest_sustained)
        if timing.fastest_sustained
        else "",
        config(standing, shown),
        f"{shown.date}{', earlier' if shown.stale else ''}"
        + (f", unit {shown.row.unit[:8]}" if shown.row.unit else ""),
    ]
    return "\n".join(filter(None, said))


def peers_of(shown: Shown) -> str:
    """Every peer's ratio, the best first."""
    timing = shown.counted
    if timing is None:
        return ""
    order = sorted(timing.speedup.items(), key=lambda item: item[1].median)
    return "\n".join(f"{name}: {s.median:.3f} ({s.q1:.3f} to {s.q3:.3f})" for name, s in order)


def _point(shown: Shown) -> chart.Point | None:
    timing = shown.counted
    if timing is None:
        return None
    share = timing.share_of_ceiling.median
    said = f"{shown.title}: {share:.1%}, {shown.megabytes:,.1f} MB, {timing.subject.time_us.median:.2f} µs"
    return chart.Point(shown.megabytes, share, said, hollow=shown.stale)
