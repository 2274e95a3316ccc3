"""verify, fuzz, replay, faults, demo."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.table import Table

from lanecheck import cases as space
from lanecheck import trace as tracing
from lanecheck.campaign import fuzz as run_campaign
from lanecheck.cli.options import (
    BudgetOption,
    CasesOption,
    JsonOption,
    MatrixOption,
    RecordOption,
    SeedOption,
    SubjectOption,
    VariantOption,
    WorkersOption,
    matrix_path,
    out,
    print_failure,
    print_failures,
    read_budget,
    read_matrix,
    read_target,
    relative,
    toolchain,
)
from lanecheck.demo import show
from lanecheck.errors import BadInput, CannotRun
from lanecheck.executor import ORACLE as PROCESS
from lanecheck.executor import LocalExecutor
from lanecheck.faults import catalogue, scoreboard
from lanecheck.matrix import ALL, Matrix, Row
from lanecheck.reports import model, store
from lanecheck.reports.model import (
    FaultRecord,
    Report,
    Status,
    campaign_record,
    fault_record,
)
from lanecheck.subject import faults_of, load, recipe_of
from lanecheck.terminal import Progressing, reasons, verdict_table
from lanecheck.trial import Target, Trial
from lanecheck.verify import Plan
from lanecheck.verify import verify as run_plan

DeviceOption = Annotated[str, typer.Option(help="host or cuda.")]
ArchOption = Annotated[str, typer.Option(help="With --device cuda: which build.")]
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
    root, loaded = matrix_path(path).parent, read_matrix(path)
    if device not in (None, "host", "cuda"):
        raise BadInput(f"--device is host or cuda, not '{device}'")
    if require is None:
        require = "*/host/build,*/host/inspect" if device == "cuda" else "*/host/*"
    required = _required(require, loaded)
    devices = frozenset({device} if device else {"host", "cuda"})
    limit = read_budget(cases, budget)
    plan = Plan(loaded, subject or loaded.subject, root, seed, limit, devices)
    with Progressing(out) as listener:
        report = run_plan(plan, toolchain(), LocalExecutor(workers), listener)

    out.print(f"\n[bold]{report.subject}: what this run shows[/]")
    out.print(verdict_table(report, loaded))
    for line in reasons(report, loaded):
        out.print(line, soft_wrap=True)
    print_failures(report.campaigns, subject)
    for failure in report.real.campaign.failures[:5] if report.real else ():
        print_failure(failure)
    saved = store.save(report, root, record, json_file)
    out.print(f"report: {relative(saved)}", markup=False, soft_wrap=True)
    if report.disproven:
        out.print("[bold red]disproven[/]")
        raise typer.Exit(1)
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
    arch: ArchOption = "sm_90a",
    fault: FaultOption = None,
    json_file: JsonOption = None,
    workers: WorkersOption = None,
    path: MatrixOption = None,
) -> None:
    """Fuzz the shipping source on the CPU, or a build on a GPU.

    Every oracle judges every case.

    Example: lanecheck fuzz --cases 2000 --seed 7
    """
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
        record = campaign_record(result, target, seed)
        listener.end(f"{record.summary}, seed {seed}", good=not record.failures)
    for oracle, count in record.judged.items():
        out.print(f"   {oracle:<{_ORACLE}} {count:,} verdicts")
    print_failures([record], subject, fault)
    if json_file:
        model.write(record, json_file)
    raise typer.Exit(1 if record.failures or not record.numbers_judged else 0)


def replay(
    line: Annotated[str, typer.Argument(help="The line that a failure printed.")],
    variant: VariantOption = "plain",
    fault: FaultOption = None,
    device: DeviceOption = "host",
    arch: ArchOption = "sm_90a",
    trace: Annotated[
        bool, typer.Option("--trace", help="Explain the first element that is not as predicted.")
    ] = False,
    export: Annotated[
        Optional[Path], typer.Option(help="Store inputs, outputs and predicted bits as .npz.")
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
    case = space.parse(line, load(reference))
    with Progressing(out) as listener:
        listener.stage("build")
        target = read_target(loaded, reference, variant, device, arch, fault)
        listener.stage("replay")
        (result,) = LocalExecutor(1).run(target, [Trial(target, (case.line,))])
    failures = campaign_record(result, target, case.seed).failures
    failed = {failure.oracle for failure in failures}
    for oracle in dict.fromkeys([*result.judged, *failed]):
        mark = "[red]fail[/]" if oracle in failed else "[green]pass[/]"
        count = result.judged[oracle]
        verdicts = f"{count} verdict{'s' if count > 1 else ''}" if count else ""
        out.print(f"{mark} {oracle:<{_ORACLE}} {verdicts}".rstrip())
    for failure in failures:
        print_failure(failure)
    if PROCESS in failed and (trace or export):
        raise CannotRun("the case ends its process, so there are no outputs to trace or export")
    if trace:
        for text in tracing.trace(case, target):
            out.print(text, soft_wrap=True)
    if export:
        tracing.export(case, target, export)
        out.print(f"exported: {relative(export)}", markup=False, soft_wrap=True)
    raise typer.Exit(1 if failures or not result.judged else 0)


def faults(
    only: Annotated[Optional[list[str]], typer.Option(help="Only these; repeatable.")] = None,
    seed: SeedOption = 0,
    json_file: JsonOption = None,
    workers: WorkersOption = None,
    subject: SubjectOption = None,
    path: MatrixOption = None,
) -> None:
    """Break the kernel on purpose and say which oracles noticed.

    Every fault of the catalogue is injected in turn; exit 1 if one survives.

    Example: lanecheck faults --only swap-x-halves
    """
    loaded = read_matrix(path)
    reference = subject or loaded.subject
    kernel = load(reference)
    folder, recipe = faults_of(kernel), recipe_of(kernel)
    chosen = [catalogue.find(folder, name) for name in only] if only else catalogue.load(folder)
    target = Target(reference, "host", loaded.devices["host"].mma)
    executor, tools = LocalExecutor(workers), toolchain()
    records: list[FaultRecord] = []
    with Progressing(out) as listener:
        listener.stage("break on purpose", len(chosen))
        for fault in chosen:
            listener.advance(len(records), fault.id)
            score = scoreboard.score(fault, target, recipe, tools, executor, seed)
            records.append(fault_record(score))
    table = Table("fault", "verdict", "cases", "noticed by (failing cases)")
    table.columns[0].overflow = "fold"
    for record in records:
        noticed = [f"{oracle} ({count})" for oracle, count in sorted(record.noticed.items())]
        silent = [f"[yellow]not {oracle}[/]" for oracle in record.silent]
        verdict = "[green]killed[/]" if record.killed else "[bold red]SURVIVED[/]"
        table.add_row(record.id, verdict, str(record.cases), "\n".join([*noticed, *silent]))
    out.print(table)
    if json_file:
        text = json.dumps([record.model_dump() for record in records], indent=1)
        model.write_text(text + "\n", json_file)
    raise typer.Exit(0 if all(record.killed for record in records) else 1)


def demo(
    fault: Annotated[str, typer.Argument(help="Id of a catalogue fault.")],
    subject: SubjectOption = None,
    path: MatrixOption = None,
) -> None:
    """Show one fault, who notices, and the smallest input for it.

    Example: lanecheck demo swap-x-halves
    """
    loaded = read_matrix(path)
    show(fault, subject or loaded.subject, loaded, toolchain(), out)


COMMANDS = (verify, fuzz, replay, faults, demo)
_ORACLE = 10  # columns of an oracle's name


def _required(patterns: str, matrix: Matrix) -> list[str]:
    """The cells that ``--require`` names."""
    everything = Row(jobs=(ALL,), archs=(ALL,), devices=(ALL,))
    cells = list(map(str, matrix.row_cells(everything)))
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    for pattern in wanted:
        if not any(fnmatch(cell, pattern) for cell in cells):
            raise BadInput(
                f"--require '{pattern}' matches no cell; see lanecheck matrix --tier release"
            )
    return [cell for cell in cells if any(fnmatch(cell, pattern) for pattern in wanted)]


def _demand(required: list[str], report: Report) -> None:
    cells = {f"{cell.arch}/{cell.device}/{cell.job}": cell for cell in report.cells}
    missing = [name for name in required if cells[name].status is not Status.VERIFIED]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CannotRun(
            f"required but not verified: {missing[0]} ({cells[missing[0]].reason}){more}"
        )
