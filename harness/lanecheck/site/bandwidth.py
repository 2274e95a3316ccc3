"""What the recorded benchmarks say of each GPU: which rows count, what is missing, and how the peers fare.

Pure: reports in, numbers out. Of a shape that row of the newest source counts in which most peers raced, then
of most rounds, then the newest; a row of an earlier source, or from before timings were doubted, only where
there is none of that, and then it is marked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from lanecheck.bench.machine import Reading
from lanecheck.bench.model import BenchRecord, Row, Timing
from lanecheck.bench.spread import Spread
from lanecheck.bench.table import taking_part
from lanecheck.bench.telemetry import POWER_CAP
from lanecheck.reports.model import Report
from lanecheck.subject import Params, title

T = TypeVar("T")
AXES = "mnk"
SHORT = 8
"""Most letters of a peer's short name."""

Weight = tuple[int, int]
"""N and K."""


@dataclass(frozen=True)
class Best:
    """The fastest peer of one row, and the subject's speed-up over it."""

    peer: str
    speedup: Spread

    @property
    def ahead(self) -> bool:
        """Whether it beats the subject."""
        return self.speedup.median < 1

    @property
    def clearly(self) -> bool:
        """… by more than the spread: in three rounds of four."""
        return self.speedup.q3 < 1


@dataclass(frozen=True)
class Shown:
    """One row that counts, and the report that holds it.

    Attributes:
        stale: whether it is of an earlier source than the newest report, or nobody doubted its timing.
    """

    row: Row
    bench: BenchRecord
    report: Report
    stale: bool = False

    @property
    def counted(self) -> Timing | None:
        """None if void."""
        return self.row.counted

    @property
    def at(self) -> tuple[int, int, int] | None:
        """M, N and K, if the subject has these axes."""
        sizes = [self.row.params.get(axis) for axis in AXES]
        m, n, k = (size if isinstance(size, int) else 0 for size in sizes)
        return (m, n, k) if m and n and k else None

    @property
    def title(self) -> str:
        return title(self.row.params)

    @property
    def date(self) -> str:
        return self.report.created.strftime("%Y-%m-%d")

    @property
    def megabytes(self) -> float:
        """Millions of bytes that one launch moves."""
        return self.row.traffic.bytes / 1e6

    @property
    def power_capped(self) -> bool | None:
        """Whether the GPU said after the row that a power cap slows it; None if it said nothing."""
        after = self.row.telemetry.after if self.row.telemetry else None
        reasons = after.clock_event_reasons if isinstance(after, Reading) else None
        return None if reasons is None else POWER_CAP in reasons

    @property
    def best(self) -> Best | None:
        """None if void, or if no peer took part."""
        fastest = self.counted.fastest if self.counted else None
        return Best(*fastest) if fastest else None


@dataclass(frozen=True)
class Tokens:
    """The rows of one M.

    Attributes:
        covered: rows of the shapes asked for; those void among them have a row too.
        missing: shapes asked for that have none.
        beyond: rows of shapes that were not asked for. stale: earlier rows, as :class:`Shown` says.
        shares: of the ceiling, of the rows that count. unsteady: how many of those are not steady.
        unrested: the subject's speed-up over the best peer of those, when neither rests.
        capped: rows after which the GPU said that a power cap slows it, and rows after which it spoke.
        speedups: the subject's over the best peer, of the rows that have one.
        peers: how many raced, of how many. lacking: by peer, in how many rows it did not.
        modes: by mode, the median over the rows of its time over the cold chain's, and how many have it.
    """

    m: int
    covered: int
    missing: list[Weight]
    beyond: int
    stale: int
    void: int
    shares: list[float]
    unsteady: int
    unrested: list[float]
    capped: tuple[int, int]
    speedups: list[float]
    peers: str
    lacking: dict[str, int]
    modes: dict[str, tuple[float, int]]

    @property
    def asked(self) -> int:
        return self.covered + len(self.missing)

    @property
    def behind(self) -> int:
        """Rows whose best peer is faster."""
        return sum(speedup < 1 for speedup in self.speedups)


@dataclass(frozen=True)
class Peer:
    """How one peer fared, over the rows that count.

    Attributes:
        speedups: the subject's over it, one a row in which it took part.
        absent: reasons and how many rows give them.
        best: rows in which no other peer was faster. ahead: in which it beat the subject, and
        clearly: by more than the spread.
        tokens: by M the median speed-up, and in how many rows it was ahead.
    """

    name: str
    short: str
    speedups: list[float]
    absent: list[tuple[str, int]]
    best: int
    ahead: int
    clearly: int
    tokens: dict[int, tuple[float, int]]


