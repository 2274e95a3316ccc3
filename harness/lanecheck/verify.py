"""Everything this machine can show of a subject: build, inspect, fuzz, break on purpose, judge.

Each step returns records; :func:`verify` puts them together into one report. Steps that this machine
cannot take leave their cells unverified, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from lanecheck import gpu, native, simt
from lanecheck.build import (
    BuildFailed,
    Built,
    build_all,
    build_device,
    build_host,
)
from lanecheck.campaign import Budget, fuzz
from lanecheck.errors import CannotRun
from lanecheck.executor import Executor
from lanecheck.faults import catalogue, scoreboard
from lanecheck.inspect import Inspection, inspect
from lanecheck.listener import Listener
from lanecheck.matrix import Arch, Cell, Device, Matrix
from lanecheck.real import judge_real
from lanecheck.reports import model as m
from lanecheck.reports.cells import cell, fuzz_cell, silicon_cell, unless_excluded, unmodelled
from lanecheck.reports.results import (
    build_record,
    campaign_record,
    control_record,
    environment,
    fault_record,
    now,
    summation_record,
)
from lanecheck.reports.source import source_record
from lanecheck.subject import Subject, load, recipe_of
from lanecheck.summation import recovery
from lanecheck.summation.fprev import NoTree
from lanecheck.toolchain import Toolchain, check_archs
from lanecheck.trial import Result, Target

#: Cases under the slower host builds, whose purpose is synchronisation and shared memory.
CHECKED_CASES = {"hooks": 300, "asan": 300}
SILICON_CASES = 2000
SUMMED_CASES = 4


@dataclass(frozen=True)
class _Remembering:
    """Passes on to another listener, and keeps each step that did not end well."""

    to: Listener
    titles: list[str] = field(default_factory=list)
    failed: list[m.Step] = field(default_factory=list)

    def stage(self, title: str, total: float | None = None) -> None:
        self.titles.append(title)
        self.to.stage(title, total)

    def advance(self, done: float, note: str = "") -> None:
        self.to.advance(done, note)

    def end(self, summary: str, good: bool | None = True) -> None:
        if good is False:
            self.failed.append(m.Step(title=self.titles[-1], summary=summary))
        self.to.end(summary, good)


@dataclass(frozen=True)
class Plan:
    """What to verify and how hard.

    Attributes:
        matrix: the archs, devices and jobs. reference: the subject, ``module:ATTRIBUTE``.
        root: the checkout that the report names.
        seed: of every campaign. budget: of the plain host campaign.
        devices: kinds of device to run on: ``host``, ``cuda``.
    """

    matrix: Matrix
    reference: str
    root: Path
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    devices: frozenset[str] = frozenset({"host", "cuda"})


def verify(plan: Plan, toolchain: Toolchain, executor: Executor, listener: Listener) -> m.Report:
    """Run every step and report.

    Raises:
        BadInput: matrix, subject or catalogue cannot be right.
        CannotRun: no compiler is to be had, or a GPU is asked for and there is none.
    """
    subject = load(plan.reference)
    recipe_of(subject)
    archs = list(plan.matrix.archs.values())
    faults = catalogue.load(subject.faults) if subject.faults else []
    check_archs(toolchain.nvcc, archs)
    source = source_record(plan.root, recipe_of(subject))
    gpus = gpu.detect()
    here = gpu.matched(gpus, plan.matrix)
    if "host" not in plan.devices and not here:
        raise CannotRun("no GPU of matrix.yaml is on this machine: use --device host")

    listener = steps = _Remembering(listener)
    _check_models(listener)
    built, host_builds = _build(plan, subject, archs, toolchain, listener)
    inspections = _inspect(subject, archs, built, toolchain, listener)
    campaigns = [
        _fuzz_host(plan, variant, library, executor, listener)
        for variant, library in host_builds.items()
    ]
    scores, real, treeless = [], None, ""
    summations: list[m.SummationRecord] = []
    if "host" in plan.devices:
        summations, treeless = _sum(plan, host_builds["plain"], listener)
        scores = _break(plan, subject, faults, toolchain, executor, listener)
        real = _real(plan, host_builds["plain"], listener)
    silicon, silicon_cells = _silicon(plan, archs, built, gpus, executor, listener)

    cells = [
        *(_build_cell(arch, built[arch.name]) for arch in archs),
        *(_inspect_cell(arch, inspections.get(arch.name)) for arch in archs),
        *(fuzz_cell(arch, campaigns) for arch in archs),
        *silicon_cells,
        *_bench_cells(plan, archs, gpus),
    ]
    return m.Report(
        created=now(),
        subject=subject.name,
        source=source,
        environment=environment(
            f"{toolchain.nvcc_version} ({toolchain.source})",
            toolchain.cxx_version,
            [each.name for alike in here.values() for each in alike if "cuda" in plan.devices],
        ),
        cells=[
            unless_excluded(each, plan.matrix) for each in cells if each.job in plan.matrix.jobs
        ],
        builds=[
            build_record(library, inspections[name])
            for name, library in built.items()
            if isinstance(library, Built)
        ],
        campaigns=[*campaigns, *silicon],
        faults=[fault_record(score) for score in scores if not score.fault.control],
        controls=[control_record(score) for score in scores if score.fault.control],
        summations=summations,
        treeless=treeless,
        real=real,
        failed=steps.failed,
    )


# Steps ----------------------------------------------------------------------------------------


def _check_models(listener: Listener) -> None:
    """The compiler of this machine built the tensor core's model: does it still have its bits?"""
    listener.stage("tensor core models")
    outputs = native.check()
    listener.end(f"{outputs:,} outputs of three implementations agree")


