"""matrix, build, inspect."""

from __future__ import annotations

import json
from typing import Annotated, Optional

import typer
from rich.markup import escape
from rich.table import Table

from lanecheck.cli.options import (
    MatrixOption,
    SubjectOption,
    built,
    out,
    read_matrix,
    toolchain,
)
from lanecheck.inspect import inspect as read
from lanecheck.subject import load

ArchOption = Annotated[Optional[list[str]], typer.Option(help="Only these archs; repeatable.")]


def matrix(
    tier: Annotated[str, typer.Option(help="pull_request, nightly or release.")] = "pull_request",
    as_json: Annotated[bool, typer.Option("--json", help="A GitHub matrix for fromJSON.")] = False,
    job: Annotated[Optional[list[str]], typer.Option(help="Only these jobs; repeatable.")] = None,
    path: MatrixOption = None,
) -> None:
    """List the cells of a tier: arch × device × job.

    Example: lanecheck matrix --tier pull_request --json --job build
    """
    loaded = read_matrix(path)
    if as_json:
        print(json.dumps(loaded.github(tier, job or ())))
        return
    for cell in loaded.cells(tier, job or ()):
        print(cell)


def build(
    arch: ArchOption = None, subject: SubjectOption = None, path: MatrixOption = None
) -> None:
    """Compile the kernel for each arch of the matrix.

    Example: lanecheck build --arch sm_90a
    """
    loaded = read_matrix(path)
    for target, library in built(loaded, load(subject or loaded.subject), arch, toolchain()):
        note = "cached" if library.cached else f"{library.seconds:.1f} s"
        print(f"{target.name:<8} {library.path} ({note})")


def inspect(
    arch: ArchOption = None, subject: SubjectOption = None, path: MatrixOption = None
) -> None:
    """Read what the compiler made: registers, spills, instructions.

    Exit 1 if an arch is missing from a binary, a kernel spills, or lacks an instruction that it must have.

    Example: lanecheck inspect --arch sm_90a
    """
    loaded, tools = read_matrix(path), toolchain()
    kernel = load(subject or loaded.subject)
    table = Table("arch", "codes", "kernels", "registers", "spills", "SASS sha256")
    problems: list[str] = []
    for target, library in built(loaded, kernel, arch, tools):
        facts = read(library, target, tools, kernel.instructions)
        problems += facts.problems
        table.add_row(
            target.name,
            ", ".join((*facts.machine_codes, *facts.ptx_codes)),
            str(len(facts.functions)),
            str(max((f.registers for f in facts.functions), default=0)),
            str(sum(f.spilled for f in facts.functions)),
            facts.sass_sha256[:16],
        )
    out.print(table)
    for problem in problems:
        out.print(f"[red]{escape(problem)}[/]", soft_wrap=True)
    raise typer.Exit(1 if problems else 0)


COMMANDS = (matrix, build, inspect)
