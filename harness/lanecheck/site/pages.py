"""The one builder of the pages: recorded reports in, static HTML out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from lanecheck.bench.paired import table
from lanecheck.matrix import ALL, Matrix, Row
from lanecheck.oracles import bits
from lanecheck.reports.model import (
    CellRecord,
    ControlRecord,
    FaultRecord,
    Report,
    Status,
    write_text,
)
from lanecheck.site import bandwidth, bandwidth_page
from lanecheck.site.ladder import rungs
from lanecheck.subject import Params


@dataclass(frozen=True)
class Broken:
    """The newest faults and controls of one device, ``host`` or ``cuda``, and when they ran."""

    created: datetime
    gpus: list[str]
    faults: dict[str, FaultRecord]
    controls: dict[str, ControlRecord]


@dataclass(frozen=True)
class Entry:
    """One cell of the ledger and the report that says most of it.

    Attributes:
        stale: whether that report judged another source than the newest report did.
    """

    cell: CellRecord
    report: Report | None
    stale: bool = False

    @property
    def date(self) -> str:
        return self.report.created.strftime("%Y-%m-%d") if self.report else ""

    @property
    def status(self) -> str:
        """``stale`` instead of verified, where that was another source."""
        kept = self.stale and self.cell.status is Status.VERIFIED
        return "stale" if kept else self.cell.status.value


def build(
    reports: list[Report], matrix: Matrix, output: Path, sweep: Sequence[Params] = ()
) -> Path:
    """Write ``index.html``, ``bandwidth.html`` with ``bandwidth.csv``, and ``oracles.html``.

    Args:
        reports: at least one, oldest first. matrix: its archs and jobs are the ledger's axes.
        output: folder, made if need be.
        sweep: every shape whose speed one would like to know, if that is known.

    Returns:
        The first page's path.

    Raises:
        BadInput: if they cannot be written there.
    """
    environment = Environment(
        loader=PackageLoader("lanecheck.site"),
        autoescape=select_autoescape(("html", "j2")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["median"] = bandwidth_page.middle
    entries, standings = ledger(reports, matrix), bandwidth.standings(reports, sweep)
    newest = reports[-1]
    same = [report for report in reports if report.source.sha256 == newest.source.sha256]
    faults, on_gpu = _broken(reports, "host"), _broken(same, "cuda")
    broken = [side for side in (faults, on_gpu) if side]
    index = environment.get_template("index.html.j2").render(
        reports=list(reversed(reports)),
        newest=newest,
        matrix=matrix,
        table={
            arch: {job: _of(entries, arch, job) for job in matrix.jobs} for arch in matrix.archs
        },
        counts={
            status: sum(entry.status == status for entry in entries)
            for status in ("verified", "stale", "unverified", "disproven")
        },
        missing=missing(entries, matrix),
        standings=standings,
        dated=bandwidth_page.dated,
        gates=_newest_rates(reports),
        words=table,
        faults=faults,
        on_gpu=on_gpu,
        titles={fault.id: fault.title for side in broken for fault in side.faults.values()},
        compared=next((report for report in reversed(same) if report.comparisons), None),
        sanitized=next((report for report in reversed(same) if report.sanitized), None),
        silicon=_silicon(same),
        real=next((report for report in reversed(reports) if report.real), None),
        summed=next((report for report in reversed(reports) if report.summations), None),
    )
    oracles = environment.get_template("oracles.html.j2").render(
        subject=newest.subject,
        rungs=rungs(campaign for report in same for campaign in report.campaigns),
        faults=faults,
    )
    write_text(oracles, output / "oracles.html")
    for name, text in bandwidth_page.files(environment, newest.subject, standings).items():
        write_text(text, output / name)
    write_text(index, output / "index.html")
    return output / "index.html"


def ledger(reports: list[Report], matrix: Matrix) -> list[Entry]:
    """Every cell of the matrix: the newest report that says more of it than "unverified"."""
    newest: dict[str, Entry] = {}
    for report in reports:
        stale = report.source.sha256 != reports[-1].source.sha256
        for cell in report.cells:
            name = f"{cell.arch}/{cell.device}/{cell.job}"
            known = name in newest and newest[name].cell.status is not Status.UNVERIFIED
            if cell.status is not Status.UNVERIFIED or not known:
                newest[name] = Entry(cell, report, stale)
    everything = matrix.row_cells(Row(jobs=(ALL,), archs=(ALL,), devices=(ALL,)))
    return [
        newest.get(str(cell)) or _unseen(cell.arch, cell.device, cell.job) for cell in everything
    ]


def missing(entries: Iterable[Entry], matrix: Matrix) -> list[tuple[str, str, str, str]]:
    """What is not verified, a row each: device, jobs, archs, and why."""
    archs: dict[tuple[str, str, str], list[str]] = {}
    for entry in entries:
        if entry.status == "unverified":
            cell = entry.cell
            archs.setdefault((cell.device, cell.job, cell.reason), []).append(cell.arch)
    jobs: dict[tuple[str, str, str], list[str]] = {}
    for (device, job, reason), names in archs.items():
        jobs.setdefault((device, ", ".join(names), reason), []).append(matrix.jobs[job].column)
    return [
        (device, ", ".join(columns), names, reason)
        for (device, names, reason), columns in jobs.items()
    ]


def _of(entries: Iterable[Entry], arch: str, job: str) -> list[tuple[str, list[Entry]]]:
    """The entries of one arch and job, by status, the worst first."""
    here = [entry for entry in entries if (entry.cell.arch, entry.cell.job) == (arch, job)]
    order = ("disproven", "verified", "stale", "unverified")
    grouped = [(status, [e for e in here if e.status == status]) for status in order]
    return [(status, found) for status, found in grouped if found]


def _broken(reports: list[Report], device: str) -> Broken | None:
    for report in reversed(reports):
        faults = {fault.id: fault for fault in report.faults if fault.device == device}
        if faults:
            controls = {each.id: each for each in report.controls if each.device == device}
            return Broken(report.created, report.environment.gpus, faults, controls)
    return None


def _silicon(reports: list[Report]) -> dict[str, tuple[int, int, int]]:
    """Of each build that ran on a GPU: cases, elements compared bit for bit, and failing cases.

    Of runs of the same cases the newest counts.
    """
    runs = {
        (campaign.variant, campaign.seed, campaign.landmarks): campaign
        for report in reports
        for campaign in report.campaigns
        if campaign.device == "cuda"
    }
    return {
        arch: (
            sum(each.cases for each in campaigns),
            sum(each.compared.get(bits.NAME, 0) for each in campaigns),
            sum(each.failing for each in campaigns),
        )
        for arch in sorted({arch for arch, _, _ in runs})
        if (campaigns := [each for (build, _, _), each in runs.items() if build == arch])
    }


def _unseen(arch: str, device: str, job: str) -> Entry:
    reason = "no recorded run speaks of it"
    cell = CellRecord(arch=arch, device=device, job=job, status=Status.UNVERIFIED, reason=reason)
    return Entry(cell, None)


def _newest_rates(reports: list[Report]) -> list[Report]:
    by_machine = {report.power.machine: report for report in reports if report.power}
    return [by_machine[name] for name in sorted(by_machine)]
