"""tree."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.markup import escape
from rich.padding import Padding

from lanecheck import cases
from lanecheck.cli.checks import DeviceOption, FaultOption
from lanecheck.cli.options import (
    ArchOption,
    JsonOption,
    MatrixOption,
    SubjectOption,
    VariantOption,
    out,
    read_matrix,
    read_target,
)
from lanecheck.gpu import choose
from lanecheck.reports import model
from lanecheck.reports.results import summation_record
from lanecheck.subject import load
from lanecheck.summation.fprev import NoTree
from lanecheck.summation.notation import LEGEND, description, notation
from lanecheck.summation.recovery import Summation, recovered
from lanecheck.terminal import Progressing
from lanecheck.trial import observe


def tree(
    line: Annotated[str, typer.Argument(help="A case with FP32 output; its values do not matter.")],
    variant: VariantOption = "plain",
    fault: FaultOption = None,
    device: DeviceOption = "host",
    arch: ArchOption = None,
    json_file: JsonOption = None,
    subject: SubjectOption = None,
    path: MatrixOption = None,
) -> None:
    """Recover the order in which a kernel adds.

    By masking, see FPRev (2024): the kernel is launched on sums of ones, some hundred to some thousand of
    them, and what it returns determines the tree of its additions. Exit 1 if that is not the declared
    one, or if no tree explains what it returns.

    Example: lanecheck tree 'packed_gemv m=1 n=16 k=512 nw=4 u=1 s=2 dual=0 fused=0 bias=1 out=fp32
    xpad=0 xoff=0 ypad=0 regime=small side=upper seed=0'
    """
    loaded = read_matrix(path, subject)
    reference = subject or loaded.subject
    kernel = load(reference)
    case = cases.parse(line, kernel)
    found: list[Summation] = []
    with Progressing(out) as listener:
        listener.stage("build")
        target = read_target(loaded, reference, variant, device, arch, fault)
        listener.stage("tree")
        choose(target.gpus)
        for capability, observation in observe(kernel, case, target):
            try:
                found += recovered(observation, capability)
            except NoTree as error:
                out.print(f"[red]no tree[/] on {capability}: {escape(str(error))}", soft_wrap=True)
                raise typer.Exit(1) from error
    for each in found:
        _show(each)
    out.print(f"\n[dim]{escape(LEGEND)}[/]", soft_wrap=True)
    if json_file:
        records = [summation_record(each).model_dump() for each in found]
        model.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n", json_file)
    raise typer.Exit(1 if any(each.as_declared is False for each in found) else 0)


COMMANDS = (tree,)


def _show(each: Summation) -> None:
    def say(text: str) -> None:
        out.print(Padding(text, (0, 0, 0, 2), expand=False))

    out.print(f"[bold]{each.output} on {each.capability}[/]: {escape(each.words)}", soft_wrap=True)
    say(escape(each.notation))
    facts = f"{len(each.found.leaves):,} leaves, tree {each.found.digest}"
    if each.declared is None:
        say(f"{facts}; no order is declared")
    elif each.as_declared:
        say(f"{facts}, [green]as declared[/]")
    else:
        say(f"{facts}, [bold red]not as declared[/]: {each.declared.digest}")
        say(escape(description(each.declared, each.bias)))
        say(escape(notation(each.declared, each.bias)))
