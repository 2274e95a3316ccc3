"""Options that commands share, and what they resolve to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.markup import escape

from lanecheck import gpu
from lanecheck import matrix as matrices
from lanecheck.build import NO_OVERLAY, BuildFailed, Built, build_all, build_device, build_host
from lanecheck.campaign import Budget
from lanecheck.errors import BadInput, CannotRun
from lanecheck.faults import catalogue
from lanecheck.matrix import Arch, Device, Matrix
from lanecheck.reports.model import FailureRecord
from lanecheck.subject import Subject, load, recipe_of
from lanecheck.toolchain import Toolchain, check_archs
from lanecheck.trial import Target

out = Console()
err = Console(stderr=True)

MatrixOption = Annotated[
    Optional[Path], typer.Option("--matrix", help="matrix.yaml; found upwards from here if absent.")
]
SubjectOption = Annotated[
    Optional[str],
    typer.Option("--subject", help="module:ATTRIBUTE; the matrix's own if absent."),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the campaign.")]
BudgetOption = Annotated[
    Optional[str], typer.Option("--budget", help="Time instead of --cases, e.g. 60s, 5m.")
]
CasesOption = Annotated[int, typer.Option("--cases", min=1, help="Cases of the campaign.")]
WorkersOption = Annotated[
    Optional[int], typer.Option("--workers", min=1, help="Worker processes; all cores if absent.")
]
VariantOption = Annotated[str, typer.Option("--variant", help="Host build: plain, hooks or asan.")]
JsonOption = Annotated[Optional[Path], typer.Option("--json", help="Write the result here.")]


def matrix_path(path: Path | None) -> Path:
    """The matrix.yaml that was named, or the nearest one upwards."""
    return (path or matrices.find()).resolve()


def read_matrix(path: Path | None, subject: str | None = None) -> Matrix:
    """The matrix of :func:`matrix_path`; where there is none, a subject is judged on the host."""
    try:
        found = matrix_path(path)
    except BadInput:
        if subject is None:
            raise
        host = Device(name="host", runner=("here",), pool=1, mma=("8.0", "9.0"))
        return Matrix.model_construct(subject=subject, archs={}, devices={"host": host}, jobs={})
    return matrices.load(found)


def read_budget(cases: int, budget: str | None) -> Budget:
    """A number of cases, or the time that ``--budget`` gives."""
    if budget is None:
        return Budget(cases)
    try:
        return Budget(cases, matrices.duration(budget))
    except ValueError as error:
        raise BadInput(f"--budget: {error}") from error


def chosen_archs(loaded: Matrix, only: list[str] | None) -> list[Arch]:
    """The archs named, all if none is."""
    for name in only or ():
        if name not in loaded.archs:
            raise BadInput(f"unknown arch '{name}'; matrix.yaml has {', '.join(loaded.archs)}")
    return [arch for arch in loaded.archs.values() if not only or arch.name in only]


def built(
    loaded: Matrix, subject: Subject, only: list[str] | None, toolchain: Toolchain
) -> Iterator[tuple[Arch, Built]]:
    """Build the chosen archs side by side; raises the first failure after printing its log."""
    recipe, archs = recipe_of(subject), chosen_archs(loaded, only)
    check_archs(toolchain.nvcc, archs)
    jobs = [lambda arch=arch: build_device(recipe, arch, toolchain) for arch in archs]
    for arch, library in zip(archs, build_all(jobs)):
        if isinstance(library, BuildFailed):
            err.print(library.log, highlight=False, markup=False)
            raise library
        yield arch, library


def read_target(
    loaded: Matrix,
    reference: str,
    variant: str,
    device: str = "host",
    arch: str = "sm_90a",
    fault: str | None = None,
) -> Target:
    """Build what the options name, with a fault injected if one is."""
    subject = load(reference)
    capabilities = loaded.devices["host"].mma
    if subject.recipe is None:
        return Target(reference, "host", capabilities[-1:])
    overlay = NO_OVERLAY
    if fault:
        overlay = catalogue.find(faults_of(subject), fault).inject(subject.recipe.root)
    if device == "host":
        library = build_host(subject.recipe, variant, Toolchain(), overlay).path
        return Target(reference, "host", capabilities, library, variant)
    if device != "cuda":
        raise BadInput(f"--device is host or cuda, not '{device}'")
    (chosen,) = chosen_archs(loaded, [arch])
    here = [found for found in gpu.detect() if found.cc in chosen.loads_on]
    if not here:
        raise CannotRun(f"no GPU on this machine loads {arch}; use --device host")
    library = build_device(subject.recipe, chosen, Toolchain(), overlay).path
    return Target(reference, "cuda", (here[0].cc,), library, arch)


def faults_of(subject: Subject) -> Path:
    """The subject's catalogue."""
    if subject.faults is None:
        raise BadInput(f"subject '{subject.name}' has no fault catalogue")
    return subject.faults


def print_failures(failures: list[FailureRecord], most: int = 5) -> None:
    """The first failures, each with the command that shows it again."""
    for failure in failures[:most]:
        out.print(
            f"[red]{failure.oracle}[/] on {failure.capability}: {escape(failure.evidence)}",
            highlight=False,
            soft_wrap=True,
        )
        out.print(f"  lanecheck replay '{failure.line}'", highlight=False, soft_wrap=True)
    if len(failures) > most:
        out.print(f"  … and {len(failures) - most} more", highlight=False)


def relative(path: Path) -> Path:
    """The path as seen from here, if it lies below."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except ValueError:
        return path