def _build(
    plan: Plan, subject: Subject, archs: list[Arch], toolchain: Toolchain, listener: Listener
) -> tuple[dict[str, Built | BuildFailed], dict[str, Path]]:
    variants = list(simt.VARIANTS) if "host" in plan.devices else []
    listener.stage("build", len(archs) + len(variants))
    done = 0

    def counted(label: str, job: Callable[[], Built]) -> Built:
        nonlocal done
        library = job()
        done += 1
        listener.advance(done, label)
        return library

    recipe = recipe_of(subject)
    jobs: dict[str, Callable[[], Built]] = {
        arch.name: partial(build_device, recipe, arch, toolchain) for arch in archs
    }
    jobs |= {name: partial(build_host, recipe, name, toolchain) for name in variants}
    results = build_all(partial(counted, name, job) for name, job in jobs.items())
    libraries: dict[str, Built | BuildFailed] = dict(zip(jobs, results))
    host = {}
    for name in variants:
        library = libraries.pop(name)
        if isinstance(library, BuildFailed):
            raise library
        host[name] = library.path
    failed = [library for library in libraries.values() if isinstance(library, BuildFailed)]
    cached = sum(isinstance(library, Built) and library.cached for library in results)
    summary = f"{len(libraries) - len(failed)} of {len(archs)} archs, {len(host)} host builds"
    listener.end(f"{summary} ({cached} from the cache)", good=not failed)
    return libraries, host


def _inspect(
    subject: Subject,
    archs: list[Arch],
    built: dict[str, Built | BuildFailed],
    toolchain: Toolchain,
    listener: Listener,
) -> dict[str, Inspection]:
    listener.stage("inspect", len(archs))
    toolchain.cuobjdump  # noqa: B018  (found or installed once, before the threads ask for it)
    libraries = [(arch, built[arch.name]) for arch in archs]
    jobs = {
        arch.name: partial(inspect, library, arch, toolchain, subject.instructions)
        for arch, library in libraries
        if isinstance(library, Built)
    }
    with ThreadPoolExecutor() as pool:
        inspections = dict(zip(jobs, pool.map(lambda job: job(), jobs.values())))
    problems = [problem for i in inspections.values() for problem in i.problems]
    kernels = sum(len(i.functions) for i in inspections.values())
    listener.end(problems[0] if problems else f"{kernels} kernels, no spills", good=not problems)
    return inspections


def _fuzz_host(
    plan: Plan, variant: str, library: Path, executor: Executor, listener: Listener
) -> m.CampaignRecord:
    capabilities = plan.matrix.devices["host"].mma
    target = Target(plan.reference, "host", capabilities, library, variant)
    checked = CHECKED_CASES.get(variant)
    budget = Budget(min(checked, plan.budget.cases)) if checked else plan.budget
    batch = 25 if checked else 100
    title = f"fuzz on host, {variant}"
    return campaign(target, budget, plan.seed, batch, executor, listener, title)


def campaign(
    target: Target,
    budget: Budget,
    seed: int,
    batch: int,
    executor: Executor,
    listener: Listener,
    title: str,
) -> m.CampaignRecord:
    """Fuzz as one step: ``listener`` is told how it gets on and how it went."""
    listener.stage(title, budget.seconds or budget.cases)

    def progress(total: Result) -> None:
        done = total.seconds if budget.seconds else total.cases
        listener.advance(done, f"{total.cases / total.seconds:,.0f} cases/s")

    result = fuzz(target, budget, seed, executor, progress, batch)
    record = campaign_record(result, target, seed)
    listener.end(record.summary, record.good)
    return record


def _sum(plan: Plan, library: Path, listener: Listener) -> tuple[list[m.SummationRecord], str]:
    """The orders of additions, or why no order explains what the kernel returns."""
    listener.stage("order of additions")
    target = Target(plan.reference, "host", plan.matrix.devices["host"].mma, library)
    try:
        found = list(recovery.sample(target, plan.seed, SUMMED_CASES))
    except NoTree as error:
        listener.end(str(error), good=False)
        return [], str(error)
    if not found:
        listener.end("none is declared, or the outputs do not show it", good=None)
        return [], ""
    other = sum(each.as_declared is False for each in found)
    text = (
        f"{len(found)} trees recovered, " + (f"{other} not" if other else "each") + " as declared"
    )
    listener.end(text, good=None if other else True)
    return [summation_record(each) for each in found], ""


