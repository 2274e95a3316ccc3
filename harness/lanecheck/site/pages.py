"""The one builder of the pages: recorded reports in, static HTML out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from lanecheck.bench.paired import table
from lanecheck.gpu import Gpu, matched
from lanecheck.matrix import Matrix
from lanecheck.oracles import bits
from lanecheck.reports import summary
from lanecheck.reports.ledger import Entry, Run, ledger, standing
from lanecheck.reports.model import (
    CampaignRecord,
    ControlRecord,
    FaultRecord,
    Report,
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
    same = [report for report in reports if not report.source.differs(newest.source)]
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
        summary=summary,
        gates=_newest_rates(reports),
        words=table,
        faults=faults,
        on_gpu=on_gpu,
        titles={fault.id: fault.title for side in broken for fault in side.faults.values()},
        compared=next((report for report in reversed(same) if report.comparisons), None),
        sanitized=next((report for report in reversed(same) if report.sanitized), None),
        silicon=_silicon(same),
        real=next((report for report in reversed(reports) if report.real), None),
        summed=next(
            (report for report in reversed(reports) if report.summations or report.treeless), None
        ),
    )
    oracles = environment.get_template("oracles.html.j2").render(
        subject=newest.subject,
        rungs=rungs(campaign for report in same for campaign in report.campaigns),
        faults=faults,
    )
    write_text(oracles, output / "oracles.html")
    sheets = {each.gpu: _data_sheet(each, matrix) for each in standings}
    for name, text in bandwidth_page.files(environment, newest.subject, standings, sheets).items():
        write_text(text, output / name)
    write_text(index, output / "index.html")
    return output / "index.html"


def _data_sheet(standing: bandwidth.Standing, matrix: Matrix) -> int | None:
    capability = standing.rows[0].bench.environment.capability
    devices = matched([Gpu(standing.gpu, capability, "")], matrix)
    return next((matrix.devices[name].datasheet_gbps for name in devices), None)


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
    """Of each build that ran on a GPU: cases, elements compared bit for bit, and failing cases, of the runs
    that stand."""
    runs = standing(
        [
            Run(
                (*campaign.name, campaign.gpu or " ".join(sorted({*report.environment.gpus}))),
                campaign.cases,
                not campaign.failures,
                campaign,
            )
            for report in reports
            for campaign in report.campaigns
            if campaign.device == "cuda"
        ]
    )
    builds: dict[str, list[CampaignRecord]] = {}
    for run in runs:
        builds.setdefault(run.evidence.variant, []).append(run.evidence)
    return {
        arch: (
            sum(each.cases for each in campaigns),
            sum(each.compared.get(bits.NAME, 0) for each in campaigns),
            sum(each.failing for each in campaigns),
        )
        for arch, campaigns in sorted(builds.items())
    }


def _newest_rates(reports: list[Report]) -> list[Report]:
    by_machine = {report.power.machine: report for report in reports if report.power}
    return [by_machine[name] for name in sorted(by_machine)]