@dataclass(frozen=True)
class Standing:
    """What is known of one GPU product.

    Attributes:
        rows: all that count, void ones too. further: those of them that are not in ``grid``.
        grid: by N and K, in the order of the bytes; then by M.
        shorts: short names of the peers.
    """

    gpu: str
    rows: list[Shown]
    grid: dict[Weight, dict[int, Shown]]
    further: list[Shown]
    tokens: list[Tokens]
    peers: list[Peer]
    shorts: dict[str, str]

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.gpu.lower()).strip("-") or "gpu"

    @property
    def timed(self) -> list[Timing]:
        return [shown.counted for shown in self.rows if shown.counted]

    @property
    def shares(self) -> list[float]:
        return [timing.share_of_ceiling.median for timing in self.timed]

    @property
    def raced(self) -> list[Best]:
        return [shown.best for shown in self.rows if shown.best]

    @property
    def against(self) -> str:
        """How many peers raced, of how many."""
        return taking_part(self.timed)

    @property
    def stale(self) -> list[Shown]:
        return [shown for shown in self.rows if shown.stale]

    @property
    def columns(self) -> list[int]:
        """Every M that the grid has."""
        return sorted({m for rows in self.grid.values() for m in rows})

    @property
    def modes(self) -> list[str]:
        return sorted({mode.name for timing in self.timed for mode in timing.modes})

    @property
    def voids(self) -> list[tuple[str, list[Shown]]]:
        """Reasons, and the rows that are void for them."""
        return alike((shown for shown in self.rows if shown.row.void), lambda s: s.row.void or "")

    @property
    def varying(self) -> list[str]:
        """The parameters beside M, N and K that are not the same in every row."""
        names = dict.fromkeys(name for shown in self.rows for name in shown.row.params)
        return [
            name
            for name in names
            if name not in AXES and len({shown.row.params.get(name) for shown in self.rows}) > 1
        ]

    def several(self, what: Callable[[Shown], object]) -> list[str]:
        """What the rows have, each once and sorted; None is left out."""
        return sorted({str(found) for each in self.rows if (found := what(each)) is not None})

    def gbps(self, ceiling: str) -> tuple[float, float] | None:
        """Least and most of ``ceiling`` or ``copy_ceiling``, in 10^9 bytes a second."""
        found = [speed.gbps for timing in self.timed if (speed := getattr(timing, ceiling))]
        return (min(found), max(found)) if found else None


def standings(reports: Sequence[Report], asked: Iterable[Params] = ()) -> list[Standing]:
    """What is known of each GPU that was benchmarked.

    Args:
        reports: oldest first.
        asked: the shapes of a whole sweep. If there are none, each M is asked for every N and K seen.
    """
    sizes = {tuple(int(params[axis]) for axis in AXES) for params in asked if _sized(params)}
    return [_standing(gpu, rows, sizes) for gpu, rows in sorted(selected(reports).items())]


def selected(reports: Sequence[Report]) -> dict[str, list[Shown]]:
    """By GPU product, one row of each set of parameters: the newest, but for those that are better.

    One that is not stale is better than one that is; then, among those that count, one in which more peers
    took part, or as many over more rounds. One that is void is hidden by newer ones alone, and hides older
    ones.
    """
    found: dict[str, dict[frozenset[tuple[str, int | str]], Shown]] = {}
    for report in reports:
        earlier = report.source.differs(reports[-1].source)
        for row in report.bench.rows if report.bench else ():
            assert report.bench
            stale = earlier or bool(row.timing and not row.timing.facts)
            of_gpu = found.setdefault(report.bench.environment.gpu, {})
            key, shown = frozenset(row.params.items()), Shown(row, report.bench, report, stale)
            if key not in of_gpu or not _better(of_gpu[key], shown):
                of_gpu.pop(key, None)  # what is newer comes later
                of_gpu[key] = shown
    return {gpu: [*rows.values()] for gpu, rows in found.items()}


def _better(old: Shown, new: Shown) -> bool:
    """Whether an older row of the same parameters says more."""
    if old.stale != new.stale:
        return new.stale
    if old.stale or not (old.counted and new.counted):
        return False
    peers, rounds = len(new.counted.peers), new.bench.rounds
    return (len(old.counted.peers), old.bench.rounds) > (peers, rounds)


def _standing(gpu: str, rows: list[Shown], asked: set[tuple[int, ...]]) -> Standing:
    cells: dict[tuple[int, int, int], Shown] = {}
    for shown in sorted(rows, key=lambda each: not each.stale):  # the newest last
        if shown.at:
            cells[shown.at] = shown
    # another configuration of an earlier source says nothing where the newest has one
    kept = [each for each in rows if not (each.stale and each.at and not cells[each.at].stale)]
    further = [each for each in kept if each.at is None or cells[each.at] is not each]
    weights: dict[Weight, dict[int, Shown]] = {}
    for m, n, k in sorted(cells):
        weights.setdefault((n, k), {})[m] = cells[m, n, k]
    order = sorted(weights, key=lambda w: (next(iter(weights[w].values())).row.traffic.bytes, w))
    asked = asked or {(m, *weight) for m, _, _ in cells for weight in weights}
    shorts = abbreviated(_peers(kept))
    return Standing(
        gpu=gpu,
        rows=kept,
        grid={weight: weights[weight] for weight in order},
        further=further,
        tokens=[_tokens(m, cells, asked) for m in sorted({at[0] for at in (*cells, *asked)})],
        peers=[_peer(name, shorts[name], kept) for name in shorts],
        shorts=shorts,
    )


