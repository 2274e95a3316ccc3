"""Runs trials, each in a process of its own kind; a crash, a hang and a bad exit are verdicts.

A trial holds a batch of cases, because a process costs more than a case. When a batch dies, its cases
run again one by one, and the one that kills even a process of its own is named. A crash for which no
single case is to blame is a failure too.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, TimeoutError, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing import resource_tracker
from typing import Any, Protocol

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from lanecheck import sanitizer, simt
from lanecheck import trial as trials
from lanecheck.errors import CannotRun
from lanecheck.gpu import choose
from lanecheck.memory import STICKY
from lanecheck.toolchain import find_cxx
from lanecheck.trial import Failure, Result, Target, Trial
from lanecheck.verdict import Outcome, Verdict

ORACLE = "process"


class Executor(Protocol):
    """Plain descriptions in, plain results out, in the order in which they end."""

    def run(self, target: Target, work: Iterable[Trial]) -> Iterator[Result]:
        """Run trials, all of ``target``; ``work`` is drawn on only as workers become free."""


@dataclass
class _Crew:
    """Workers of one kind, a pool a GPU, and what keeps them.

    Attributes:
        sound: whether all of them live, and none ever died: what ended one may yet end another.
    """

    kind: tuple[object, ...]
    pools: list[ProcessPool]
    stack: ExitStack
    sound: bool = True


class LocalExecutor:
    """One worker a core of this machine, or one for each of the target's GPUs.

    As a context manager it keeps its workers from one run to the next of the same kind, since it takes a
    second or two to start them; not where one of them died, nor under a sanitizer.

    Args:
        workers: processes; for GPUs, that many for each.
        time_limit: seconds a trial may take before it counts as a hang.
        case_limit: seconds a single case may take when it runs alone.
    """

    def __init__(
        self, workers: int | None = None, time_limit: float = 120.0, case_limit: float = 20.0
    ) -> None:
        self.workers = workers
        self.time_limit = time_limit
        self.case_limit = case_limit
        self._keeps = False
        self._crew: _Crew | None = None

    def __enter__(self) -> LocalExecutor:
        self._keeps = True
        return self

    def __exit__(self, *error: Any) -> None:
        self._keeps = False
        self._dismiss(*error)

    def run(self, target: Target, work: Iterable[Trial]) -> Iterator[Result]:
        workers = self.workers or (1 if target.device == "cuda" else os.cpu_count() or 1)
        queue = iter(work)
        if not self._keeps:
            first = list(islice(queue, workers * max(1, len(target.gpus))))
            queue, workers = chain(first, queue), min(workers, max(1, len(first)))
        needs = _needs(target)
        crew = self._hired(target, workers, needs)
        try:
            yield from self._results(crew.pools, workers, queue)
        except BaseException:
            self._dismiss(*sys.exc_info())
            raise
        if needs or not self._keeps or not crew.sound:
            self._dismiss()

    def _hired(self, target: Target, workers: int, needs: Mapping[str, str]) -> _Crew:
        """The workers of a run: those that are kept if they are of the kind it needs, or new ones."""
        quiet = target.device == "cuda" or "ASAN_OPTIONS" in needs
        kind = workers, target.gpus, tuple(sorted(needs.items())), quiet
        kept = self._crew
        if kept and kept.kind == kind and all(pool.active for pool in kept.pools):
            return kept
        self._dismiss()
        with ExitStack() as stack:
            environment = stack.enter_context(sanitizer.to_files(needs, quiet))
            stack.enter_context(
                _environment(environment)
            )  # of whoever takes a dead one's place, too
            pools = [stack.enter_context(pool_of(workers, gpu)) for gpu in target.gpus or ("",)]
            self._crew = _Crew(kind, pools, stack.pop_all())
        return self._crew

    def _dismiss(self, *error: Any) -> None:
        """End the workers that are kept; stop them at once in case of an error."""
        crew, self._crew = self._crew, None
        if crew:
            crew.stack.__exit__(*(error or (None, None, None)))

    def _results(
        self, pools: list[ProcessPool], workers: int, queue: Iterator[Trial]
    ) -> Iterator[Result]:
        running: dict[ProcessFuture, tuple[ProcessPool, Trial]] = {}
        while True:
            held = Counter(pool for pool, _ in running.values())
            for pool in pools:
                while held[pool] < 2 * workers and (trial := next(queue, None)) is not None:
                    running[self._schedule(pool, trial)] = pool, trial
                    held[pool] += 1
            if not running:
                return
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                pool, trial = running.pop(future)
                yield from self._outcome(pool, future, trial)

    def _schedule(self, pool: ProcessPool, trial: Trial) -> ProcessFuture:
        alone = len(trial.lines) == 1
        limit = self.case_limit if alone else self.time_limit
        with deaf():
            return pool.schedule(trials.run, (trial,), timeout=limit)

    def _outcome(self, pool: ProcessPool, future: ProcessFuture, trial: Trial) -> Iterator[Result]:
        try:
            yield future.result()
        except (TimeoutError, ProcessExpired) as death:
            if self._crew:
                self._crew.sound = False
            if len(trial.lines) == 1:
                yield from self._alone(trial, death)
                return
            singles = [(self._schedule(pool, single), single) for single in trial.singly()]
            named = False
            for future, single in singles:
                for result in self._outcome(pool, future, single):
                    named |= any(failure.verdict.oracle == ORACLE for failure in result.failures)
                    yield result
            if not named:
                yield _not_alone(singles[0][1], f"{self._cause(death)} in a batch from here on")

    def _alone(self, trial: Trial, death: TimeoutError | ProcessExpired) -> Iterator[Result]:
        """Of a case that died in a worker: what it does in a process where nothing ran before it."""
        if not isinstance(death, ProcessExpired) or death.exitcode == STICKY:
            yield _died(trial, self._cause(death))  # of which no other case is to blame
            return
        with pool_of(1, next(iter(trial.target.gpus), "")) as fresh:
            try:
                yield self._schedule(fresh, trial).result()
            except (TimeoutError, ProcessExpired) as again:
                if getattr(again, "exitcode", None) == -signal.SIGKILL:
                    raise CannotRun(
                        f"{trial.lines[0]}: the system killed its process, as it does where memory is "
                        "short: give it more, or run fewer workers"
                    ) from None
                yield _died(trial, self._cause(again))
            else:
                yield _not_alone(trial, f"{self._cause(death)} after other cases")

    def _cause(self, death: TimeoutError | ProcessExpired) -> str:
        if not isinstance(death, ProcessExpired):
            return f"hang: no end within {self.case_limit:g} s"
        if said := sanitizer.said(death.pid):
            return f"crash: {said}"
        code = death.exitcode
        if code == STICKY:
            return "crash: the GPU reported an error that stays, such as an illegal address"
        if code is not None and code < 0:
            return f"crash: the process died of {signal.Signals(-code).name}"
        return f"crash: the process left with exit code {code}"


@contextmanager
def pool_of(workers: int, gpu: str = "") -> Iterator[ProcessPool]:
    """Workers, all of one GPU, that are stopped, whatever they do, once nobody waits for their results."""
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPool(workers, initializer=_begin, initargs=(gpu,), context=spawn)
    try:
        yield pool
        pool.close()
    except BaseException:
        pool.stop()
        raise
    finally:
        pool.join()


def _begin(gpu: str) -> None:
    """In a worker, before its first trial."""
    sanitizer.begin()
    choose((gpu,) if gpu else ())


def _died(trial: Trial, evidence: str) -> Result:
    return Result(cases=1, launches=1, failures=[_failure(trial, evidence)])


def _not_alone(trial: Trial, cause: str) -> Result:
    """A crash beside the results, which count the case already."""
    evidence = f"{cause}, but not alone: an earlier case damages the process"
    return Result(failures=[_failure(trial, evidence)])


def _failure(trial: Trial, evidence: str) -> Failure:
    verdict = Verdict(ORACLE, Outcome.FAIL, evidence)
    return Failure(trial.lines[0], ",".join(trial.target.capabilities), verdict)


def _needs(target: Target) -> Mapping[str, str]:
    variant = simt.VARIANTS.get(target.variant)
    return variant.environment(str(find_cxx(os.environ))) if variant and target.library else {}


@contextmanager
def deaf() -> Iterator[None]:
    """Threads and workers that start in here never hear of an interrupt, which this process handles: it
    stops them, and none has to be far enough to handle it well. It waits until all have started, too: a
    thread of a library's may take the signal, and Python then raises in the main thread, whatever that
    blocks. So does a SIGTERM, where this process makes an interrupt of it; workers do hear of that."""
    resource_tracker.ensure_running()  # whose start would end the deafness
    heard: list[int] = []
    main = threading.current_thread() is threading.main_thread()
    handlers = {
        each: signal.signal(each, lambda number, _: heard.append(number))
        for each in (signal.SIGINT, signal.SIGTERM)
        if main and callable(signal.getsignal(each))
    }
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if heard:
            signal.raise_signal(heard[0])


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Spawned workers inherit the environment of the moment they start, restarts included."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
