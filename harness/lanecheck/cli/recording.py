"""What --record and --json of several commands share: a report of less than a whole verify."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lanecheck import gpu
from lanecheck.cli.options import matrix_path, out, relative, toolchain
from lanecheck.gpu import Gpu
from lanecheck.matrix import Matrix
from lanecheck.reports import store
from lanecheck.reports.cells import campaign_cells
from lanecheck.reports.model import CampaignRecord, CellRecord, Report
from lanecheck.reports.results import environment, now
from lanecheck.reports.source import source_record
from lanecheck.subject import load, recipe_of


def save(
    reference: str,
    path: Path | None,
    record: bool,
    copy: Path | None,
    *,
    gpus: Sequence[str] | None = None,
    cells: Iterable[CellRecord] = (),
    **parts: Any,
) -> None:
    """Put these parts into a report of a subject, store it and say where.

    Args:
        reference: the subject, ``module:ATTRIBUTE``.
        path: of the matrix, as given. record: under ``reports/``. copy: where else, if anywhere.
        gpus: the UUIDs of those that ran, none on the host; all of this machine's if absent.
        parts: fields of :class:`Report`.
    """
    root = matrix_path(path).parent
    subject, ran, tools = load(reference), _ran(gpus), toolchain()
    report = Report(
        created=now(),
        subject=subject.name,
        source=source_record(root, recipe_of(subject)),
        environment=environment(
            tools.nvcc_version if ran else None, tools.cxx_version, [each.name for each in ran]
        ),
        cells=list(cells),
        **parts,
    )
    saved = store.save(report, root, record, copy)
    out.print(f"report: {relative(saved)}", markup=False, soft_wrap=True)


def save_campaigns(
    campaigns: list[CampaignRecord],
    loaded: Matrix,
    path: Path | None,
    copy: Path | None,
    gpus: Sequence[str] | None = None,
) -> None:
    """Record campaigns of one target, with the cells that they show by themselves.

    Args:
        gpus: as of :func:`save`: the target's.
    """
    if campaigns[0].device == "host":
        ran: list[Gpu] = []
        device: str | None = "host"
    else:
        ran = _ran(gpus)
        names = ", ".join(dict.fromkeys(each.name for each in ran))
        campaigns = [each.model_copy(update={"gpu": names}) for each in campaigns]
        # Only where every one of them is that device: no other can be told what these showed.
        device = next((name for name, of in gpu.matched(ran, loaded).items() if of == ran), None)
        if device is None:
            said = f"matrix.yaml has no such device: {names}, so that no cell is recorded"
            out.print(said, markup=False, soft_wrap=True)
    cells = campaign_cells(campaigns, loaded, device) if device else []
    uuids = [each.uuid for each in ran]
    save(loaded.subject, path, True, copy, gpus=uuids, cells=cells, campaigns=campaigns)


def _ran(uuids: Sequence[str] | None) -> list[Gpu]:
    """The GPUs that ran, as the driver names them."""
    return [each for each in gpu.detect() if uuids is None or each.uuid in uuids]