def _tokens(
    m: int, cells: Mapping[tuple[int, int, int], Shown], asked: set[tuple[int, ...]]
) -> Tokens:
    here = {at: shown for at, shown in cells.items() if at[0] == m}
    wanted = {at for at in asked if at[0] == m}
    timed = [shown.counted for shown in here.values() if shown.counted]
    capped = [said for shown in here.values() if (said := shown.power_capped) is not None]
    times: dict[str, list[float]] = {}
    for timing in timed:
        for mode in timing.modes:
            ratio = mode.time_us.median / timing.subject.time_us.median
            times.setdefault(mode.name, []).append(ratio)
    return Tokens(
        m=m,
        covered=len(wanted & here.keys()),
        missing=sorted((n, k) for _, n, k in wanted - here.keys()),
        beyond=len(here.keys() - wanted),
        stale=sum(shown.stale for shown in here.values()),
        void=sum(shown.row.void is not None for shown in here.values()),
        shares=[timing.share_of_ceiling.median for timing in timed],
        unsteady=sum(not timing.steady for timing in timed),
        unrested=[peer[1] for timing in timed if (peer := timing.fastest_sustained)],
        capped=(capped.count(True), len(capped)),
        speedups=[shown.best.speedup.median for shown in here.values() if shown.best],
        peers=taking_part(timed),
        lacking=Counter(each.name for timing in timed for each in timing.absent_peers),
        modes={name: (median(ratios), len(ratios)) for name, ratios in times.items()},
    )


def _peers(rows: Iterable[Shown]) -> list[str]:
    """Every peer that took part or could not, in the order in which the records name them."""
    names: dict[str, None] = {}
    for timing in (shown.counted for shown in rows if shown.counted):
        names |= dict.fromkeys(timing.speedup)
        names |= dict.fromkeys(each.name for each in timing.absent_peers)
    return list(names)


def _peer(name: str, short: str, rows: Sequence[Shown]) -> Peer:
    raced: list[tuple[Shown, Spread]] = []
    reasons: list[str] = []
    for shown in rows:
        if timing := shown.counted:
            if name in timing.speedup:
                raced.append((shown, timing.speedup[name]))
                continue
            said = [each.reason for each in timing.absent_peers if each.name == name]
            reasons.append(said[0] if said else "the record does not name it")
    by_m: dict[int, list[float]] = {}
    for shown, speedup in raced:
        if shown.at:
            by_m.setdefault(shown.at[0], []).append(speedup.median)
    return Peer(
        name=name,
        short=short,
        speedups=[speedup.median for _, speedup in raced],
        absent=[(reason, len(same)) for reason, same in alike(reasons, str)],
        best=sum(bool(shown.best and shown.best.peer == name) for shown, _ in raced),
        ahead=sum(Best(name, speedup).ahead for _, speedup in raced),
        clearly=sum(Best(name, speedup).clearly for _, speedup in raced),
        tokens={
            m: (median(each), sum(ratio < 1 for ratio in each)) for m, each in sorted(by_m.items())
        },
    )


def alike(things: Iterable[T], reason: Callable[[T], str]) -> list[tuple[str, list[T]]]:
    """Things by reason, the commonest first. Reasons that differ in their numbers alone are one, which is
    given as the first has it."""
    groups: dict[str, tuple[str, list[T]]] = {}
    differing: dict[str, set[str]] = {}
    for thing in things:
        said = reason(thing)
        pattern = re.sub(r"\d[\d.,]*", "#", said)
        groups.setdefault(pattern, (said, []))[1].append(thing)
        differing.setdefault(pattern, set()).add(said)
    found = [
        (f"{said} (and such)" if len(differing[pattern]) > 1 else said, same)
        for pattern, (said, same) in groups.items()
    ]
    return sorted(found, key=lambda group: -len(group[1]))


def abbreviated(names: Iterable[str]) -> dict[str, str]:
    """A short name for each: its first word, of that the last part, or its first letters; none twice."""
    shorts: dict[str, str] = {}
    for name in names:
        first = (re.findall(r"[^\s,]+", name) or [name])[0]
        short = (first if len(first) <= SHORT else first.rsplit(".", 1)[-1])[:SHORT]
        used = Counter(shorts.values())
        number, stem = 2, short
        while used[short]:
            short, number = f"{stem}{number}", number + 1
        shorts[name] = short
    return shorts


def _sized(params: Params) -> bool:
    return all(isinstance(params.get(axis), int) for axis in AXES)
