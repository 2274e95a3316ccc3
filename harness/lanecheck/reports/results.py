"""What a run returned, and where and when it ran, as a report stores it."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone

from lanecheck.build import Built
from lanecheck.compute_sanitizer import Checked
from lanecheck.faults.differences import Comparison
from lanecheck.faults.scoreboard import Score
from lanecheck.inspect import Inspection
from lanecheck.reports.model import (
    BuildRecord,
    CampaignRecord,
    ComparisonRecord,
    ControlRecord,
    Environment,
    FailureRecord,
    FaultRecord,
    SanitizerRecord,
    SummationRecord,
)
from lanecheck.summation.recovery import Summation
from lanecheck.trial import Failure, Result, Target


def build_record(built: Built, inspection: Inspection) -> BuildRecord:
    """A library, and what was found inside it, as it is stored."""
    functions = inspection.functions
    return BuildRecord(
        arch=inspection.arch,
        key=built.key,
        seconds=built.seconds,
        cached=built.cached,
        kernels=len(functions),
        registers=max((f.registers for f in functions), default=0),
        spills=sum(f.spilled for f in functions),
        static_shared=max((f.shared for f in functions), default=0),
        codes=[*inspection.machine_codes, *inspection.ptx_codes],
        sass_sha256=inspection.sass_sha256,
        problems=list(inspection.problems),
    )


def campaign_record(
    result: Result, target: Target, seed: int, landmarks: str = ""
) -> CampaignRecord:
    """A campaign's result as it is stored."""
    return CampaignRecord(
        device=target.device,
        variant=target.variant,
        capabilities=list(target.capabilities),
        seed=seed,
        landmarks=landmarks,
        cases=result.cases,
        blind=result.blind,
        launches=result.launches,
        seconds=result.seconds,
        judged=dict(result.judged),
        compared={oracle: count for oracle, count in result.compared.items() if count},
        failures=[failure_record(failure) for failure in result.failures],
        reordered=[failure_record(note) for note in result.reordered],
    )


def failure_record(failure: Failure) -> FailureRecord:
    """A failure as it is stored."""
    return FailureRecord(
        line=failure.line,
        capability=failure.capability,
        oracle=failure.verdict.oracle,
        outcome=failure.verdict.outcome,
        evidence=failure.verdict.evidence,
    )


def fault_record(score: Score) -> FaultRecord:
    """A fault's score as it is stored."""
    return FaultRecord(
        id=score.fault.id,
        title=score.fault.title,
        device="cuda" if score.on_gpu else "host",
        kind=score.fault.kind,
        killed=score.killed,
        excused=score.excused,
        cases=score.cases,
        noticed=dict(score.noticed),
        rung=dict(score.rung),
        silent=score.silent,
        first=[failure_record(failure) for failure in score.first.values()],
    )


def control_record(score: Score) -> ControlRecord:
    """A control's score as it is stored."""
    return ControlRecord(
        id=score.fault.id,
        title=score.fault.title,
        device="cuda" if score.on_gpu else "host",
        expect=score.fault.expect,
        clean=score.clean,
        cases=score.cases,
        reordered=score.reordered,
        first=[failure_record(failure) for failure in score.first.values()],
    )


def comparison_record(each: Comparison) -> ComparisonRecord:
    """A fault's comparison as it is stored."""
    return ComparisonRecord(
        id=each.fault.id,
        kind=each.fault.kind,
        cases=each.cases,
        alike=each.alike,
        only_host=dict(each.only_host),
        only_gpu=dict(each.only_gpu),
        why=each.why,
    )


def sanitizer_record(checked: Checked, arch: str) -> SanitizerRecord:
    """One tool's verdict as it is stored."""
    return SanitizerRecord(
        tool=checked.tool,
        arch=arch,
        cases=checked.cases,
        errors=checked.errors,
        line=checked.line,
        evidence=checked.evidence,
    )


def summation_record(each: Summation, device: str = "host") -> SummationRecord:
    """A summation tree as it is stored."""
    return SummationRecord(
        line=each.line,
        output=each.output,
        capability=each.capability,
        device=device,
        leaves=len(each.found.leaves),
        tree=each.found.digest,
        notation=each.notation,
        words=each.words,
        as_declared=each.as_declared,
    )


def environment(nvcc: str | None, cxx: str | None, gpus: list[str]) -> Environment:
    """This machine."""
    return Environment(
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cores=os.cpu_count() or 1,
        python=platform.python_version(),
        nvcc=nvcc,
        cxx=cxx,
        gpus=gpus,
    )


def now() -> datetime:
    """The time of a report."""
    return datetime.now(timezone.utc).replace(microsecond=0)
