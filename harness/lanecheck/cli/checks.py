"""verify, fuzz, replay, faults, demo."""

from __future__ import annotations

import shlex
from fnmatch import fnmatch
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Optional

import typer

from lanecheck import cases as space
from lanecheck import reproduce
from lanecheck import trace as tracing
from lanecheck.build import NO_OVERLAY
from lanecheck.campaign import fuzz as run_campaign
from lanecheck.cli import recording
from lanecheck.cli.options import (
    ArchOption,
    BudgetOption,
    CasesOption,
    JsonOption,
    MatrixOption,
    RecordOption,
    SeedOption,
    SubjectOption,
    VariantOption,
    WorkersOption,
    check_device,
    exit_by,
    matrix_path,
    out,
    print_failure,
    print_failures,
    print_judged,
    print_reordered,
    read_budget,
    read_matrix,
    read_target,
    refuse_to_record,
    relative,
    replay_command,
    toolchain,
)
from lanecheck.errors import BadInput, CannotRun
from lanecheck.executor import ORACLE as PROCESS
from lanecheck.executor import LocalExecutor
from lanecheck.faults import catalogue
from lanecheck.matrix import ALL, Matrix, Row
from lanecheck.reports import model, store
from lanecheck.reports.model import CampaignRecord, Report, Status
from lanecheck.reports.results import campaign_record
from lanecheck.subject import faults_of, load, recipe_of
from lanecheck.terminal import Progressing, reasons, verdict_table
from lanecheck.trial import Trial
from lanecheck.verify import Plan
from lanecheck.verify import verify as run_plan

DeviceOption = Annotated[str, typer.Option(help="host or cuda.")]
FaultOption = Annotated[
    Optional[str], typer.Option(help="With this fault of the catalogue injected.")
]
RequireOption = Annotated[
    Optional[str],
    typer.Option(
        help="Cells that must be verified, e.g. '*/host/*,sm_90a/h200/silicon'. "
        "All of the host's if absent; with --device cuda those it builds and inspects."
    ),
]


def verify(
    subject: SubjectOption = None,
    cases: CasesOption = 10_000,
    budget: BudgetOption = None,
    seed: SeedOption = 0,
    device: Annotated[
        Optional[str], typer.Option(help="Only host, or only cuda; both if absent.")
    ] = None,
    require: RequireOption = None,
    record: RecordOption = False,
    json_file: JsonOption = None,
    workers: WorkersOption = None,
    path: MatrixOption = None,
) -> None:
    """Show everything this machine can show of the kernel.

    Builds it for every arch of the matrix, inspects the binaries, fuzzes the source on the CPU and the
    builds on the GPUs that are here, breaks it on purpose, and judges it inside a real model.

    Example: lanecheck verify --budget 60s
    """
    if record:
        refuse_to_record(None, subject, path)
    root, loaded = matrix_path(path).parent, read_matrix(path)
    if device:
        check_device(device)
    if require is None:
        require = "*/host/build,*/host/inspect" if device == "cuda" else "*/host/*"
    required = _required(require, loaded)
    devices = frozenset({device} if device else {"host", "cuda"})
    limit = read_budget(cases, budget)
    plan = Plan(loaded, subject or loaded.subject, root, seed, limit, devices)
    with LocalExecutor(workers) as executor, Progressing(out) as listener:
        report = run_plan(plan, toolchain(), executor, listener)

    out.print(f"\n[bold]{report.subject}: what this run shows[/]")
    out.print(verdict_table(report, loaded))
    for line in reasons(report, loaded):
        out.print(line, soft_wrap=True)
    print_failures(report.campaigns, subject)
    if report.real:
        _print_real_failures(report.real.campaign, subject)
    saved = store.save(report, root, record, json_file)
    out.print(f"report: {relative(saved)}", markup=False, soft_wrap=True)
    if report.disproven:
        out.print("[bold red]disproven[/]")
        raise typer.Exit(1)
    if report.failed:
        raise CannotRun(f"{report.failed[0].title}: {report.failed[0].summary}")
    _demand(required, report)
    verified = sum(cell.status is Status.VERIFIED for cell in report.cells)
    count = f"{verified} cells verified, {len(report.cells) - verified} unverified"
    out.print(f"[bold green]nothing disproven[/]: {count}")


def fuzz(
    subject: SubjectOption = None,
    cases: CasesOption = 10_000,
    budget: BudgetOption = None,
    seed: SeedOption = 0,
    variant: VariantOption = "plain",
    device: DeviceOption = "host",
    arch: ArchOption = None,
    fault: FaultOption = None,
    record: RecordOption = False,
    json_file: JsonOption = None,
    workers: WorkersOption = None,
    path: MatrixOption = None,
) -> None:
    """Fuzz the shipping source on the CPU, or a build on a GPU.

    Every oracle judges every case.

    Example: lanecheck fuzz --cases 2000 --seed 7
    """
    if record:
        refuse_to_record(fault, subject, path)
    loaded, limit = read_matrix(path, subject), read_budget(cases, budget)
    with Progressing(out) as listener:
        listener.stage("build")
        target = read_target(loaded, subject or loaded.subject, variant, device, arch, fault)
        listener.stage(f"fuzz {target.variant}", limit.seconds or limit.cases)
        result = run_campaign(
            target,
            limit,
            seed,
            LocalExecutor(workers),
            lambda total: listener.advance(
                total.seconds if limit.seconds else total.cases,
                f"{total.cases / total.seconds:,.0f} cases/s",
            ),
        )
        campaign = campaign_record(result, target, seed)
        listener.end(f"{campaign.summary}, seed {seed}", campaign.good)
    print_judged(campaign)
    print_failures([campaign], subject, fault)
    if campaign.reordered:
        print_reordered(campaign)
    if json_file:
        model.write(campaign, json_file)
    if record:
        recording.save_campaigns([campaign], loaded, path, None, target.gpus)
    exit_by([campaign])


