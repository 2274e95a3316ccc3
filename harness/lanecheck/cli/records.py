"""bench, history, site, init."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.table import Table

from lanecheck import gpu
from lanecheck.bench import cost
from lanecheck.bench.model import BenchHeader
from lanecheck.bench.peers import PEERS
from lanecheck.bench.plan import BenchSubject, benchable
from lanecheck.bench.run import LOG, headed
from lanecheck.bench.run import run as run_bench
from lanecheck.bench.table import render, span
from lanecheck.cli import recording
from lanecheck.cli.options import (
    JsonOption,
    MatrixOption,
    RecordOption,
    SeedOption,
    SubjectOption,
    built,
    chosen_archs,
    matrix_path,
    out,
    read_matrix,
    relative,
    toolchain,
)
from lanecheck.errors import BadInput, CannotRun
from lanecheck.matrix import Device
from lanecheck.reports import model, store
from lanecheck.reports.model import CellRecord, Report, Status
from lanecheck.site import pages
from lanecheck.subject import Params, load
from lanecheck.terminal import Progressing

LOGS = Path(".lanecheck") / "bench"


def bench(
    record: RecordOption = False,
    arch: Annotated[str, typer.Option(help="Which build to time.")] = "sm_90a",
    rounds: Annotated[int, typer.Option(min=1, help="Samples of each contender.")] = 30,
    seed: SeedOption = 0,
    plan: Annotated[bool, typer.Option("--plan", help="Say what it costs, and stop.")] = False,
    log: Annotated[
        Optional[Path], typer.Option(help="Of every row; a cut run goes on from it.")
    ] = None,
    json_file: JsonOption = None,
    subject: SubjectOption = None,
    path: MatrixOption = None,
) -> None:
    """Measure the kernel's bandwidth on this machine's GPU.

    L2 is cold; the read ceiling and the peers are measured in the same run. Interrupt it when you like: the
    same command goes on.

    Example: lanecheck bench --record
    """
    root, loaded = matrix_path(path).parent, read_matrix(path)
    reference = subject or loaded.subject
    tools, here = toolchain(), gpu.matched(gpu.detect(), loaded)
    (chosen,) = chosen_archs(loaded, [arch])
    devices = [name for name in here if loaded.devices[name].cc in chosen.loads_on]
    if not devices:
        raise CannotRun(f"no GPU of matrix.yaml that loads {arch} is on this machine")
    kernel = load(reference)
    ((_, library),) = built(loaded, kernel, [arch], tools)
    unit = here[devices[0]][0].uuid
    os.environ["CUDA_VISIBLE_DEVICES"] = unit  # before torch looks
    header = headed(kernel.name, library.path, unit, rounds, seed)
    log = log or root / LOGS / f"{header.library_sha256[:12]}-{header.unit}.jsonl"
    if plan:
        _print_plan(benchable(kernel), header, log, loaded.devices[devices[0]])
        return
    with Progressing(out) as listener:
        listener.stage("bench")
        done = run_bench(
            reference,
            library.path,
            rounds=rounds,
            seed=seed,
            log=log,
            toolchain=tools,
            on_row=lambda row: listener.advance(0, f"n={row.params['n']} k={row.params['k']}"),
        )
        listener.end(f"{len(done.rows)} shapes on {done.environment.gpu}", done.valid)
    out.print(render(done))
    status = Status.VERIFIED if done.valid else Status.DISPROVEN
    reason = "; ".join(row.void for row in done.rows if row.void) or f"{len(done.rows)} shapes"
    cell = CellRecord(arch=arch, device=devices[0], job="bench", status=status, reason=reason)
    recording.save(reference, path, record, json_file, cells=[cell], bench=done)
    log.unlink()  # nothing is left to go on with
    raise typer.Exit(0 if done.valid else 1)


def history(path: MatrixOption = None) -> None:
    """List the recorded reports, oldest first.

    Example: lanecheck verify --record && lanecheck history
    """
    table = Table("created", "device", "commit", "shown", "of ceiling")
    for report in _recorded(matrix_path(path).parent):
        table.add_row(
            report.created.strftime("%Y-%m-%d %H:%M"),
            ", ".join(dict.fromkeys(report.environment.gpus)) or "host",
            report.source.commit,
            "[bold red]DISPROVEN[/]" if report.disproven else _shown(report),
            span(report.bench) if report.bench else "",
        )
    out.print(table)


def site(
    output: Annotated[Path, typer.Option(help="Folder to write.")] = Path(".lanecheck/site"),
    path: MatrixOption = None,
) -> None:
    """Build the page of what is verified, from the recorded reports.

    Example: lanecheck verify --record && lanecheck site --output public
    """
    reports = _recorded(matrix_path(path).parent)
    print(relative(pages.build(reports, read_matrix(path), output)))


def init(
    output: Annotated[Path, typer.Option(help="File to write.")] = Path("lanecheck_subject.py"),
) -> None:
    """Write a commented subject template for your own kernel.

    Example: lanecheck init --output my_subject.py
    """
    if output.exists():
        raise BadInput(f"{output} exists; choose another --output")
    template = Path(__file__).parent.parent / "template.py"
    model.write_text(template.read_text(), output)
    print(f"{output}: now run lanecheck fuzz --subject {output.stem}:SUBJECT --cases 200")


COMMANDS = (bench, history, site, init)


def _print_plan(subject: BenchSubject, header: BenchHeader, log: Path, device: Device) -> None:
    """How many shapes are left, and about how long they take."""

    def rule(params: Params) -> float:
        return cost.seconds(subject.traffic(params), header.rounds, device.datasheet_gbps or 1)

    done = {str(each.row.params): each for each in LOG.entries(log, header)}
    shapes = subject.bench_params()
    left = [rule(params) for params in shapes if str(params) not in done]
    known = [(rule(each.row.params), each.seconds) for each in done.values()]
    logged = f", {len(done)} of them in {relative(log)}" if done else ""
    by = "by the seconds of those in the log" if known else "by rule of thumb"
    out.print(
        f"{len(shapes)} shapes{logged}, each against both ceilings and {len(PEERS)} peers: "
        f"about {cost.estimate(left, known):,.0f} s, {by}",
        soft_wrap=True,
    )


def _shown(report: Report) -> str:
    """What a report that disproves nothing holds."""
    verified = sum(cell.status is Status.VERIFIED for cell in report.cells)
    parts = {
        f"{verified} of {len(report.cells)} cells": report.cells,
        f"{sum(each.cases for each in report.campaigns):,} cases": report.campaigns,
        f"{len(report.sanitized)} sanitizers clean": report.sanitized,
    }
    for device in ("host", "cuda"):
        faults = [fault for fault in report.faults if fault.device == device]
        killed = sum(fault.killed for fault in faults)
        parts[f"{killed} of {len(faults)} faults on {device}"] = faults
    return ", ".join(text for text, there in parts.items() if there)


def _recorded(root: Path) -> list[Report]:
    reports = [model.read(file) for file in store.recorded(root)]
    if not reports:
        raise BadInput(
            f"no report under {root / store.RECORDED}: record one with lanecheck verify --record"
        )
    return reports
