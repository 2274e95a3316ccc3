"""tree."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.markup import escape
from rich.padding import Padding

from lanecheck import cases
from lanecheck.cli.checks import ArchOption, DeviceOption, FaultOption
from lanecheck.cli.options import (
    JsonOption,
    MatrixOption,
    SubjectOption,
    VariantOption,
    out,
    read_matrix,
    read_target,
)
from lanecheck.observation import Observation
from lanecheck.oracles import tree as oracle
from lanecheck.oracles.fprev import NoTree, Tree
from lanecheck.oracles.notation import LEGEND, description, notation
from lanecheck.reports import model
from lanecheck.subject import load
from lanecheck.terminal import Progressing
from lanecheck.trial import observe


def tree(
    line: Annotated[str, typer.Argument(help="A case with FP32 output; its values do not matter.")],
    variant: VariantOption = "plain",
    fault: FaultOption = None,
    device: DeviceOption = "host",
    arch: ArchOption = "sm_90a",
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
    found: list[_Found] = []
    with Progressing(out) as listener:
        listener.stage("build")
        target = read_target(loaded, reference, variant, device, arch, fault)
        listener.stage("tree")
        for capability, observation in observe(kernel, case, target):
            try:
                found += _recovered(observation, capability)
            except NoTree as error:
                out.print(f"[red]no tree[/] on {capability}: {escape(str(error))}", soft_wrap=True)
                raise typer.Exit(1) from error
    for each in found:
        _show(each)
    out.print(f"\n[dim]{escape(LEGEND)}[/]", soft_wrap=True)
    if json_file:
        records = [_record(each, case.line) for each in found]
        model.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n", json_file)
    raise typer.Exit(1 if any(each.other for each in found) else 0)


COMMANDS = (tree,)


@dataclass(frozen=True)
class _Found:
    """The tree of one output on one capability, and the declared one if there is one."""

    output: str
    capability: str
    tree: Tree
    declared: Tree | None
    bias: bool

    @property
    def other(self) -> bool:
        return self.declared is not None and self.declared.digest != self.tree.digest


def _recovered(observation: Observation, capability: str) -> list[_Found]:
    subject, params = observation.subject, observation.params
    order, found = subject.order(params), []
    trees = oracle.recover(observation)
    for product in subject.products(params):
        k, bias = observation.inputs[product.x].shape[1], product.bias is not None
        declared = None if order is None else oracle.implied(order, observation.core, k, bias)
        found.append(_Found(product.output, capability, trees[product.output], declared, bias))
    return found


def _show(found: _Found) -> None:
    def say(text: str) -> None:
        out.print(Padding(text, (0, 0, 0, 2), expand=False))

    words = escape(description(found.tree, found.bias))
    out.print(f"[bold]{found.output} on {found.capability}[/]: {words}", soft_wrap=True)
    say(escape(notation(found.tree, found.bias)))
    facts = f"{len(found.tree.leaves):,} leaves, tree {found.tree.digest}"
    if found.declared is None:
        say(f"{facts}; no order is declared")
    elif not found.other:
        say(f"{facts}, [green]as declared[/]")
    else:
        say(f"{facts}, [bold red]not as declared[/]: {found.declared.digest}")
        say(escape(description(found.declared, found.bias)))
        say(escape(notation(found.declared, found.bias)))


def _record(found: _Found, line: str) -> dict[str, str | int | bool | None]:
    return {
        "line": line,
        "output": found.output,
        "capability": found.capability,
        "leaves": len(found.tree.leaves),
        "tree": found.tree.digest,
        "notation": notation(found.tree, found.bias),
        "description": description(found.tree, found.bias),
        "declared": found.declared.digest if found.declared else None,
        "as_declared": not found.other if found.declared else None,
    }
