"""Options that commands share, and what they resolve to."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Annotated, NoReturn, Optional

import typer
from rich.markup import escape
from rich.padding import Padding

from lanecheck import gpu, matrix_file, oracles
from lanecheck.build import NO_OVERLAY, BuildFailed, Built, build_all, build_device, build_host
from lanecheck.campaign import Budget
from lanecheck.errors import BadInput, CannotRun
from lanecheck.faults import catalogue
from lanecheck.gpu import Gpu
from lanecheck.matrix import Arch, Device, Matrix, duration
from lanecheck.reports.model import CampaignRecord, FailureRecord
from lanecheck.reports.source import elsewhere
from lanecheck.subject import Subject, faults_of, load, recipe_of
from lanecheck.terminal import Progressing, console
from lanecheck.toolchain import Toolchain, check_archs
from lanecheck.trial import Target
from lanecheck.verdict import Outcome

out = console()
err = console(stderr=True)

MatrixOption = Annotated[
    Optional[Path], typer.Option("--matrix", help="matrix.yaml; found upwards from here if absent.")
]
SubjectOption = Annotated[
    Optional[str],
    typer.Option(
        "--subject", help="FILE.py:ATTRIBUTE or module:ATTRIBUTE; the matrix's own if absent."
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the campaign.")]
TimingSeedOption = Annotated[int, typer.Option("--seed", help="Seed of values and of the order.")]
ArchOption = Annotated[
    Optional[str],
    typer.Option("--arch", help="With --device cuda: which build; the GPU's own if absent."),
]
TimedArchOption = Annotated[
    Optional[str], typer.Option("--arch", help="Which build to time; the GPU's own if absent.")
]
BudgetOption = Annotated[
    Optional[str], typer.Option("--budget", help="Time instead of --cases, e.g. 60s, 5m.")
]
CasesOption = Annotated[int, typer.Option("--cases", min=1, help="Cases of the campaign.")]
WorkersOption = Annotated[
    Optional[int], typer.Option("--workers", min=1, help="Worker processes; all cores if absent.")
]
VariantOption = Annotated[str, typer.Option("--variant", help="Host build: plain, hooks or asan.")]
JsonOption = Annotated[
    Optional[Path],
    typer.Option("--json", dir_okay=False, writable=True, help="Write the result here."),
]
PlanOption = Annotated[bool, typer.Option("--plan", help="Say what it costs, and stop.")]
RecordOption = Annotated[bool, typer.Option("--record", help="Keep the report under reports/.")]


def toolchain() -> Toolchain:
    """This machine's; says on standard output when it installs something."""
    return Toolchain(say=lambda text: out.print(f"[dim]{escape(text)}[/]", soft_wrap=True))


def matrix_path(path: Path | None) -> Path:
    """The matrix.yaml that was named, or the nearest one upwards."""
    return (path or matrix_file.find()).resolve()


def read_matrix(path: Path | None, subject: str | None = None) -> Matrix:
    """The matrix of :func:`matrix_path`; where there is none, a subject is judged on the host."""
    try:
        found = matrix_path(path)
    except BadInput:
        if subject is None:
            raise
        host = Device(name="host", runner=("here",), pool=1, mma=("8.0", "9.0"))
        return Matrix.model_construct(subject=subject, archs={}, devices={"host": host}, jobs={})
    return matrix_file.load(found)


def read_budget(cases: int, budget: str | None) -> Budget:
    """A number of cases, or the time that ``--budget`` gives."""
    if budget is None:
        return Budget(cases)
    try:
        return Budget(cases, duration(budget))
    except ValueError as error:
        raise BadInput(f"--budget: {error}") from error


def chosen_archs(loaded: Matrix, only: list[str] | None) -> list[Arch]:
    """The archs named, all if none is."""
    for name in only or ():
        if name not in loaded.archs:
            raise BadInput(f"unknown arch '{name}'; matrix.yaml has {', '.join(loaded.archs)}")
    return [arch for arch in loaded.archs.values() if not only or arch.name in only]


