"""One run: every shape of a subject, on one GPU or spread over several of a kind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, TimeoutError, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from lanecheck.bench import cost
from lanecheck.bench.ahead import compile_ahead
from lanecheck.bench.asking import Asking, Trust
from lanecheck.bench.ceiling import build
from lanecheck.bench.judgement import Judgement
from lanecheck.bench.log import (
    LOG,
    Loss,
    RowEntry,
    headed,
    lasting,
    lost,
    rows_in,
    shape,
    usable,
)
from lanecheck.bench.machine import Environment
from lanecheck.bench.model import BenchRecord, Row, Traffic
from lanecheck.bench.plan import FORMULA, BenchSubject, Shape, benchable, case
from lanecheck.bench.worker import Bench, benchmark, environment
from lanecheck.errors import BadInput, CannotRun
from lanecheck.executor import ORACLE, deaf, pool_of
from lanecheck.gpu import Gpu
from lanecheck.listener import Listener
from lanecheck.memory import STICKY
from lanecheck.subject import Params, load, title
from lanecheck.toolchain import Toolchain
from lanecheck.verdict import Outcome

ROUNDS = 30
STARTING = 900.0
"""Seconds that a process has to load torch, perhaps from a disk on the network, and to find its GPU."""


def run(
    reference: str,
    library: Path,
    gpus: Sequence[Gpu],
    shapes: Sequence[Shape],
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    log: Path,
    toolchain: Toolchain | None = None,
    listener: Listener,
) -> BenchRecord:
    """Benchmark a subject.

    Args:
        reference: the subject, ``module:ATTRIBUTE``.
        library: its library, built for these GPUs.
        gpus: of one kind, :func:`~lanecheck.gpu.reserved` by the caller; each takes the next shape, and all
            contenders of a shape run on the same one.
        rounds: samples of every contender.
        seed: of values, and of the order of contenders.
        log: of every row that lasts, and of every peer that is not asked any more; a run that was cut goes on
            without those, and tries the rows again for which another one was not asked.
        toolchain: compiles the read ceiling.

    Raises:
        CannotRun: if torch sees no CUDA device here, or the GPUs differ.
        BadInput: if the subject does not say what to time, or the log is of another run.
    """
    listener.stage("start")
    bench = Bench(reference, library, build(gpus[0].cc, toolchain or Toolchain()), rounds, seed)
    header = headed(reference, library, gpus[0].name, rounds, seed)
    with LOG.opened(log, header) as journal, _workers(gpus) as pools:
        here = _environment(pools)
        if any(entry.environment != here for entry in rows_in(journal.entries)):
            raise BadInput(f"{log} is of another driver, torch or GPU: name another --log")
        rows = {name: entry.row for name, entry in usable(journal.entries, shapes).items()}
        left = [each for each in shapes if shape(each[0]) not in rows]
        compile_ahead(reference, gpus, here.memory_bytes, left, seed, listener)
        listener.stage("bench", len(left))
        trust = Trust(
            lost(journal.entries),
            on_loss=lambda peer, reason: journal.append(Loss(peer=peer, reason=reason)),
        )
        for entry in _answers(pools, bench, left, here, trust, listener):
            if lasting(entry.row):
                journal.append(entry)
            rows[shape(entry.row.params)] = entry.row
    record = BenchRecord(
        subject=header.subject,
        library_sha256=header.library_sha256,
        seed=seed,
        rounds=rounds,
        environment=here,
        rows=tuple(rows[shape(params)] for params, _ in shapes),
        benchmark=header.benchmark,
        versions=header.versions,
    )
    good = False if any(row.disproven for row in record.rows) else record.valid or None
    listener.end(f"{len(record.rows)} shapes on {here.gpu}", good)
    return record


@contextmanager
def _workers(gpus: Sequence[Gpu]) -> Iterator[list[ProcessPool]]:
    """A process for each GPU, and another one whenever it dies."""
    with ExitStack() as stack:
        yield [stack.enter_context(pool_of(1, gpu.uuid)) for gpu in gpus]


def _ask(
    pool: ProcessPool,
    question: Callable[..., object],
    *given: object,
    limit: float,
) -> ProcessFuture:
    with deaf():
        return pool.schedule(question, given, timeout=limit)


def _environment(pools: Sequence[ProcessPool]) -> Environment:
    """What all GPUs have in common, which is everything.

    Raises:
        CannotRun: if they differ, or do not answer.
    """
    asked = [_ask(pool, environment, limit=STARTING) for pool in pools]
    try:
        first, *others = [future.result() for future in asked]
    except TimeoutError:
        raise CannotRun(f"torch did not find the GPU within {STARTING:g} s") from None
    for other in others:
        if differing := [
            f"{name} {getattr(first, name)} and {getattr(other, name)}"
            for name in Environment.model_fields
            if getattr(first, name) != getattr(other, name)
        ]:
            raise CannotRun(
                f"GPUs that differ cannot share a table: {', '.join(differing)}; "
                "CUDA_VISIBLE_DEVICES chooses among them"
            )
    found: Environment = first
    return found


@dataclass(frozen=True)
class _Asked:
    """A shape that a GPU's process works at, and the seconds that it has."""

    pool: ProcessPool
    params: Params
    asking: Asking
    limit: float


