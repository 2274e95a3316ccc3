"""Where reports lie: recorded ones in the checkout, casual ones in a folder that git ignores."""

from __future__ import annotations

import re
from pathlib import Path

from lanecheck.reports.model import Report, write

RECORDED = Path("reports") / "runs"
CASUAL = Path(".lanecheck") / "reports"


def place(report: Report, root: Path, record: bool) -> Path:
    """The file of a new report: ``<device>/<year>/<utc>-<sha>.json`` when recorded."""
    stamp = report.created.strftime("%Y%m%dT%H%M%SZ")
    sha = (report.source.git_sha or report.source.sha256)[:12]
    name = f"{stamp}-{sha}.json"
    if not record:
        return root / CASUAL / name
    gpus = report.environment.gpus
    device = re.sub(r"[^a-z0-9]+", "-", gpus[0].lower()).strip("-") if gpus else "host"
    return root / RECORDED / device / f"{report.created.year}" / name


def save(report: Report, root: Path, record: bool, copy: Path | None = None) -> Path:
    """Store a report: where the caller asks for a copy, under ``reports/`` when recorded, else casually.

    Returns:
        Where it lies; the recorded file if there are two.
    """
    if copy:
        write(report, copy)
        if not record:
            return copy
    target = place(report, root, record)
    write(report, target)
    return target


def recorded(root: Path) -> list[Path]:
    """Every recorded report, oldest first."""
    return sorted((root / RECORDED).rglob("*.json"), key=lambda path: path.name)