def replay(
    line: Annotated[str, typer.Argument(help="The line that a failure printed.")],
    variant: VariantOption = "plain",
    fault: FaultOption = None,
    device: DeviceOption = "host",
    arch: ArchOption = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Name the first mma, lane and register that is wrong.")
    ] = False,
    export: Annotated[
        Optional[Path],
        typer.Option(help="Write a reproduction into this folder that needs no Lanecheck."),
    ] = None,
    subject: SubjectOption = None,
    path: MatrixOption = None,
) -> None:
    """Run one case again, from the line that a failure printed.

    Example: lanecheck replay --fault swap-x-halves 'packed_gemv m=1 n=16 k=32 nw=1 u=1 s=1 dual=0
    fused=0 bias=0 out=fp32 xpad=0 xoff=0 ypad=0 regime=small side=upper seed=0'
    """
    loaded = read_matrix(path, subject)
    reference = subject or loaded.subject
    kernel = load(reference)
    case = space.parse(line, kernel)
    if export:
        reproduce.check(kernel, export)
    with Progressing(out) as listener:
        listener.stage("build")
        target = read_target(loaded, reference, variant, device, arch, fault)
        listener.stage("replay")
        (result,) = LocalExecutor(1).run(target, [Trial(target, (case.line,), thorough=True)])
    campaign = campaign_record(result, target, case.seed)
    failures = campaign.failures
    marks = dict.fromkeys(result.judged, "[green]pass[/]")
    marks |= dict.fromkeys((note.oracle for note in campaign.reordered), "[yellow]reordered[/]")
    marks |= dict.fromkeys((note.oracle for note in failures), "[red]fail[/]")
    for oracle, mark in marks.items():
        count = result.judged[oracle]
        verdicts = f"{count} verdict{'s' if count > 1 else ''}" if count else ""
        out.print(f"{mark} {oracle:<{_ORACLE}} {verdicts}".rstrip())
    for note in (*failures, *campaign.reordered):
        print_failure(note)
    if export:
        overlay = NO_OVERLAY
        if fault:
            overlay = catalogue.find(faults_of(kernel), fault).inject(recipe_of(kernel).root)
        command = replay_command(campaign, case.line, subject, fault)
        reproduce.export(case, target, export, command, overlay)
        out.print(f"exported: {relative(export)}", markup=False, soft_wrap=True)
    if trace and PROCESS in {failure.oracle for failure in failures}:
        raise CannotRun("the case ends its process, so there are no outputs to trace")
    if trace:
        for text in tracing.traced(case, target):
            out.print(text, markup=False, highlight=False, soft_wrap=True)
    if not failures and not result.judged:
        raise CannotRun("no oracle judged the case: nothing is shown")
    raise typer.Exit(1 if failures else 0)


COMMANDS = (verify, fuzz, replay)
_ORACLE = 10  # columns of an oracle's name


def _required(patterns: str, matrix: Matrix) -> list[str]:
    """The cells that ``--require`` names."""
    everything = Row(jobs=(ALL,), archs=(ALL,), devices=(ALL,))
    cells = [str(cell) for cell in matrix.row_cells(everything) if not matrix.excluded(cell)]
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    for pattern in wanted:
        if not any(fnmatch(cell, pattern) for cell in cells):
            raise BadInput(
                f"--require '{pattern}' matches no cell; see lanecheck matrix --tier release"
            )
    return [cell for cell in cells if any(fnmatch(cell, pattern) for pattern in wanted)]


def _print_real_failures(record: CampaignRecord, subject: str | None, most: int = 5) -> None:
    """The first failing calls of the real model; its operands are in no line."""
    words = ["lanecheck", "verify", "--device", "host", "--cases", "1"]
    again = shlex.join([*words, *(("--subject", subject) if subject else ())])
    failing = [(line, [*each]) for line, each in groupby(record.failures, attrgetter("line"))]
    for line, failures in failing[:most]:
        why = "not to be replayed, as its operands are the model's"
        out.print(f"{line}: {why}; {again} runs the model again", markup=False, soft_wrap=True)
        for failure in failures:
            print_failure(failure)
    if len(failing) > most:
        out.print(f"  … and {len(failing) - most} more failing calls")


def _demand(required: list[str], report: Report) -> None:
    cells = {f"{cell.arch}/{cell.device}/{cell.job}": cell for cell in report.cells}
    missing = [name for name in required if cells[name].status is not Status.VERIFIED]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CannotRun(
            f"required but not verified: {missing[0]} ({cells[missing[0]].reason}){more}"
        )
