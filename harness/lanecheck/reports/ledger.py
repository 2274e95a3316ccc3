"""What the recorded reports show together: one entry for each cell of the matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from lanecheck import gpu
from lanecheck.bench import ncu
from lanecheck.bench.model import BenchRecord
from lanecheck.bench.model import Row as BenchRow
from lanecheck.matrix import ALL, Cell, Matrix, Row
from lanecheck.reports.cells import campaign_cells
from lanecheck.reports.model import CampaignRecord, CellRecord, Report, Status

T = TypeVar("T")


@dataclass(frozen=True)
class Run(Generic[T]):
    """Cases that were run, and may be run again.

    Attributes:
        name: what two runs of the same cases have in common; of those the one with more holds the other.
        good: whether nothing was wrong with them.
        evidence: what it is all about.
    """

    name: tuple[object, ...]
    cases: int
    good: bool
    evidence: T


@dataclass(frozen=True)
class Entry:
    """One cell of the ledger and the newest report that it rests on.

    Attributes:
        stale: whether that report judged another source than the newest report did, or knew no doubts.
        reports: how many reports it rests on.
    """

    cell: CellRecord
    report: Report | None
    stale: bool = False
    reports: int = 0

    @property
    def date(self) -> str:
        return self.report.created.strftime("%Y-%m-%d") if self.report else ""

    @property
    def status(self) -> str:
        """``stale`` instead of verified, where that was another source."""
        kept = self.stale and self.cell.status is Status.VERIFIED
        return "stale" if kept else self.cell.status.value


def standing(runs: Sequence[Run[T]]) -> list[Run[T]]:
    """What runs of one source come to, oldest first: one of each name.

    A run that is not good stands until a later one of its name, with at least as many cases, is good. Where
    none stands it is the largest, of equally large ones the newest. So a small run may add to what is known
    but takes nothing from it, neither the cases of a larger one nor a failure.
    """

    def outdone(at: int, run: Run[T]) -> bool:
        later = (each for each in runs[at + 1 :] if each.name == run.name and each.good)
        return any(each.cases >= run.cases for each in later)

    kept: dict[tuple[object, ...], Run[T]] = {}
    for run in [run for at, run in enumerate(runs) if not outdone(at, run)]:
        if run.name not in kept or not run.good:  # of the good ones the first is the largest
            kept[run.name] = run
    return [run for run in runs if kept[run.name] is run]


def ledger(reports: Sequence[Report], matrix: Matrix) -> list[Entry]:
    """Every cell of the matrix: what the reports of the newest source say of it or, if they are silent, those
    of the source before.

    Args:
        reports: at least one, oldest first.
    """
    said: dict[str, list[tuple[Report, CellRecord]]] = {}
    for report in reports:
        for cell in report.cells:
            said.setdefault(f"{cell.arch}/{cell.device}/{cell.job}", []).append((report, cell))
    everything = matrix.row_cells(Row(jobs=(ALL,), archs=(ALL,), devices=(ALL,)))
    return [_entry(cell, said.get(str(cell), []), reports[-1], matrix) for cell in everything]


class _Shown(NamedTuple):
    """What a report says of a cell, and the campaign or timed shape that it says it by, if any."""

    report: Report
    cell: CellRecord
    campaign: CampaignRecord | None = None
    shape: tuple[object, ...] = ()


def _entry(
    cell: Cell, said: Sequence[tuple[Report, CellRecord]], newest: Report, matrix: Matrix
) -> Entry:
    runs = [run for report, record in said for run in _runs(report, record, matrix)]
    if not runs:
        if not said:
            return Entry(_unseen(cell), None, stale=True)
        # the newest, but a machine with GPUs knows more than that another has none
        report, record = max(reversed(said), key=lambda each: bool(each[0].environment.gpus))
        return Entry(record, report, stale=True, reports=1)
    sources = [run.evidence.report.source for run in runs]
    current = any(not source.differs(newest.source) for source in sources)
    source = newest.source if current else sources[-1]
    told = [run for run in runs if not run.evidence.report.source.differs(source)]
    kept = standing(told)
    wrong = [run.evidence for run in kept if not run.good]
    shown = wrong or [run.evidence for run in kept]
    cells = [] if wrong else [run.evidence.cell for run in told]
    sound = [cell for cell in cells if cell.status is Status.VERIFIED]
    resting = {id(each.report) for each in shown}
    return Entry(_together(shown, sound, matrix), shown[-1].report, not current, len(resting))


def _runs(report: Report, cell: CellRecord, matrix: Matrix) -> list[Run[_Shown]]:
    """What a report shows of a cell: its campaigns, its timed shapes, or else all of it as one.

    What a verified report finds wrong counts as good, and what none of a disproven one's explains is
    blamed on all of them.
    """
    campaigns = [each for each in report.campaigns if _speaks(each, cell, matrix)]
    bench = report.bench if cell.job == "bench" else None
    status = cell.status
    if status is Status.UNVERIFIED and not (bench or any(each.reordered for each in campaigns)):
        return []
    runs = [
        Run(each.name, each.cases, bool(each.good), _Shown(report, cell, each))
        for each in campaigns
    ]
    if bench:
        runs = _timed(bench, _Shown(report, cell))
    elif not runs:
        runs = [Run((), 1, True, _Shown(report, cell))]
    as_found = status is not Status.DISPROVEN or not all(run.good for run in runs)
    verified = status is Status.VERIFIED
    return [
        Run(run.name, run.cases, verified or (as_found and run.good), run.evidence) for run in runs
    ]


def _timed(bench: BenchRecord, shown: _Shown) -> list[Run[_Shown]]:
    """The shapes of a benchmark; those that Nsight Compute measured once more, by a name of their own.

    A round is a case. A good time that nobody doubted is left out.
    """

    def run(row: BenchRow, good: bool, *by: str) -> list[Run[_Shown]]:
        if good and not (row.counted and row.counted.facts):
            return []
        shape = (*sorted(row.params.items()),)
        return [Run((*shape, *by), bench.rounds, good, shown._replace(shape=shape))]

    runs = [run(row, not row.disproven) for row in bench.rows]
    runs += [run(each.row, not each.doubts, "ncu") for each in ncu.agreements(bench)]
    return [*chain.from_iterable(runs)]


def _speaks(campaign: CampaignRecord, cell: CellRecord, matrix: Matrix) -> bool:
    """Whether a campaign of a cell's report is of that cell."""
    if cell.job == "fuzz":
        return campaign.device == "host"
    if cell.job != "silicon" or campaign.device != "cuda" or campaign.variant != cell.arch:
        return False
    capability = matrix.devices[cell.device].cc or ""
    if not campaign.gpu:
        return capability in campaign.capabilities
    return cell.device in gpu.matched([gpu.Gpu(campaign.gpu, capability, "")], matrix)


def _together(shown: Sequence[_Shown], sound: Sequence[CellRecord], matrix: Matrix) -> CellRecord:
    """The cell that all of them show.

    Args:
        sound: the verified cells of their source; none where something is wrong.
    """
    last = shown[-1].cell
    campaigns = [each.campaign for each in shown if each.campaign]
    if len(campaigns) == len(shown):
        found = campaign_cells(campaigns, matrix, last.device)
        return next(cell for cell in found if cell.arch == last.arch)
    shapes = {each.shape for each in shown if each.shape}
    if sound and shapes:
        return sound[-1].model_copy(update={"reason": f"{len(shapes):,} shapes"})
    return last


def _unseen(cell: Cell) -> CellRecord:
    return CellRecord(
        arch=cell.arch,
        device=cell.device,
        job=cell.job,
        status=Status.UNVERIFIED,
        reason="no recorded run speaks of it",
    )