def built(
    loaded: Matrix, subject: Subject, only: list[str] | None, tools: Toolchain
) -> list[tuple[Arch, Built]]:
    """Build the chosen archs side by side; raises the first failure after printing its log."""
    recipe, archs = recipe_of(subject), chosen_archs(loaded, only)
    check_archs(tools.nvcc, archs)
    with Progressing(out) as listener:
        listener.stage("build")
        results = build_all(partial(build_device, recipe, arch, tools) for arch in archs)
    libraries = []
    for arch, library in zip(archs, results):
        if isinstance(library, BuildFailed):
            err.print(library.log, markup=False, soft_wrap=True)
            raise library
        libraries.append((arch, library))
    return libraries


def read_target(
    loaded: Matrix,
    reference: str,
    variant: str,
    device: str = "host",
    arch: str | None = None,
    fault: str | None = None,
) -> Target:
    """Build what the options name, with a fault injected if one is.

    Raises:
        BadInput: if an option names what cannot be, or what would not be run. CannotRun: if no GPU runs it.
    """
    check_device(device)
    subject, tools = load(reference), toolchain()
    capabilities = loaded.devices["host"].mma
    if subject.recipe is None:
        _refuse_builds(subject, fault, device, arch, variant)
        return Target(reference, "host", capabilities[-1:])
    overlay = _overlay(subject, fault, device) if fault else NO_OVERLAY
    if device == "host":
        library = build_host(subject.recipe, variant, tools, overlay).path
        return Target(reference, "host", capabilities, library, variant)
    if variant != "plain":
        raise BadInput(f"--variant {variant} is a host build: a GPU runs that of --arch")
    chosen, here = read_gpus(loaded, device, arch)
    library = build_device(subject.recipe, chosen, tools, overlay).path
    alike = tuple(found.uuid for found in here if found.name == here[0].name)
    return Target(reference, "cuda", (here[0].cc,), library, chosen.name, alike)


def check_device(device: str) -> None:
    """Raises BadInput if it is neither the host nor a GPU."""
    if device not in ("host", "cuda"):
        raise BadInput(f"--device is host or cuda, not '{device}'")


def _refuse_builds(
    subject: Subject, fault: str | None, device: str, arch: str | None, variant: str
) -> None:
    """Raises BadInput if an option chooses among the builds of a subject that has none."""
    for option, value, usual in (
        ("--fault", fault, None),
        ("--device", device, "host"),
        ("--arch", arch, None),
        ("--variant", variant, "plain"),
    ):
        if value != usual:
            raise BadInput(
                f"{option} {value} is for a compiled subject: '{subject.name}' is a callable, which "
                "runs as it is"
            )


def _overlay(subject: Subject, fault_id: str, device: str) -> Mapping[str, str]:
    """The files that a fault changes.

    Raises:
        BadInput: if there is no such fault, or the device does not run what it changes.
    """
    fault = catalogue.find(faults_of(subject), fault_id)
    if fault.kind == "asm" and device == "host":
        raise BadInput(
            f"fault {fault.id} is in code that host execution replaces: only a GPU runs it, with "
            "--device cuda"
        )
    return fault.inject(recipe_of(subject).root)


def read_gpus(loaded: Matrix, device: str, arch: str | None) -> tuple[Arch, list[Gpu]]:
    """What --arch names, and the GPUs of this machine that load it, for a --device that is not the host.

    Args:
        arch: that of :func:`arch_for` if absent.

    Raises:
        BadInput: if the device is not cuda, or there is no such arch. CannotRun: if there is no such GPU.
    """
    check_device(device)
    if not loaded.archs:
        raise BadInput("--device cuda needs a matrix.yaml, which names the archs to build")
    found = gpu.detect()
    name = arch or arch_for(loaded, found)
    if name is None:
        raise CannotRun("no GPU on this machine loads an arch of matrix.yaml; use --device host")
    (chosen,) = chosen_archs(loaded, [name])
    here = [each for each in found if each.cc in chosen.loads_on]
    if not here:
        kinds = {each.name: arch_for(loaded, [each]) for each in found}
        others = "".join(f"; --arch {made} for {kind}" for kind, made in kinds.items() if made)
        raise CannotRun(f"no GPU on this machine loads {chosen.name}; use --device host{others}")
    return chosen, here


