"""faults, demo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Optional

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from lanecheck.cli import recording
from lanecheck.cli.options import (
    ArchOption,
    JsonOption,
    MatrixOption,
    RecordOption,
    SeedOption,
    SubjectOption,
    WorkersOption,
    out,
    read_matrix,
    read_target,
    refuse_to_record,
    toolchain,
)
from lanecheck.demo import show
from lanecheck.errors import BadInput
from lanecheck.executor import LocalExecutor
from lanecheck.faults import catalogue, scoreboard
from lanecheck.faults.differences import Comparison
from lanecheck.faults.differences import compare as compare_sides
from lanecheck.faults.scoreboard import Score
from lanecheck.reports.results import comparison_record, control_record, fault_record
from lanecheck.subject import faults_of, load, recipe_of
from lanecheck.terminal import Progressing
from lanecheck.trial import Target

# Seconds: a fault may hang the kernel, and the time to find that out is spent on every such case.
_TIME_LIMIT, _CASE_LIMIT = 60.0, 15.0


def faults(
    only: Annotated[Optional[list[str]], typer.Option(help="Only these; repeatable.")] = None,
    seed: SeedOption = 0,
    device: Annotated[
        str, typer.Option(help="host, cuda, or both: then also where they differ.")
    ] = "host",
    arch: ArchOption = None,
    record: RecordOption = False,
    json_file: JsonOption = None,
    workers: WorkersOption = None,
    subject: SubjectOption = None,
    path: MatrixOption = None,
) -> None:
    """Break the kernel on purpose and say which oracles noticed.

    Every fault of the catalogue is injected in turn, and every control, which is a change that must not be
    flagged. Exit 1 if a fault survives or a control is flagged; a race need not show on a GPU, nor PTX on the
    host. With --device both, also if the two sides differ where the kind of the fault does not let them.

    Example: lanecheck faults --only swap-x-halves
    """
    if device not in ("host", "cuda", "both"):
        raise BadInput(f"--device is host, cuda or both, not '{device}'")
    if record:
        refuse_to_record(None, subject, path)
        if only:
            raise BadInput("--record is for the whole catalogue, without --only")
    loaded = read_matrix(path)
    reference = subject or loaded.subject
    kernel = load(reference)
    folder, recipe, tools = faults_of(kernel), recipe_of(kernel), toolchain()
    chosen = [catalogue.find(folder, name) for name in only] if only else catalogue.load(folder)
    targets: dict[str, tuple[Target, scoreboard.Build]] = {}
    if device != "cuda":
        host = Target(reference, "host", loaded.devices["host"].mma)
        targets["host"] = host, scoreboard.host_builds(recipe, tools)
    if device != "host":
        gpu = read_target(loaded, reference, "plain", "cuda", arch)
        targets["cuda"] = gpu, scoreboard.gpu_builds(recipe, loaded.archs[gpu.variant], tools)
    sides: dict[str, list[Score]] = {}
    executor = LocalExecutor(workers, time_limit=_TIME_LIMIT, case_limit=_CASE_LIMIT)
    with executor, Progressing(out) as listener:
        run = partial(
            scoreboard.run_catalogue,
            chosen,
            executor=executor,
            seed=seed,
            progress=listener.advance,
        )
        for side, (target, build) in targets.items():
            listener.stage(f"break on purpose, {side}", len(chosen))
            sides[side] = run(target=target, build=build)
            good = all(score.good for score in sides[side])
            listener.end(scoreboard.summary(sides[side]), good)
        compared = []
        if device == "both":
            compared = compare_sides(sides["host"], sides["cuda"], kernel, seed)
            listener.stage("host and GPU")
            explained = all(each.explained for each in compared)
            listener.end(_agreement(compared), explained)
    for side, scores in sides.items():
        _print_scores(scores, side)
    for table in _difference_tables(compared):
        out.print(table)
    scores = [score for each in sides.values() for score in each]
    if record or json_file:
        recording.save(
            reference,
            path,
            record,
            json_file,
            gpus=targets["cuda"][0].gpus if "cuda" in targets else (),
            faults=[fault_record(score) for score in scores if not score.fault.control],
            controls=[control_record(score) for score in scores if score.fault.control],
            comparisons=[comparison_record(each) for each in compared],
        )
    good = all(score.good for score in scores) and all(each.explained for each in compared)
    raise typer.Exit(0 if good else 1)


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


COMMANDS = (faults, demo)


def _agreement(compared: list[Comparison]) -> str:
    """How far both sides agree, in words."""
    alike = sum(each.alike for each in compared)
    differing = [each for each in compared if each.only_host or each.only_gpu]
    text = f"{alike:,} verdicts of {len(compared)} faults alike"
    if differing:
        text += f", {len(differing)} faults differ as their kinds let them"
    if odd := [each.fault.id for each in differing if not each.explained]:
        text += f" but for {', '.join(odd)}"
    return text


def _print_scores(scores: list[Score], side: str) -> None:
    broken = [score for score in scores if not score.fault.control]
    controls = [score for score in scores if score.fault.control]
    if broken:
        for table in _fault_tables(broken, side):
            out.print(table)
    if controls:
        out.print(_control_table(controls, side))


def _fault_tables(scores: list[Score], side: str) -> Iterator[Table]:
    table = _table(f"fault, {side}", "verdict", "cases", "first rung", "also noticed")
    for score in scores:
        verdict = "[green]killed[/]" if score.killed else "[bold red]SURVIVED[/]"
        if score.excused:
            verdict = "[yellow]not shown[/]"
        silent = [] if score.excused else [f"[yellow]not {oracle}[/]" for oracle in score.silent]
        table.add_row(
            score.fault.id,
            verdict,
            str(score.cases),
            score.excused or "\n".join(_counts(score.rung)),
            "\n".join([*_counts(score.also), *silent]),
        )
    yield table
    probed = {score.fault.id: score.first["probes"] for score in scores if "probes" in score.first}
    said = {name: escape(failure.verdict.evidence) for name, failure in probed.items()}
    if said:
        yield _sentences(f"fault, {side}", "what the probes say", said)


def _control_table(scores: list[Score], side: str) -> Table:
    table = _table(f"control, {side}", "verdict", "cases", "expected", "reordered", "flagged by")
    for score in scores:
        verdict = "[green]clean[/]" if score.clean else "[bold red]FLAGGED[/]"
        counts = "\n".join(_counts(score.noticed))
        expected = score.fault.expect
        table.add_row(
            score.fault.id, verdict, str(score.cases), expected, str(score.reordered), counts
        )
    return table


def _difference_tables(compared: list[Comparison]) -> Iterator[Table]:
    differing = [each for each in compared if each.only_host or each.only_gpu]
    if not differing:
        return
    table = _table("host and GPU", "cases", "alike", "only host", "only GPU")
    for each in differing:
        table.add_row(
            each.fault.id,
            str(each.cases),
            str(each.alike),
            "\n".join(_counts(each.only_host)),
            "\n".join(_counts(each.only_gpu)),
        )
    yield table
    why = {each.fault.id: each.why or "[bold red]UNEXPLAINED[/]" for each in differing}
    yield _sentences("host and GPU", "because", why)


def _sentences(who: str, what: str, said: Mapping[str, str]) -> Table:
    """In a table of their own: beside counts, 80 columns leave a sentence one word a line."""
    table = _table(who, what)
    for name, sentence in said.items():
        table.add_row(name, sentence)
    return table


def _table(*names: str) -> Table:
    """A narrow one, for many columns."""
    table = Table(*names, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.columns[0].no_wrap = True
    return table


def _counts(cases: Mapping[str, int]) -> list[str]:
    """Each oracle with its number of cases, most first."""
    ordered = sorted(cases.items(), key=lambda item: (-item[1], item[0]))
    return [f"{oracle} ({count})" for oracle, count in ordered]
