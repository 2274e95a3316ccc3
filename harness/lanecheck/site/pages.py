"""The one builder of every page: recorded reports in, static HTML out."""

from __future__ import annotations

import inspect
from pathlib import Path

from jinja2 import Environment, PackageLoader, select_autoescape

from lanecheck import oracles
from lanecheck.matrix import Matrix
from lanecheck.reports.model import CellRecord, Report, Status


def build(reports: list[Report], matrix: Matrix, output: Path) -> Path:
    """Write ``index.html``.

    Args:
        reports: at least one, oldest first. matrix: its archs and jobs are the ledger's axes.
        output: folder, made if need be.

    Returns:
        The page's path.
    """
    environment = Environment(
        loader=PackageLoader("lanecheck.site"), autoescape=select_autoescape(), trim_blocks=True
    )
    page = environment.get_template("index.html.j2").render(
        reports=list(reversed(reports)),
        ledger=_ledger(reports),
        matrix=matrix,
        oracles=[(module.NAME, inspect.getdoc(module)) for module in oracles.LADDER],
        bench=next((r for r in reversed(reports) if r.bench), None),
        faults=next((r for r in reversed(reports) if r.faults), None),
    )
    output.mkdir(parents=True, exist_ok=True)
    target = output / "index.html"
    target.write_text(page)
    return target


def _ledger(reports: list[Report]) -> dict[tuple[str, str], tuple[CellRecord, Report]]:
    """For each arch and job, the newest report that says more than "unverified"."""
    ledger: dict[tuple[str, str], tuple[CellRecord, Report]] = {}
    for report in reports:
        for cell in report.cells:
            known = ledger.get((cell.arch, cell.job))
            if cell.status is not Status.UNVERIFIED or known is None:
                ledger[cell.arch, cell.job] = (cell, report)
    return ledger
