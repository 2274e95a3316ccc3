"""What campaigns show of the cells of a matrix: those of one run, or of several reports together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lanecheck.errors import CannotRun
from lanecheck.matrix import Arch, Cell, Device, Matrix
from lanecheck.oracles import bits
from lanecheck.reports.model import CampaignRecord, CellRecord, Status
from lanecheck.tensorcore import Evidence, model_for


def cell(arch: Arch, device: str, job: str, status: Status, reason: str) -> CellRecord:
    """One row of the ledger."""
    return CellRecord(arch=arch.name, device=device, job=job, status=status, reason=reason)


def campaign_cells(
    campaigns: Sequence[CampaignRecord], matrix: Matrix, device: str
) -> list[CellRecord]:
    """What campaigns of one target show by themselves: of every arch on the host, or of one build on a GPU.

    Args:
        device: name in the matrix of what they ran on.
    """
    if campaigns[0].device == "host":
        return [fuzz_cell(arch, campaigns) for arch in matrix.archs.values()]
    return [silicon_cell(matrix.archs[campaigns[0].variant], matrix.devices[device], campaigns)]


def unless_excluded(shown: CellRecord, matrix: Matrix) -> CellRecord:
    """The row as it is, or unverified where the matrix skips its cell."""
    why = matrix.excluded(Cell(shown.arch, shown.device, shown.job))
    skipped = {"status": Status.UNVERIFIED, "reason": why, "evidence": None}
    return shown.model_copy(update=skipped) if why else shown


def silicon_cell(arch: Arch, device: Device, campaigns: Sequence[CampaignRecord]) -> CellRecord:
    """What campaigns on a GPU show of the build that ran."""
    return cell(arch, device.name, "silicon", *_shown(campaigns))


def fuzz_cell(arch: Arch, campaigns: Sequence[CampaignRecord]) -> CellRecord:
    """What campaigns on the host show of an arch: of each tensor core that it loads on."""
    if not campaigns:
        return cell(arch, "host", "fuzz", Status.UNVERIFIED, "not asked for: --device cuda")
    if reason := unmodelled(arch.loads_on):
        return cell(arch, "host", "fuzz", Status.UNVERIFIED, reason)
    cores = {model_for(cc).name for cc in arch.loads_on}
    fuzzed = {model_for(cc).name for record in campaigns for cc in record.capabilities}
    if missing := cores - fuzzed:
        reason = f"the host does not compute with the arithmetic of {', '.join(sorted(missing))}"
        return cell(arch, "host", "fuzz", Status.UNVERIFIED, reason)
    status, reason = _shown(campaigns)
    if not all(record.judged.get(bits.NAME) for record in campaigns):
        return cell(arch, "host", "fuzz", status, f"{reason}, no bits predicted")
    evidence = {model_for(cc).evidence[cc] for cc in arch.loads_on}
    weakest: Evidence = "published" if "published" in evidence else "measured"
    shown = cell(arch, "host", "fuzz", status, f"{reason}, {weakest} model")
    return shown.model_copy(update={"evidence": weakest})


def unmodelled(capabilities: Iterable[str]) -> str | None:
    """Why nothing can be judged on some of these compute capabilities, or None if all can."""
    for cc in capabilities:
        try:
            model_for(cc)
        except CannotRun:
            return f"no model of the tensor core of {cc}"
    return None


def _shown(campaigns: Sequence[CampaignRecord]) -> tuple[Status, str]:
    failures = [failure for record in campaigns for failure in record.failures]
    if failures:
        return Status.DISPROVEN, f"{len(failures)} failures, first: {failures[0].line}"
    for record in campaigns:
        if record.lacking:
            return Status.UNVERIFIED, record.lacking
    cases = sum(record.cases for record in campaigns)
    blind = sum(record.blind for record in campaigns)
    reordered = {note.line for record in campaigns for note in record.reordered}
    if reordered:
        text = "the numbers are right, the declared order of additions is not the kernel's"
        return Status.UNVERIFIED, f"{len(reordered):,} of {cases:,} cases reordered: {text}"
    return Status.VERIFIED, f"{cases - blind:,} cases"
