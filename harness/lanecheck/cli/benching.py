"""bench."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, count
from math import inf
from pathlib import Path
from typing import Annotated, Optional

import typer

from lanecheck import gpu
from lanecheck.bench import ahead, cost, ncu
from lanecheck.bench.asking import Asking
from lanecheck.bench.journal import Cut
from lanecheck.bench.log import LOG, RowEntry, headed, rows_in, shape, usable
from lanecheck.bench.model import BenchRecord
from lanecheck.bench.plan import BenchSubject, Shape, benchable, swept
from lanecheck.bench.run import ROUNDS
from lanecheck.bench.run import run as run_bench
from lanecheck.bench.table import render, render_profiled
from lanecheck.cli import recording
from lanecheck.cli.options import (
    JsonOption,
    MatrixOption,
    PlanOption,
    RecordOption,
    SubjectOption,
    TimedArchOption,
    TimingSeedOption,
    arch_for,
    built,
    chosen_archs,
    err,
    matrix_path,
    out,
    read_matrix,
    refuse_to_record,
    relative,
    toolchain,
)
from lanecheck.errors import BadInput, CannotRun
from lanecheck.gpu import Gpu
from lanecheck.matrix import Arch, Device, Matrix
from lanecheck.reports.model import CellRecord, Status
from lanecheck.subject import Params, load, title
from lanecheck.terminal import Progressing

LOGS = Path(".lanecheck") / "bench"


def bench(
    record: RecordOption = False,
    arch: TimedArchOption = None,
    rounds: Annotated[int, typer.Option(min=1, help="Samples of each contender.")] = ROUNDS,
    seed: TimingSeedOption = 0,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Every shape the subject knows, not the usual few.")
    ] = False,
    only: Annotated[
        Optional[list[str]],
        typer.Option(
            help="Only shapes with such a value, as in m=1 or m=1,8; repeat it to narrow."
        ),
    ] = None,
    profile: Annotated[
        bool,
        typer.Option(
            "--ncu", help="Check bytes and times of three shapes with Nsight Compute as well."
        ),
    ] = False,
    plan: PlanOption = False,
    log: Annotated[
        Optional[Path],
        typer.Option(
            dir_okay=False,
            help="File that keeps each finished row; a cut run goes on from it, a finished one deletes it.",
        ),
    ] = None,
    json_file: JsonOption = None,
    subject: SubjectOption = None,
    path: MatrixOption = None,
) -> None:
    """Measure the kernel's bandwidth on this machine's GPUs.

    L2 is cold; the read ceiling and the peers are measured in the same run, on the same GPU. Several GPUs
    of a kind share the shapes. Interrupt it when you like: the same command goes on. The cell is verified by
    the subject's usual shapes, all of them, in 30 rounds or more. Exit code 1 means that a shape is not
    correct or its times are in doubt; with --ncu also bytes or times that Nsight Compute does not confirm
    within 2 %, or an L2 that it finds warm. 3 means that a shape could not be timed: no memory, no end, or a
    GPU that was held back.

    Example: lanecheck bench --record
    """
    if record:
        refuse_to_record(None, subject, path)
    root, loaded = matrix_path(path).parent, read_matrix(path)
    reference = subject or loaded.subject
    kernel = benchable(load(reference))
    every = swept(kernel) if sweep else [(params, inf) for params in kernel.bench_params()]
    shapes = _having(every, only or [])
    tools, here = toolchain(), gpu.matched(gpu.detect(), loaded)
    if plan and not here:
        _print_plans(kernel, shapes, rounds, loaded, arch)
        return
    arch = arch or arch_for(loaded, [*chain.from_iterable(here.values())])
    if arch is None:
        raise CannotRun(f"no GPU of matrix.yaml is on this machine; {_WITHOUT}")
    (chosen,) = chosen_archs(loaded, [arch])
    device = _device(loaded, chosen, here)
    gpus = here[device]
    ((_, library),) = built(loaded, kernel, [arch], tools)
    header = headed(reference, library.path, gpus[0].name, rounds, seed)
    log = log or root / LOGS / f"{header.library_sha256[:12]}-{device}.jsonl"
    if plan:
        earlier = usable(LOG.entries(log, header), shapes)
        there = f", {len(earlier)} of them in {relative(log)}" if earlier else ""
        planned = _planned(kernel, shapes, rounds, loaded.devices[device], earlier, len(gpus))
        out.print(f"{len(shapes)} shapes{there}, {planned}", soft_wrap=True)
        return
    program = ncu.find() if profile else None
    with ExitStack() as stack:
        for each in gpus:
            stack.enter_context(gpu.reserved(gpu.unit(each.uuid), each.name, "bench"))
        with Progressing(out) as listener:
            done = run_bench(
                reference,
                library.path,
                gpus,
                shapes,
                rounds=rounds,
                seed=seed,
                log=log,
                toolchain=tools,
                listener=listener,
            )
        out.print(render(done))
        if program:
            done = _profiled(program, reference, library.path, gpus, done)
    wrong = [row.void for row in done.rows if row.void and row.disproven]
    wrong += [doubt for each in ncu.agreements(done) for doubt in each.doubts]
    status, reason = Status.VERIFIED, f"{len(done.rows)} shapes"
    if wrong:
        status, reason = Status.DISPROVEN, "; ".join(wrong)
    elif lacking := _lacking(done, kernel.bench_params()):
        status, reason = Status.UNVERIFIED, lacking
        out.print(f"benchmarked stays unverified: {lacking}", soft_wrap=True)
    cells = [CellRecord(arch=arch, device=device, job="bench", status=status, reason=reason)]
    ran = [each.uuid for each in gpus]
    recording.save(reference, path, record, json_file, gpus=ran, cells=cells, bench=done)
    entries, ours = LOG.entries(log, header), {shape(params) for params, _ in shapes}
    logged = {shape(entry.row.params) for entry in rows_in(entries)}
    kept = usable(entries, shapes).keys()
    if ours <= kept:
        _finish(log, len(logged - ours))
    elif again := ours & logged - kept:
        shapes_again = f"{len(again)} of {len(ours)} shapes again, with their peers"
        said = f"{relative(log)} stays: the same command tries {shapes_again}"
        out.print(said, markup=False, soft_wrap=True)
    untimed = [row for row in done.rows if row.unsettled]
    if untimed and not wrong:
        raise CannotRun(
            f"{len(untimed)} of {len(done.rows)} shapes could not be timed, {title(untimed[0].params)}: "
            f"{untimed[0].void}; the same command tries them again"
        )
    raise typer.Exit(1 if wrong else 0)


COMMANDS = (bench,)
_LOGGED = "the rows are logged: without --ncu they are kept"
_WITHOUT = "lanecheck compare --device host goes through the timing without one"


def _device(loaded: Matrix, arch: Arch, here: Mapping[str, Sequence[Gpu]]) -> str:
    """The device of the matrix that is timed: the first of this machine's that loads the arch.

    Raises:
        CannotRun: if none does.
    """
    found = [name for name in here if loaded.devices[name].cc in arch.loads_on]
    if not found:
        advice = f"--arch chooses another for {', '.join(here)}" if here else _WITHOUT
        raise CannotRun(
            f"no GPU of matrix.yaml that loads {arch.name} is on this machine; {advice}"
        )
    if found[1:]:
        err.print(
            f"timing {arch.name} on {found[0]}, not on {', '.join(found[1:])}: "
            "CUDA_VISIBLE_DEVICES chooses",
            soft_wrap=True,
        )
    return found[0]


def _finish(log: Path, others: int) -> None:
    """Delete the log of a run that is done, unless a wider one, such as a sweep, can go on from it.

    Args:
        others: rows in it that are not of the run.
    """
    if others > 0:
        said = f"{relative(log)} stays: a run that was cut can go on from its {others} other rows"
        out.print(said, markup=False, soft_wrap=True)
    else:
        log.unlink()


def _profiled(
    program: ncu.Ncu, reference: str, library: Path, gpus: Sequence[Gpu], done: BenchRecord
) -> BenchRecord:
    """The record with what Nsight Compute measures of it, which is printed beside it.

    Raises:
        CannotRun: as :func:`lanecheck.bench.ncu.profiled`; the log of the rows stays.
        Cut: on an interrupt; likewise.
    """
    with Progressing(out) as listener:
        listener.stage("ncu", len(ncu.chosen(done.rows)))
        measured = count(1)
        try:
            held = ncu.profiled(
                program,
                reference,
                library,
                gpus,
                done,
                on_row=lambda row: listener.advance(next(measured), title(row.params)),
            )
        except CannotRun as reason:
            raise CannotRun(f"{reason}; {_LOGGED}") from None
        except KeyboardInterrupt:
            raise Cut(f"interrupted; {_LOGGED}") from None
        doubts = [doubt for each in ncu.agreements(held) for doubt in each.doubts]
        if not held.profiled:
            listener.end("no shape counts, so that none was measured", good=None)
        elif doubts:
            listener.end("; ".join(doubts), good=False)
        else:
            shapes = f"{len(held.profiled)} of {len(held.profiled)} shapes"
            agree = f"bytes and times agree within {100 * ncu.TOLERANCE:g} %"
            listener.end(f"{shapes}: {agree}, and the timed chains are cold")
    if held.profiled:
        out.print(render_profiled(held))
    return held


def _lacking(done: BenchRecord, usual: Sequence[Params]) -> str | None:
    """Why a record verifies no cell, or None if it does.

    Args:
        usual: the shapes that must have been timed.
    """
    timed = [row.params for row in done.rows if row.counted]
    missing = [params for params in usual if dict(params) not in timed]
    if missing:
        least = f"{len(missing)} of the subject's {len(usual)} usual shapes were not timed"
        return f"{least}, such as {title(missing[0])}"
    if done.rounds < ROUNDS:
        return f"{done.rounds} rounds, where it takes {ROUNDS}"
    return None


def _having(shapes: Sequence[Shape], values: Sequence[str]) -> list[Shape]:
    """The shapes that have every ``name=value``, or one of the values in ``name=value,value``.

    Raises:
        BadInput: if a name or a value is none of theirs, or no shape has them all.
    """
    found = [*shapes]
    for each in values:
        name, equals, wanted = each.partition("=")
        has = {str(params.get(name)): None for params, _ in shapes if name in params}
        if not (equals and has):
            axes = ", ".join(dict.fromkeys(name for params, _ in shapes for name in params))
            raise BadInput(f"--only {each}: write name=value, such as m=1, of {axes}")
        asked = [value.strip() for value in wanted.split(",")]
        if unknown := [value for value in asked if value not in has]:
            raise BadInput(f"--only {each}: no shape has {name}={unknown[0]}, but {', '.join(has)}")
        found = [one for one in found if str(one[0].get(name)) in asked]
    if not found:
        raise BadInput(f"no shape has {' and '.join(values)}")
    return found


def _planned(
    subject: BenchSubject,
    shapes: Sequence[Shape],
    rounds: int,
    device: Device,
    done: Mapping[str, RowEntry] | None = None,
    gpus: int = 1,
) -> str:
    """Against whom the shapes race, and about how long those take that are left.

    Args:
        done: what the log has of them.
    """
    entries = done or {}
    left = [each for each in shapes if shape(each[0]) not in entries]
    first = ahead.worthwhile(left)

    def rule(params: Params, patience: float) -> float:
        size, gbps = subject.traffic(params), device.datasheet_gbps or 1
        return cost.seconds(size, rounds, gbps, patience, compiled=bool(first))

    known = [
        (rule(params, patience), entry.seconds)
        for params, patience in shapes
        if (entry := entries.get(shape(params)))
        and entry.seconds
        and entry.asked == Asking(patience).names
    ]
    over = f" on {gpus} GPUs" if gpus > 1 else ""
    by = "by the seconds of those in the log" if known else "by rule of thumb"
    seconds = cost.estimate([rule(*each) for each in left], known) / gpus
    if first:
        seconds += cost.ahead([patience for _, patience in first], os.cpu_count() or 1)
    peers = [len(Asking(patience).peers) for _, patience in shapes]
    number = f"{min(peers)}" + (f" to {max(peers)}" if max(peers) > min(peers) else "")
    return f"each against both ceilings and {number} peers: about {seconds:,.0f} s{over}, {by}"


def _print_plans(
    subject: BenchSubject, shapes: Sequence[Shape], rounds: int, loaded: Matrix, arch: str | None
) -> None:
    """What the shapes would cost on a GPU of each kind that the matrix has, where none is here.

    Raises:
        CannotRun: if it has none that loads the arch.
    """
    chosen = chosen_archs(loaded, [arch] if arch else None)
    loads = {capability for each in chosen for capability in each.loads_on}
    devices = [each for each in loaded.devices.values() if each.gpu and each.cc in loads]
    if not devices:
        raise CannotRun(f"matrix.yaml has no GPU that loads {arch or 'any of its archs'}")
    out.print(f"{len(shapes)} shapes; no GPU is here, and with as many CPUs as here they take")
    for device in devices:
        planned = _planned(subject, shapes, rounds, device)
        out.print(f"on one {device.name}: {planned}", soft_wrap=True)
