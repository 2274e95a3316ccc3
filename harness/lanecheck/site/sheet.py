"""The benchmark rows of a page as CSV: one line a row and contender, those that were absent too."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from lanecheck.bench.model import Measurement
from lanecheck.bench.spread import Spread
from lanecheck.site.bandwidth import AXES, Shown, Standing

SUBJECT, READ, COPY, PEER, MODE, ABSENT = (
    "subject",
    "read ceiling",
    "copy ceiling",
    "peer",
    "mode",
    "absent",
)
NUMBERS = (
    "median_us",
    "q1_us",
    "q3_us",
    "gbps",
    "share_of_ceiling",
    "speedup_of_subject",
    "rounds",
    "sustained",
)
ABOUT = (
    "void",
    "unsteady",
    "power_capped",
    "absent",
    "recorded",
    "commit",
    "kernel_sha256",
    "earlier_source",
    "unit",
    "packages",
    "detail",
)


def text(standings: Sequence[Standing]) -> str:
    """The whole file. Ratios are medians, round by round; modes were timed in rounds of their own, and have
    none."""
    rows = [(standing.gpu, shown) for standing in standings for shown in standing.rows]
    names = dict.fromkeys(chain(AXES, *(shown.row.params for _, shown in rows)))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("gpu", *names, "role", "contender", *NUMBERS, *ABOUT))
    for gpu, shown in rows:
        shape = [shown.row.params.get(name, "") for name in names]
        for role, contender, numbers, absent, detail in _lines(shown):
            about = _about(shown, absent, detail)
            writer.writerow((gpu, *shape, role, contender, *numbers, *about))
    return out.getvalue()


def _lines(shown: Shown) -> Iterator[tuple[str, str, Sequence[object], str, str]]:
    """Role, contender, its numbers, why it is absent, and what it is."""
    timing = shown.row.timing
    nothing = [""] * len(NUMBERS)
    if timing is None:
        yield SUBJECT, shown.bench.subject, nothing, "", ""
        return
    own, read = timing.subject, timing.ceiling

    def raced(role: str, each: Measurement, detail: str) -> tuple[str, str, list[object], str, str]:
        share = Spread.of_ratios(read.samples_us, each.samples_us).median
        speedup = Spread.of_ratios(each.samples_us, own.samples_us).median
        slowed = each.slowed or (timing.sustained if each is own else None)
        return role, each.name, _numbers(each, share, speedup, slowed), "", detail

    yield raced(SUBJECT, own, own.detail or timing.method)
    yield raced(READ, read, read.detail)
    if timing.copy_ceiling:
        yield raced(COPY, timing.copy_ceiling, timing.copy_ceiling.detail)
    for peer in timing.peers:
        yield raced(PEER, peer, peer.detail)
    for mode in timing.modes:
        yield MODE, mode.name, _numbers(mode), "", mode.detail
    for each in timing.absent:
        yield ABSENT, each.name, nothing, each.reason, ""


def _numbers(
    each: Measurement,
    share: float | None = None,
    speedup: float | None = None,
    sustained: float | None = None,
) -> list[object]:
    time = each.time_us
    times = (f"{value:.4f}" for value in (time.median, time.q1, time.q3))
    *ratios, last = (
        "" if ratio is None else f"{ratio:.5f}" for ratio in (share, speedup, sustained)
    )
    return [*times, f"{each.gbps:.2f}", *ratios, len(each.samples_us), last]


def _about(shown: Shown, absent: str, detail: str) -> Iterable[object]:
    report = shown.report
    recorded, source = report.created.isoformat(), report.source
    return (
        shown.row.void or "",
        "" if shown.row.timing is None else int(not shown.row.timing.steady),
        "" if shown.power_capped is None else int(shown.power_capped),
        absent,
        recorded,
        source.commit,
        source.sha256[:12],
        int(shown.stale),
        shown.row.unit or "",
        versions(shown),
        detail,
    )


def versions(shown: Shown) -> str:
    """What the peers of a row were made of: ``gemlite 0.6.0, triton 3.7.1``."""
    return ", ".join(f"{name} {version}" for name, version in sorted(shown.bench.versions.items()))
