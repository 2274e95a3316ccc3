"""verify, fuzz, replay, faults, demo."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from typing import Annotated, Optional

import typer
from rich.markup import escape
from rich.table import Table

from lanecheck import cases as space
from lanecheck.campaign import fuzz as run_campaign
from lanecheck.cli.options import (
    BudgetOption,
    CasesOption,
    JsonOption,
    MatrixOption,
    SeedOption,
    SubjectOption,
    VariantOption,
    WorkersOption,
    faults_of,
    matrix_path,
    out,
    print_failures,
    read_budget,
    read_matrix,
    read_target,
    relative,
)
from lanecheck.demo import show
from lanecheck.errors import BadInput
from lanecheck.executor import LocalExecutor
from lanecheck.faults import catalogue, scoreboard
from lanecheck.reports import model, store
from lanecheck.reports.model import Report, Status, campaign_record, fault_record
from lanecheck.subject import load, recipe_of
from lanecheck.terminal import Progressing, reasons, verdict_table
from lanecheck.toolchain import Toolchain
from lanecheck.trial import Target, Trial
from lanecheck.verify import Plan
from lanecheck.verify import verify as run_plan

DeviceOption = Annotated[str, typer.Option(help="host or cuda.")]
ArchOption = Annotated[str, typer.Option(help="With --device cuda: which build.")]
FaultOption = Annotated[Optional[str], typer.Option(help="With this fault injected.")]
RequireOption = Annotated[
    str, typer.Option(help="Cells that must be verified, e.g. '*/host/*,sm_90a/h200/silicon'.")
]


def verify(
    subject: SubjectOption = None,
    cases: CasesOption = 10_000,
    budget: BudgetOption = None,
    seed: SeedOption = 0,
    require: RequireOption = "*/host/*",
    record: Annotated[bool, typer.Option(help="Keep the report under reports/.")] = False,
    json_file: JsonOption = None,
    workers: WorkersOption = None,
    path: MatrixOption = None,
) -> None:
    """Everything this machine can show: build, inspect, fuzz, break on purpose, judge real weights.

    Example: lanecheck verify --budget 60s
    """
    root, loaded = matrix_path(path).parent, read_matrix(path)
    plan = Plan(loaded, subject or loaded.subject, root, seed, read_budget(cases, budget))
    with Progressing(out) as listener:
        report = run_plan(plan, Toolchain(), LocalExecutor(workers), listener)
    missing = _not_verified(report, require)

    out.print(verdict_table(report, loaded))
    for line in reasons(report):
        out.print(f"  {escape(line)}", highlight=False, style="dim", soft_wrap=True)
    print_failures([failure for record in report.campaigns for failure in record.failures])
    target = json_file or store.place(report, root, record)
    model.write(report, target)
    out.print(f"report: {relative(target)}", highlight=False, soft_wrap=True)
    if report.disproven:
        out.print("[bold red]disproven[/]")
        raise typer.Exit(1)
    if missing:
        out.print(f"[yellow]required, but not verified:[/] {', '.join(missing)}", highlight=False)
        raise typer.Exit(3)
    verified = sum(cell.status is Status.VERIFIED for cell in report.cells)
    count = f"{verified} cells verified, {len(report.cells) - verified} unverified"
    out.print(f"[bold green]nothing disproven[/]: {count}", highlight=False)


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
    """Fuzz the shipping source on the CPU, or a build on a GPU; every oracle judges every case.

    Example: lanecheck fuzz --cases 2000 --seed 7
    """
    loaded = read_matrix(path, subject)
    target = read_target(loaded, subject or loaded.subject, variant, device, arch, fault)
    limit = read_budget(cases, budget)
    with Progressing(out) as listener:
        listener.stage(f"fuzz {target.variant}", limit.seconds or limit.cases)
        result = run_campaign(
            target,
            limit,
            seed,
            LocalExecutor(workers),
            lambda total: listener.advance(total.seconds if limit.seconds else total.cases),
        )
        record = campaign_record(result, target, seed)
        listener.end(
            f"seed {seed}: {record.cases:,} cases, {record.launches:,} launches, "
            f"{record.rate:,.0f} cases/s, {len(record.failures)} failures",
            good=not record.failures,
        )
    for oracle, count in record.judged.items():
        print(f"  {oracle:<10} {count:,} verdicts")
    print_failures(record.failures)
    if json_file:
        json_file.write_text(record.model_dump_json(indent=1) + "\n")
    raise typer.Exit(1 if record.failures or not record.judged else 0)


def replay(
    line: Annotated[str, typer.Argument(help="The line that a failure printed.")],
    variant: VariantOption = "plain",
    fault: FaultOption = None,
    device: DeviceOption = "host",
    arch: ArchOption = "sm_90a",
    subject: SubjectOption = None,
    path: MatrixOption = None,
) -> None:
    """Run one case again, from the line that a failure printed.

    Example: lanecheck replay 'packed_gemv m=8 n=64 k=512 … seed=7'
    """
    loaded = read_matrix(path, subject)
    reference = subject or loaded.subject
    case = space.parse(line, load(reference))
    target = read_target(loaded, reference, variant, device, arch, fault)
    (result,) = LocalExecutor(1).run(target, [Trial(target, (case.line,))])
    failed = {failure.verdict.oracle for failure in result.failures}
    for oracle, count in result.judged.items():
        mark = "[red]fail[/]" if oracle in failed else "[green]pass[/]"
        out.print(f"{mark} {oracle:<10} {count} verdicts", highlight=False)
    for failure in result.failures:
        out.print(
            f"[red]{failure.verdict.oracle}[/] on {failure.capability}: "
            f"{escape(failure.verdict.evidence)}",
            highlight=False,
            soft_wrap=True,
        )
    raise typer.Exit(1 if result.failures or not result.judged else 0)


def faults(
    only: Annotated[Optional[list[str]], typer.Option(help="Only these; repeatable.")] = None,
    seed: SeedOption = 0,
    json_file: JsonOption = None,
    workers: WorkersOption = None,
    subject: SubjectOption = None,
    path: MatrixOption = None,
) -> None:
    """Inject every fault of the catalogue and say which oracles noticed; exit 1 if one survives.

    Example: lanecheck faults --only swap-x-halves
    """
    loaded = read_matrix(path)
    reference = subject or loaded.subject
    kernel = load(reference)
    folder, recipe = faults_of(kernel), recipe_of(kernel)
    chosen = [catalogue.find(folder, name) for name in only] if only else catalogue.load(folder)
    target = Target(reference, "host", loaded.devices["host"].mma)
    executor, toolchain, records = LocalExecutor(workers), Toolchain(), []
    with Progressing(out) as listener:
        listener.stage("break on purpose", len(chosen))
        for fault in chosen:
            score = scoreboard.score(fault, target, recipe, toolchain, executor, seed)
            records.append(fault_record(score))
            listener.advance(len(records), fault.id)
    table = Table("fault", "verdict", "cases", "noticed by (failing cases)", "silent")
    for record in records:
        noticed = ", ".join(f"{oracle} ({n})" for oracle, n in sorted(record.noticed.items()))
        verdict = "[green]killed[/]" if record.killed else "[bold red]SURVIVED[/]"
        table.add_row(record.id, verdict, str(record.cases), noticed, ", ".join(record.silent))
    out.print(table)
    if json_file:
        text = json.dumps([record.model_dump() for record in records], indent=1)
        json_file.write_text(text + "\n")
    raise typer.Exit(0 if all(record.killed for record in records) else 1)


def demo(
    fault: Annotated[str, typer.Argument(help="Id of a catalogue fault.")],
    subject: SubjectOption = None,
    path: MatrixOption = None,
) -> None:
    """Show one fault: what it changes, who notices, and the smallest input that shows it.

    Example: lanecheck demo swap-x-halves
    """
    loaded = read_matrix(path)
    show(fault, subject or loaded.subject, loaded, out)


COMMANDS = (verify, fuzz, replay, faults, demo)


def _not_verified(report: Report, patterns: str) -> list[str]:
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    cells = {f"{cell.arch}/{cell.device}/{cell.job}": cell.status for cell in report.cells}
    for pattern in wanted:
        if not any(fnmatch(name, pattern) for name in cells):
            raise BadInput(f"--require '{pattern}' matches no cell; see lanecheck matrix")
    return [
        name
        for name, status in cells.items()
        if status is not Status.VERIFIED and any(fnmatch(name, pattern) for pattern in wanted)
    ]