def _answers(
    pools: Sequence[ProcessPool],
    bench: Bench,
    shapes: Sequence[Shape],
    here: Environment,
    trust: Trust,
    listener: Listener,
) -> Iterator[RowEntry]:
    """Rows as they are done; a GPU takes the next shape when it is free.

    What ends a process, or cannot be done in it, may be a peer's fault: then the shape is tried once more, in
    a fresh process and without the one that was at work, or if none was, without any.
    """
    queue, subject, done = iter(shapes), benchable(load(bench.reference)), 0
    running: dict[ProcessFuture, _Asked] = {}

    def ask(asked: _Asked) -> None:
        asked.asking.note.write_text("")
        given = bench, asked.params, asked.asking
        running[_ask(asked.pool, benchmark, *given, limit=asked.limit)] = asked

    def feed(pool: ProcessPool, note: Path) -> None:
        if following := next(queue, None):
            params, patience = following
            limit = cost.limit(subject.traffic(params), bench.rounds, patience)
            ask(_Asked(pool, params, trust.asking(patience, note), limit))

    with TemporaryDirectory() as folder:
        for index, pool in enumerate(pools):
            feed(pool, Path(folder, str(index)))
        while running:
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                asked = running.pop(future)
                name = title(asked.params)
                try:
                    answer = future.result()
                except BadInput:
                    raise
                except Exception as failure:
                    if not isinstance(failure, (ProcessExpired, TimeoutError)):
                        # A device that met an error meets it again and again.
                        _ask(asked.pool, os._exit, STICKY, limit=STARTING)
                    evidence = _evidence(failure, asked.limit)
                    hung = isinstance(failure, TimeoutError)
                    if fewer := trust.after(asked.asking, evidence, hung):
                        refused = asked.asking.refused
                        gone = ", ".join(each for each in fewer.refused if each not in refused)
                        ask(replace(asked, asking=fewer))
                        listener.advance(done, f"{name} again without {gone}: {evidence}")
                        continue
                    answer = _failed(subject, bench.seed, asked.params, here, failure, evidence)
                feed(asked.pool, asked.asking.note)
                yield answer
                done += 1
                listener.advance(done, name)  # once it is in the log


def _failed(
    subject: BenchSubject,
    seed: int,
    params: Params,
    here: Environment,
    failure: Exception,
    evidence: str,
) -> RowEntry:
    """A shape that cannot be timed even without peers: that is its verdict, unless it may be the machine's
    fault."""
    traffic = Traffic(formula=FORMULA, bytes=subject.traffic(params))
    if isinstance(failure, TimeoutError) or _no_memory(failure):
        row = Row.of(dict(params), traffic, [], None, evidence)
    else:
        line = case(subject, params, "normal", seed).line
        died = Judgement(line=line, oracle=ORACLE, outcome=Outcome.FAIL, evidence=evidence)
        row = Row.of(dict(params), traffic, [died], None)
    return RowEntry(seconds=0.0, environment=here, row=row)


def _evidence(failure: Exception, limit: float) -> str:
    """What happened, in one line.

    Args:
        limit: seconds that there were.
    """
    if isinstance(failure, TimeoutError):
        return f"no end within {limit:.0f} s"
    if isinstance(failure, ProcessExpired):
        killed = " (killed from outside, as where memory is short)" if _no_memory(failure) else ""
        return f"the process ended with {failure.exitcode}{killed}"
    return " ".join(str(failure).split())[:300] or type(failure).__name__


def _no_memory(failure: Exception) -> bool:
    """Whether the machine lacks memory: the GPU's, or the host's, where the system kills the process."""
    if isinstance(failure, ProcessExpired):
        return bool(failure.exitcode == -signal.SIGKILL)
    return isinstance(failure, MemoryError) or "out of memory" in str(failure).lower()