def _break(
    plan: Plan,
    subject: Subject,
    faults: list[catalogue.Fault],
    toolchain: Toolchain,
    executor: Executor,
    listener: Listener,
) -> list[scoreboard.Score]:
    if not faults:
        return []
    listener.stage("break on purpose", len(faults))
    target = Target(plan.reference, "host", plan.matrix.devices["host"].mma)
    build = scoreboard.host_builds(recipe_of(subject), toolchain)
    scores = scoreboard.run_catalogue(faults, target, build, executor, plan.seed, listener.advance)
    listener.end(scoreboard.summary(scores), good=all(score.good for score in scores))
    return scores


def _real(plan: Plan, library: Path, listener: Listener) -> m.RealRecord | None:
    listener.stage("real weights")
    target = Target(plan.reference, "host", plan.matrix.devices["host"].mma, library)
    real = judge_real(target)
    if isinstance(real, str):
        listener.end(f"unverified: {real}", good=None)
        return None
    calls = real.campaign
    told = f"{real.model}: {real.layers} layers, {calls.cases} calls, {calls.failing} failing"
    if real.cosines:
        told += f", cosine >= {min(real.cosines):.5f}"
    if calls.lacking:
        told += f": {calls.lacking}"
    listener.end(told, calls.good)
    return real


def _silicon(
    plan: Plan,
    archs: list[Arch],
    built: dict[str, Built | BuildFailed],
    gpus: list[gpu.Gpu],
    executor: Executor,
    listener: Listener,
) -> tuple[list[m.CampaignRecord], list[m.CellRecord]]:
    here = gpu.matched(gpus, plan.matrix)
    campaigns, cells = [], []
    for arch, device in _pairs(plan.matrix, archs):
        library = built[arch.name]
        missing = plan.matrix.excluded(Cell(arch.name, device.name, "silicon"))
        missing = missing or _why_not(plan, device, here, gpus) or unmodelled([device.cc or ""])
        if missing or not isinstance(library, Built):
            reason = missing or "it was not built"
            cells.append(cell(arch, device.name, "silicon", m.Status.UNVERIFIED, reason))
            continue
        target = Target(
            plan.reference,
            "cuda",
            (device.cc or "",),
            library.path,
            arch.name,
            tuple(found.uuid for found in here[device.name]),
        )
        title = f"fuzz {arch.name} on {device.name}"
        budget = Budget(SILICON_CASES)
        record = campaign(target, budget, plan.seed, 250, executor, listener, title)
        record = record.model_copy(update={"gpu": here[device.name][0].name})
        campaigns.append(record)
        cells.append(silicon_cell(arch, device, [record]))
    return campaigns, cells


# Cells ----------------------------------------------------------------------------------------


def _build_cell(arch: Arch, built: Built | BuildFailed) -> m.CellRecord:
    if isinstance(built, BuildFailed):
        return cell(arch, "host", "build", m.Status.DISPROVEN, str(built))
    return cell(arch, "host", "build", m.Status.VERIFIED, f"library {built.key}")


def _inspect_cell(arch: Arch, inspection: Inspection | None) -> m.CellRecord:
    if inspection is None:
        return cell(arch, "host", "inspect", m.Status.UNVERIFIED, "it was not built")
    if inspection.problems:
        reason = "; ".join(inspection.problems)
        return cell(arch, "host", "inspect", m.Status.DISPROVEN, reason)
    reason = f"{len(inspection.functions)} kernels without spills"
    if inspection.assembled_for:
        reason += f", assembled for {inspection.assembled_for}"
    return cell(arch, "host", "inspect", m.Status.VERIFIED, reason)


def _bench_cells(plan: Plan, archs: list[Arch], gpus: list[gpu.Gpu]) -> Iterable[m.CellRecord]:
    here = gpu.matched(gpus, plan.matrix)
    for arch, device in _pairs(plan.matrix, archs):
        missing = _why_not(plan, device, here, gpus)
        reason = missing or "not part of verify: run lanecheck bench"
        yield cell(arch, device.name, "bench", m.Status.UNVERIFIED, reason)


def _pairs(matrix: Matrix, archs: list[Arch]) -> list[tuple[Arch, Device]]:
    devices = [device for device in matrix.devices.values() if device.gpu]
    return [(arch, device) for arch in archs for device in devices if device.cc in arch.loads_on]


def _why_not(
    plan: Plan, device: Device, here: dict[str, list[gpu.Gpu]], gpus: list[gpu.Gpu]
) -> str | None:
    if "cuda" not in plan.devices:
        return "not asked for: --device host"
    if not gpus:
        return "no GPU on this machine"
    if device.name not in here:
        return f"no {device.name} on this machine"
    return None
