"""sanitize."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Optional

import typer
from rich.markup import escape
from rich.padding import Padding

from lanecheck import cases as space
from lanecheck import compute_sanitizer, gpu
from lanecheck.campaign import Budget
from lanecheck.cli import recording
from lanecheck.cli.checks import FaultOption
from lanecheck.cli.options import (
    ArchOption,
    MatrixOption,
    RecordOption,
    SeedOption,
    SubjectOption,
    WorkersOption,
    check_device,
    exit_by,
    out,
    print_failures,
    read_matrix,
    read_target,
    refuse_to_record,
)
from lanecheck.covering import covering
from lanecheck.errors import BadInput, CannotRun
from lanecheck.executor import LocalExecutor
from lanecheck.reports.model import CampaignRecord, SanitizerRecord
from lanecheck.reports.results import sanitizer_record
from lanecheck.subject import load, recipe_of
from lanecheck.terminal import Progressing
from lanecheck.verify import campaign

_VARIANTS = ("asan", "hooks")
_BATCH = 25  # cases a trial: those of a batch that dies run again one by one


def sanitize(
    subject: SubjectOption = None,
    cases: Annotated[
        int, typer.Option("--cases", min=1, help="Cases under each host build.")
    ] = 500,
    seed: SeedOption = 0,
    device: Annotated[
        Optional[str],
        typer.Option(help="Only host, or only cuda; both if absent and such a GPU is here."),
    ] = None,
    arch: ArchOption = None,
    tool: Annotated[
        Optional[list[str]],
        typer.Option(help="Only these tools of compute-sanitizer; repeatable."),
    ] = None,
    line: Annotated[
        Optional[str], typer.Option(help="On the GPU only this case, as a finding prints it.")
    ] = None,
    fault: FaultOption = None,
    record: RecordOption = False,
    workers: WorkersOption = None,
    path: MatrixOption = None,
) -> None:
    """Run the kernel under sanitizers.

    On the CPU under ASan and UBSan, and with every access checked for races. On a GPU under the tools of
    NVIDIA's compute-sanitizer, over cases that take every way through the kernel.

    Example: lanecheck sanitize --cases 100
    """
    check_device(device or "host")
    tools = tool or list(compute_sanitizer.TOOLS)
    if unknown := [name for name in tools if name not in compute_sanitizer.TOOLS]:
        known = ", ".join(compute_sanitizer.TOOLS)
        raise BadInput(f"--tool '{unknown[0]}' is unknown; known: {known}")
    if record:
        refuse_to_record(fault, subject, path)
        if tool or line:
            raise BadInput("--record is for all tools and cases, without --tool and --line")
    loaded = read_matrix(path, subject)
    reference = subject or loaded.subject
    kernel = load(reference)
    recipe_of(kernel)
    records: list[CampaignRecord] = []
    found: list[SanitizerRecord] = []
    ran: tuple[str, ...] = ()
    lines = [space.parse(line, kernel).line] if line else []
    wrong = False
    with Progressing(out) as listener:
        if device != "cuda":
            for variant in _VARIANTS:
                listener.stage("build")
                target = read_target(loaded, reference, variant, fault=fault)
                title, executor = f"fuzz on host, {variant}", LocalExecutor(workers)
                records.append(
                    campaign(target, Budget(cases), seed, _BATCH, executor, listener, title)
                )
            print_failures(records, subject, fault)
        if device == "cuda" or (device is None and gpu.matched(gpu.detect(), loaded)):
            listener.stage("compute-sanitizer")
            try:
                target = read_target(loaded, reference, "plain", "cuda", arch, fault)
                program = compute_sanitizer.find()
                lines = lines or [case.line for case in covering(kernel, seed)]
                verdicts = compute_sanitizer.check(program, tools, target, lines)
            except CannotRun as reason:
                if device == "cuda":
                    raise
                listener.end(str(reason), good=None)
            else:
                ran = target.gpus[:1]  # compute-sanitizer watches one process
                given = {"--subject": subject, "--fault": fault, "--arch": target.variant}
                for checked in verdicts:
                    _report(checked, given, listener)
                    found.append(sanitizer_record(checked, target.variant))
                    wrong |= bool(checked.evidence)
    if record:
        recording.save(reference, path, True, None, gpus=ran, campaigns=records, sanitized=found)
    exit_by(records, wrong)


COMMANDS = (sanitize,)


def _report(
    checked: compute_sanitizer.Checked, given: Mapping[str, str | None], listener: Progressing
) -> None:
    """Print one tool's verdict, and of a finding the command that shows it again."""
    listener.stage(f"{checked.tool}, {given['--arch']}")
    listener.end(f"{checked.cases:,} cases, {checked.errors:,} errors", good=not checked.evidence)
    if checked.evidence:
        options = "".join(f"{name} {value} " for name, value in given.items() if value)
        command = f"lanecheck sanitize --device cuda --tool {checked.tool} {options}"
        out.print(f"{command}--line '{checked.line}'", markup=False, soft_wrap=True)
        said = f"[red]{checked.tool}[/]: {escape(checked.evidence)}"
        out.print(Padding(said, (0, 0, 0, 2), expand=False))
