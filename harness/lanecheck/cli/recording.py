"""What --record and --json of several commands share: a report of less than a whole verify."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lanecheck import gpu
from lanecheck.cli.options import matrix_path, out, relative, toolchain
from lanecheck.matrix import Matrix
from lanecheck.reports import model, store
from lanecheck.reports.model import CampaignRecord, CellRecord, Report
from lanecheck.subject import load, recipe_of
from lanecheck.verify import campaign_cells


def save(
    reference: str,
    path: Path | None,
    record: bool,
    copy: Path | None,
    *,
    cells: Iterable[CellRecord] = (),
    **parts: Any,
) -> None:
    """Put these parts into a report of a subject, store it and say where.

    Args:
        reference: the subject, ``module:ATTRIBUTE``.
        path: of the matrix, as given. record: under ``reports/``. copy: where else, if anywhere.
        parts: fields of :class:`Report`.
    """
    root = matrix_path(path).parent
    subject, gpus, tools = load(reference), gpu.detect(), toolchain()
    report = Report(
        created=model.now(),
        subject=subject.name,
        source=model.source_record(root, recipe_of(subject).root),
        environment=model.environment(
            tools.nvcc_version if gpus else None, tools.cxx_version, [found.name for found in gpus]
        ),
        cells=list(cells),
        **parts,
    )
    saved = store.save(report, root, record, copy)
    out.print(f"report: {relative(saved)}", markup=False, soft_wrap=True)


def save_campaigns(
    campaigns: list[CampaignRecord], loaded: Matrix, path: Path | None, copy: Path | None
) -> None:
    """Record campaigns of one target, with the cells that they show by themselves."""
    device = next(iter(gpu.matched(gpu.detect(), loaded)), "host")
    cells = campaign_cells(campaigns, loaded, device)
    save(loaded.subject, path, True, copy, cells=cells, campaigns=campaigns)
