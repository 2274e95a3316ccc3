"""What a report holds, in a few words."""

from __future__ import annotations

from lanecheck.reports.model import Report, Status


def machine(report: Report) -> str:
    """What the report is of: GPU products, or the host. The gate's rates may be worked out elsewhere than
    their processes ran."""
    gpus = [report.power.machine] if report.power else report.environment.gpus
    return ", ".join(dict.fromkeys(gpus)) or "host"


def contents(report: Report) -> str:
    """What was shown, whether or not something is disproven."""
    verified = sum(cell.status is Status.VERIFIED for cell in report.cells)
    parts = {
        f"{verified} of {len(report.cells)} cells": report.cells,
        f"{sum(each.cases for each in report.campaigns):,} cases": report.campaigns,
        f"{len(report.sanitized)} sanitizers clean": report.sanitized,
    }
    if report.bench:
        timed = sum(row.counted is not None for row in report.bench.rows)
        parts[f"{timed} of {len(report.bench.rows)} shapes timed"] = report.bench.rows
    if report.power:
        parts[f"{report.power.false_alarms.runs:,} simulated comparisons"] = report.power.recordings
    for device in ("host", "cuda"):
        faults = [fault for fault in report.faults if fault.device == device]
        killed = sum(fault.killed for fault in faults)
        parts[f"{killed} of {len(faults)} faults on {device}"] = faults
    return ", ".join(text for text, there in parts.items() if there)
