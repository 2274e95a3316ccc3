"""One fault, shown: what it changes, how wrong it is, who notices, and the smallest input."""

from __future__ import annotations

import difflib
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.syntax import Syntax

from lanecheck import cases
from lanecheck.build import build_host
from lanecheck.executor import LocalExecutor
from lanecheck.faults import catalogue, scoreboard
from lanecheck.matrix import Matrix
from lanecheck.shrink import smallest
from lanecheck.subject import Subject, faults_of, load, recipe_of
from lanecheck.terminal import Progressing
from lanecheck.toolchain import Toolchain
from lanecheck.trial import Target, observe
from lanecheck.values import real_values


def show(fault_id: str, reference: str, matrix: Matrix, toolchain: Toolchain, out: Console) -> None:
    """Print the demonstration of one catalogue fault.

    Raises:
        BadInput: if there is no such fault.
    """
    subject = load(reference)
    fault, recipe = catalogue.find(faults_of(subject), fault_id), recipe_of(subject)
    out.print(f"[bold]{fault.id}[/]: {fault.title}")
    out.print(fault.models.strip(), markup=False)
    out.print(f"A public report of the kind: {fault.report}\n", soft_wrap=True)
    out.print(Syntax("", "diff").highlight(_diff(fault, recipe.root)), soft_wrap=True)

    with Progressing(out) as listener:
        listener.stage("fuzz the faulty kernel")
        healthy = build_host(recipe, "plain", toolchain).path
        target = Target(reference, "host", matrix.devices["host"].mma[-1:], healthy)
        build = scoreboard.host_builds(recipe, toolchain)
        (score,) = scoreboard.run_catalogue([fault], target, build, LocalExecutor(), seed=0)
        for oracle, failing in sorted(score.noticed.items()):
            said = score.first[oracle].verdict.evidence
            out.print(f"[red]{oracle}[/] noticed in {failing} of {score.cases} cases")
            out.print(Padding(escape(said), (0, 0, 0, 3), expand=False))
        if fault.control or not score.killed:
            out.print(outcome(score))
            return

        variant, library = next(iter(score.libraries.items()))
        faulty = Target(reference, "host", target.capabilities, library, variant)
        line = next(iter(score.first.values())).line
        if variant == "plain":
            listener.stage("measure the error")
            out.print(
                f"\nRelative error over ordinary values, ‖y − ref‖ / ‖ref‖: "
                f"healthy {_error(subject, target):.1e}, faulty {_error(subject, faulty):.1e}"
            )
            listener.stage("shrink")
            line = smallest(faulty, line)
    options = f"--fault {fault.id}" + ("" if variant == "plain" else f" --variant {variant}")
    out.print("\nThe smallest case found:" if variant == "plain" else "\nOne case:")
    out.print(f"lanecheck replay {options} '{line}'", markup=False, soft_wrap=True)


def outcome(score: scoreboard.Score) -> str:
    """What became of a control, or why a fault survived."""
    cases = f"{score.cases} cases"
    if score.fault.control:
        verdict = "[bold green]clean[/]" if score.clean else "[bold red]flagged[/]"
        return (
            f"a control, {verdict}: {score.reordered} of {cases} reordered, {score.rung.total()} failing; "
            f"expected: {score.fault.expect}"
        )
    if score.excused:
        return f"[yellow]not shown: {score.excused}[/]"
    if not score.noticed:
        text = f"nothing noticed in {cases}"
    elif not score.healthy:
        text = "the kernel without the fault fails these cases too"
    else:
        others = ", ".join(score.noticed)
        text = f"noticed only by {others}, not by {', '.join(score.silent)}, which should have"
    return f"[bold red]survived: {text}[/]"


def _diff(fault: catalogue.Fault, root: Path) -> str:
    healthy = (root / fault.file).read_text().splitlines()
    faulty = fault.inject(root)[fault.file].splitlines()
    lines = difflib.unified_diff(
        healthy, faulty, fault.file, f"{fault.file} with the fault", "", "", 1
    )
    return "\n".join(line.rstrip("\n") for line in lines)


def _error(subject: Subject, target: Target, count: int = 20) -> float:
    """Median relative Frobenius error over ``count`` cases of normally distributed values."""
    errors = []
    for index in range(count):
        drawn = cases.case(subject, 1, index)
        case = cases.Case(drawn.subject, {**drawn.params, "regime": "normal"})
        for _, observation in observe(subject, case, target):
            exact = subject.reference(case.params, observation.inputs)
            difference = [
                (real_values(observation.outputs[name]) - want).ravel()
                for name, want in exact.items()
            ]
            size = np.linalg.norm(np.concatenate([want.ravel() for want in exact.values()]))
            errors.append(np.linalg.norm(np.concatenate(difference)) / size)
    return float(np.median(errors))
