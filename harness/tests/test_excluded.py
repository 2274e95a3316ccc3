"""A cell that the matrix excludes is neither verified nor required."""

from __future__ import annotations

from test_matrix import SMALL, parse

from lanecheck.cli import checks
from lanecheck.reports.cells import unless_excluded
from lanecheck.reports.model import CellRecord, Status

MATRIX = parse(
    SMALL + "exclude:\n  - {archs: [sm_80], jobs: [build], reason: fan, expires: 2026-12-31}\n"
)


def row(arch: str, status: Status = Status.VERIFIED) -> CellRecord:
    return CellRecord(arch=arch, device="host", job="build", status=status, reason="shown")


def test_an_excluded_cell_is_unverified_with_its_reason():
    skipped = unless_excluded(row("sm_80"), MATRIX)
    assert (skipped.status, skipped.reason) == (
        Status.UNVERIFIED,
        "excluded until 2026-12-31: fan",
    )
    assert unless_excluded(row("sm_90a"), MATRIX) == row("sm_90a")


def test_an_excluded_cell_is_not_required():
    assert checks._required("*/host/*", MATRIX) == ["sm_90a/host/build"]
