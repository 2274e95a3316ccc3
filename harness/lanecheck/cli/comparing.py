"""compare, power."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Optional

import typer
from pydantic import ValidationError
from rich.markup import escape

from lanecheck.bench import host_rig
from lanecheck.bench.paired import compare as comparison
from lanecheck.bench.paired.arms import checked_out
from lanecheck.bench.paired.fresh import FreshProcesses
from lanecheck.bench.paired.gate import Verdict, pairs_needed
from lanecheck.bench.paired.journal import processes_in
from lanecheck.bench.paired.measured import PowerRecord
from lanecheck.bench.paired.prepared import Place, Prepared, prepared
from lanecheck.bench.paired.rates import Published
from lanecheck.bench.paired.record import Header, PairingRecord
from lanecheck.bench.paired.table import (
    marked,
    noises,
    reality,
    render,
    render_rates,
    simulation,
    unwatched,
)
from lanecheck.cli import recording
from lanecheck.cli.options import (
    JsonOption,
    MatrixOption,
    PlanOption,
    RecordOption,
    SubjectOption,
    TimedArchOption,
    matrix_path,
    out,
    read_gpus,
    read_matrix,
    refuse_to_record,
    relative,
)
from lanecheck.errors import BadInput, CannotRun
from lanecheck.git import git
from lanecheck.gpu import reserved, unit
from lanecheck.matrix import Matrix
from lanecheck.reports import model, store
from lanecheck.reports.model import write_text
from lanecheck.subject import file_of
from lanecheck.terminal import Progressing

LOGS = Path(".lanecheck") / "compare"
PAIRS = 12
EXIT_CODES = {Verdict.SLOW: 1, Verdict.INSUFFICIENT: CannotRun.exit_code}


def compare(
    base: Annotated[str, typer.Argument(help="A git revision, or a folder of a checkout.")],
    head: Annotated[
        str, typer.Argument(help="Revision or folder to judge; '.' is the working tree.")
    ],
    device: Annotated[str, typer.Option(help="cuda or host.")] = "cuda",
    arch: TimedArchOption = None,
    gpu: Annotated[
        int, typer.Option(min=0, help="Which of the GPUs that load the arch, from 0.")
    ] = 0,
    pairs: Annotated[
        int,
        typer.Option(
            min=1,
            help="Pairs of base and head; as many of base and a second checkout of it are the control.",
        ),
    ] = PAIRS,
    rounds: Annotated[
        int, typer.Option(min=1, help="Samples of each config in a process.")
    ] = comparison.ROUNDS,
    seed: Annotated[
        Optional[int],
        typer.Option(
            help="Seed of values and of the order; drawn from the code and configs of base and head if "
            "absent, so that the same command goes on from its log."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Time even identical code.")] = False,
    plan: PlanOption = False,
    log: Annotated[
        Optional[Path],
        typer.Option(
            dir_okay=False,
            help="File that keeps each process; a cut run goes on from it, a finished one deletes it.",
        ),
    ] = None,
    json_file: JsonOption = None,
    subject: SubjectOption = None,
    path: MatrixOption = None,
) -> None:
    """Tell whether head is slower than base, by pairs of processes.

    Same machine code and same host code: SAME, and nothing is timed. Otherwise each process is fresh and
    times every config of the gate; pairs of base and head, and of base and a second checkout of it, run in
    random order. A kernel that is not shown correct is not timed. Interrupt it when you like: the same
    command goes on.

    Comparisons may run at once, each on a --gpu of its own; a second one on the same GPU is refused. Where
    CUDA_VISIBLE_DEVICES is set, --gpu counts those that it names, in its order.

    Exit codes: 1 SLOW, or shown wrong; 3 INSUFFICIENT, too little is known; 0 SAME, FAST, and also
    AMBIGUOUS: neither a change nor equality is shown, which a person may want to look at, but which is no
    one's fault.

    --device host exercises all of it without a GPU, and says nothing of one.

    Example: lanecheck compare main . --plan
    """
    root, loaded = _root(path, subject), read_matrix(path, subject)
    place, environment = _place(loaded, device, arch, gpu)
    reference = subject or loaded.subject
    with (
        reserved(place.unit, place.machine, f"compare {base} {head}")
        if place.unit
        else nullcontext(),
        checked_out(base, head, root, reference) as arms,
        FreshProcesses(environment) as processes,
        Progressing(out) as listener,
    ):
        listener.stage("build")
        found = prepared(
            arms,
            place,
            reference,
            processes,
            pairs=pairs,
            rounds=rounds,
            seed=seed,
        )
        differs = ", ".join(found.header.changes)
        listener.end(f"base and head differ in {differs}" if differs else "base and head are alike")
        log = log or root / LOGS / found.log
        if found.header.changes or force:
            _print_doubts(found)
        if plan:
            _print_plan(found, processes, log, force, listener)
            return
        rates = _published(root, found.header)
        record = comparison.compare(found, processes, log, listener, force)
    if record.configs:
        record = record.model_copy(update={"rates": rates})
        out.print(render(record))
    verdict = "[bold red]WRONG[/]" if record.wrong else marked(record.verdict)
    out.print(f"{verdict}: {escape(record.cause)}", soft_wrap=True)
    if record.configs:
        none = f"none is recorded for {place.machine}; see lanecheck power --help"
        said = rates.sentence if rates else none
        out.print(f"the gate's own errors: {said}", markup=False, soft_wrap=True)
    if reason := unwatched(record):
        out.print(
            f"nobody watches whether the GPU is held back: {reason}", markup=False, soft_wrap=True
        )
    if json_file:
        write_text(record.model_dump_json(indent=1) + "\n", json_file)
    if record.configs:
        log.unlink()  # nothing is left to go on with
    elif record.refusal and log.exists() and not record.wrong:
        out.print(f"the same command goes on from {relative(log)}", markup=False, soft_wrap=True)
    raise typer.Exit(1 if record.wrong else EXIT_CODES.get(record.verdict, 0))


def power(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="RECORD...", help="What compare --json wrote, of identical code."),
    ],
    runs: Annotated[int, typer.Option(min=300, help="Simulated runs of the gate.")] = 10_000,
    pairs: Annotated[int, typer.Option(min=1, help="Of base and head in a simulated run.")] = PAIRS,
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 0,
    record: RecordOption = False,
    json_file: JsonOption = None,
    path: MatrixOption = None,
) -> None:
    """Measure how often compare errs: its false alarms and its power.

    Each record is one real comparison of identical code, by compare HEAD HEAD --force --json FILE from a
    clean checkout, on each GPU with a --seed of its own; all are of one kind of machine, on as many GPUs as
    you like. The usual 12 pairs take two records at least. It says how those came out, and simulates runs of
    the gate from pairs of their processes, of identical code and with one config slowed by 1, 2 and 5 %. What
    is recorded stands beside every later verdict of compare.

    Example: lanecheck power first.json second.json --record
    """
    records = [(str(file), _read(file)) for file in files]
    reference = records[0][1].header.subject
    if record:
        if reference != read_matrix(path).subject:
            refuse_to_record(None, reference, path)
        _refuse_folders(records)
    found = PowerRecord.of(records, pairs, runs, seed)
    out.print(render_rates(found))
    if found.device == "host":
        out.print(host_rig.SAYS_NOTHING)
    for sentence in (reality(found), simulation(found), noises(found)):
        out.print(sentence, markup=False, soft_wrap=True)
    if json_file:
        model.write(found, json_file)
    if record:
        recording.save(reference, path, True, None, gpus=(), power=found)


COMMANDS = (compare, power)


def _root(path: Path | None, subject: str | None) -> Path:
    """The checkout whose revisions are compared: the matrix's; of a subject's file that lies elsewhere, its
    own; if git knows none, this folder or the file's.

    Raises:
        BadInput: if there is no matrix, and no such file either.
    """
    file = file_of(subject) if subject else None
    try:
        root = matrix_path(path).parent
        if file is None or file.is_relative_to(root):
            return root
    except BadInput:
        if file is None:
            raise
    top = git(file.parent, "rev-parse", "--show-toplevel")
    here = Path.cwd()
    return Path(top) if top else here if file.is_relative_to(here) else file.parent


def _read(path: Path) -> PairingRecord:
    """Raises BadInput if it is none."""
    try:
        return PairingRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        raise BadInput(
            f"{path} is not what compare --json writes: {where}: {first['msg']}"
        ) from error


def _refuse_folders(records: Sequence[tuple[str, PairingRecord]]) -> None:
    """Raises BadInput if one is of code that no commit names."""
    for name, record in records:
        if record.header.base.commit is None:
            raise BadInput(
                f"{name} is of a folder, {record.header.base.given}, which no commit names: record what "
                "lanecheck compare HEAD HEAD --force says, from a clean checkout"
            )


def _published(root: Path, header: Header) -> Published | None:
    """The newest recorded rates of the gate on this kind of machine, of this subject."""
    for file in reversed(store.recorded(root)):
        report = model.read(file)
        known = report.power
        if known and (known.machine, known.subject) == (header.machine, header.subject):
            return known.published(report.created, header)
    return None


def _place(
    loaded: Matrix, device: str, arch: str | None, index: int
) -> tuple[Place, dict[str, str]]:
    """Where it runs, and the environment of its processes.

    Raises:
        BadInput: if there is no such GPU.
    """
    environment = dict(os.environ)
    if device == "host":
        if index:
            raise BadInput("--gpu is for --device cuda")
        if arch:
            raise BadInput("--arch is for --device cuda: the host compiles the source for itself")
        capability = loaded.devices["host"].mma[-1]
        return Place("host", None, capability, host_rig.machine()), environment
    chosen, here = read_gpus(loaded, device, arch)
    if index >= len(here):
        count = (
            "1 GPU, which is --gpu 0" if len(here) == 1 else f"{len(here)} GPUs, from --gpu 0 on"
        )
        raise BadInput(f"there is no --gpu {index}: {chosen.name} is loaded here by {count}")
    taken = here[index]
    return Place("cuda", chosen, taken.cc, taken.name, unit(taken.uuid)), {
        **environment,
        "CUDA_VISIBLE_DEVICES": taken.uuid,
    }


def _print_doubts(found: Prepared) -> None:
    """What is known before anything is timed to say little."""
    if found.place.device == "host":
        out.print(host_rig.SAYS_NOTHING)
    if (needed := pairs_needed(len(found.configs))) > found.header.pairs:
        out.print(f"{len(found.configs)} configs need {needed} pairs: expect INSUFFICIENT")


def _print_plan(
    found: Prepared,
    processes: FreshProcesses,
    log: Path,
    force: bool,
    listener: Progressing,
) -> None:
    if not found.header.changes and not force:
        out.print("no processes: same machine code and same host code, the verdict is SAME")
        return
    listener.stage("one process")
    each = comparison.seconds_each(found, processes)
    listener.end(f"{each:.1f} s")
    total, done = found.header.processes, processes_in(log, found.header)
    logged = f", {done} of them in {relative(log)}" if done else ""
    out.print(
        f"{total} processes{logged}, each of {len(found.configs)} configs: about "
        f"{(total - done) * each:.0f} s, and before that each arm is judged once",
        soft_wrap=True,
    )
