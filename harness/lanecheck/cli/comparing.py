"""compare."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.markup import escape

from lanecheck.bench import host
from lanecheck.bench.paired import compare as comparison
from lanecheck.bench.paired.arms import checked_out
from lanecheck.bench.paired.compare import Place
from lanecheck.bench.paired.fresh import FreshProcesses
from lanecheck.bench.paired.gate import Verdict, pairs_needed
from lanecheck.bench.paired.journal import processes_in
from lanecheck.bench.paired.table import marked, render
from lanecheck.cli.checks import ArchOption
from lanecheck.cli.options import (
    JsonOption,
    MatrixOption,
    SeedOption,
    SubjectOption,
    matrix_path,
    out,
    read_gpus,
    read_matrix,
    relative,
)
from lanecheck.errors import CannotRun
from lanecheck.gpu import unit
from lanecheck.matrix import Matrix
from lanecheck.reports.model import write_text
from lanecheck.terminal import Progressing

LOGS = Path(".lanecheck") / "compare"
EXIT_CODES = {Verdict.SLOW: 1, Verdict.INSUFFICIENT: CannotRun.exit_code}


def compare(
    base: Annotated[str, typer.Argument(help="A git revision, or a folder of a checkout.")],
    head: Annotated[str, typer.Argument(help="Another; '.' is the working tree.")],
    device: Annotated[str, typer.Option(help="cuda or host.")] = "cuda",
    arch: ArchOption = "sm_90a",
    pairs: Annotated[
        int, typer.Option(min=1, help="Of base and head; as many of base alone.")
    ] = 12,
    rounds: Annotated[
        int, typer.Option(min=1, help="Samples of each config in a process.")
    ] = comparison.ROUNDS,
    seed: SeedOption = 0,
    force: Annotated[bool, typer.Option("--force", help="Time even identical code.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Say what it costs, and stop.")] = False,
    log: Annotated[
        Optional[Path], typer.Option(help="Of every process; a cut run goes on from it.")
    ] = None,
    json_file: JsonOption = None,
    subject: SubjectOption = None,
    path: MatrixOption = None,
) -> None:
    """Tell whether head is slower than base, by pairs of processes.

    Same machine code and same host code: SAME, and nothing is timed. Otherwise each process is fresh and
    times every config of the gate; pairs of base and head, and of base and base, run in random order. A
    kernel that is not shown correct is not timed. Interrupt it when you like: the same command goes on.

    Exit codes: 1 SLOW; 3 INSUFFICIENT, too little is known; 0 SAME, FAST, and also AMBIGUOUS: neither a
    change nor equality is shown, which a person may want to look at, but which is no one's fault.

    --device host exercises all of it without a GPU, and says nothing of one.

    Example: lanecheck compare main . --plan
    """
    root, loaded = matrix_path(path).parent, read_matrix(path)
    place, environment = _place(loaded, device, arch)
    processes = FreshProcesses(environment)
    reference = subject or loaded.subject
    with (
        checked_out(base, head, root, reference) as arms,
        tempfile.TemporaryDirectory(prefix="lanecheck-") as operands,
        Progressing(out) as listener,
    ):
        listener.stage("build")
        found = comparison.prepared(
            arms,
            place,
            reference,
            processes,
            Path(operands),
            pairs=pairs,
            rounds=rounds,
            seed=seed,
        )
        differs = ", ".join(found.changes)
        listener.end(f"base and head differ in {differs}" if differs else "base and head are alike")
        log = log or root / LOGS / found.log
        if device == "host":
            out.print(host.SAYS_NOTHING)
        if (needed := pairs_needed(len(found.configs))) > pairs:
            out.print(f"{len(found.configs)} configs need {needed} pairs: expect INSUFFICIENT")
        if plan:
            _print_plan(found, processes, log, force, listener)
            return
        record = comparison.compare(found, processes, log, listener, force)
    if record.configs:
        out.print(render(record))
        out.print(f"log: {relative(log)}", markup=False, soft_wrap=True)
    out.print(f"{marked(record.verdict)}: {escape(record.cause)}", soft_wrap=True)
    if json_file:
        write_text(record.model_dump_json(indent=1) + "\n", json_file)
    raise typer.Exit(EXIT_CODES.get(record.verdict, 0))


COMMANDS = (compare,)


def _place(loaded: Matrix, device: str, arch: str) -> tuple[Place, dict[str, str]]:
    """Where it runs, and the environment of its processes."""
    environment = dict(os.environ)
    if device == "host":
        capability = loaded.devices["host"].mma[-1]
        return Place("host", None, capability, host.machine()), environment
    chosen, (first, *_) = read_gpus(loaded, device, arch)
    return Place("cuda", chosen, first.cc, first.name, unit(first.uuid)), {
        **environment,
        "CUDA_VISIBLE_DEVICES": first.uuid,
    }


def _print_plan(
    found: comparison.Prepared,
    processes: FreshProcesses,
    log: Path,
    force: bool,
    listener: Progressing,
) -> None:
    if not found.changes and not force:
        out.print("no processes: same machine code and same host code, the verdict is SAME")
        return
    listener.stage("one process")
    each = comparison.seconds_each(found, processes)
    listener.end(f"{each:.1f} s")
    total, done = 4 * found.header.pairs, processes_in(log, found.header)
    logged = f", {done} of them in {relative(log)}" if done else ""
    out.print(
        f"{total} processes{logged}, each of {len(found.configs)} configs: about "
        f"{(total - done) * each:.0f} s, and before that each arm is judged once",
        soft_wrap=True,
    )