def arch_for(loaded: Matrix, gpus: Sequence[Gpu]) -> str | None:
    """The arch made for the newest of these GPUs that any is for; None if none is."""
    here = {each.cc for each in gpus}
    fit = [arch for arch in loaded.archs.values() if here.intersection(arch.loads_on)]
    return max(fit, key=_nearness).name if fit else None


def _nearness(arch: Arch) -> tuple[bool, list[int]]:
    """Machine code before PTX, and of that the one for the newest GPU."""
    return arch.role != "fallback", [int(part) for part in arch.loads_on[0].split(".")]


def refuse_to_record(fault: str | None, subject: str | None, path: Path | None) -> None:
    """Reports under ``reports/`` are of the checkout's own kernel, as it is.

    Args:
        path: of the matrix, as given.

    Raises:
        BadInput: if a fault or another subject is named, or an installed copy would be judged.
    """
    if fault or subject:
        raise BadInput("--record is for the kernel of matrix.yaml, without a fault")
    recipe = load(read_matrix(path).subject).recipe
    if recipe and elsewhere(root := matrix_path(path).parent, recipe):
        raise BadInput(
            f"the kernel that Python imports lies in {recipe.root}, which is no part of the checkout {root}: "
            "pip install -e the checkout's own, whose commit a record names"
        )


def exit_by(campaigns: Sequence[CampaignRecord], wrong: bool = False) -> NoReturn:
    """End a command: 1 if a case failed, or something else was ``wrong``.

    Raises:
        CannotRun: if a campaign showed nothing.
    """
    if wrong or any(each.failures for each in campaigns):
        raise typer.Exit(1)
    if lacking := next((each.lacking for each in campaigns if each.lacking), None):
        raise CannotRun(f"{lacking}: nothing is shown")
    raise typer.Exit(0)


def print_judged(record: CampaignRecord) -> None:
    """How often each oracle has judged, and how much it compared, in the order of the ladder."""
    for oracle in sorted(record.judged, key=oracles.NAMES.index):
        compared = record.compared.get(oracle)
        elements = f", {compared:,} elements" if compared else ""
        out.print(f"   {oracle:<10} {record.judged[oracle]:,} verdicts{elements}")


def print_failures(
    campaigns: Iterable[CampaignRecord],
    subject: str | None = None,
    fault: str | None = None,
    most: int = 5,
) -> None:
    """The first failing cases, each the command that shows it again and what the oracles said.

    Args:
        subject: given by ``--subject``. fault: injected.
    """
    failing = [
        (replay_command(record, line, subject, fault), list(failures))
        for record in campaigns
        for line, failures in groupby(record.failures, attrgetter("line"))
    ]
    for command, failures in failing[:most]:
        out.print(command, markup=False, soft_wrap=True)
        for failure in failures:
            print_failure(failure)
    if len(failing) > most:
        out.print(f"  … and {len(failing) - most} more failing cases")


def print_reordered(record: CampaignRecord) -> None:
    """The first case whose order of additions is not the declared one."""
    first = record.reordered[0]
    out.print(f"[yellow]reordered[/], first: {escape(first.line)}", soft_wrap=True)
    out.print(Padding(escape(first.evidence), (0, 0, 0, 2), expand=False))


def print_failure(failure: FailureRecord) -> None:
    """What an oracle said of a case."""
    colour = "yellow" if failure.outcome is Outcome.REORDERED else "red"
    suspect = f" ({failure.outcome.value})" if failure.outcome is Outcome.SUSPECT else ""
    oracle = f"[{colour}]{failure.oracle}[/] on {failure.capability}{suspect}"
    said = f"{oracle}: {escape(failure.evidence)}"
    out.print(Padding(said, (0, 0, 0, 2), expand=False))


def replay_command(
    record: CampaignRecord, line: str, subject: str | None, fault: str | None
) -> str:
    """What shows a case of a campaign again; ``subject`` and ``fault`` as for :func:`print_failures`."""
    given = {"--subject": subject, "--fault": fault}
    if record.device == "cuda":
        given |= {"--device": "cuda", "--arch": record.variant}
    elif record.variant != "plain":
        given |= {"--variant": record.variant}
    words = [word for name, value in given.items() if value for word in (name, value)]
    return shlex.join(["lanecheck", "replay", *words, line])


def relative(path: Path) -> Path:
    """The path as seen from here, if it lies below."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except ValueError:
        return path
