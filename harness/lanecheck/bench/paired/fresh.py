"""Starts a comparison's processes: each fresh, with one arm's kernel and this harness.

Those that show and time are children of a :mod:`.parent`, which has imported what takes long; those that
build are started alone, and so are all where nothing can be forked.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from lanecheck.bench.paired.parent import HARNESS, CannotFork, Ended, NotTaken, Parent, ParentDied
from lanecheck.bench.paired.tasks import Build, Offer, Show, Shown, Task, Time, Timed
from lanecheck.errors import BadInput, CannotRun
from lanecheck.groups import Groups

LIMITS = {"build": 1800.0, "show": 3600.0, "time": 600.0}
"""Seconds after which a process counts as hung, by task."""
JUDGES = 4
"""Processes that judge at a time; each may need some gigabytes for the reference."""
A = TypeVar("A", bound=BaseModel)


class ProcessLost(CannotRun):
    """A process did not answer; the message is the last that it said.

    Args:
        mistake: whether it ended for what the user gave.
    """

    def __init__(self, message: str, mistake: bool = False) -> None:
        super().__init__(message)
        self.mistake = mistake


class FreshProcesses:
    """Answers each task in a process that has done nothing else and is gone afterwards.

    As a context manager it ends the parents that it keeps from one task to the next.

    Args:
        environment: of every process, but for where it finds the kernel and the harness.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        given = os.environ if environment is None else environment
        path = [str(HARNESS), given.get("PYTHONPATH", "")]
        self._environment = {
            **given,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "PYTHONUNBUFFERED": "1",
        }
        self._forks = True
        self._idle: list[tuple[str, Parent]] = []

    def __enter__(self) -> FreshProcesses:
        return self

    def __exit__(self, *error: object) -> None:
        self._keep(0)

    def build(self, task: Build) -> Offer:
        return self._answer(task, Offer)

    def show(self, tasks: Sequence[Show]) -> Generator[Shown, None, None]:
        """The answers in order; some of the processes run side by side, as nothing is timed."""
        kept = 1
        try:
            with ThreadPoolExecutor(JUDGES) as pool:
                futures = [pool.submit(self._answer, task, Shown) for task in tasks]
                try:
                    for future in futures:
                        yield future.result()
                except BaseException:
                    if not all(future.done() for future in futures):
                        pool.shutdown(wait=False, cancel_futures=True)
                        _PROCESSES.stop()
                        kept = 0
                    raise
        finally:
            self._keep(kept)

    def time(self, task: Time) -> Timed:
        return self._answer(task, Timed)

    def _answer(self, task: Task, kind: type[A]) -> A:
        """
        Raises:
            ProcessLost: if the process dies, hangs, or says anything but an answer.
        """
        ended = None if isinstance(task, Build) else self._forked(task)
        code, answer, said = ended or self._alone(task)
        if code:
            raise ProcessLost(_cause(code, said), mistake=code == BadInput.exit_code)
        try:
            return kind.model_validate_json(answer)
        except ValidationError as error:
            raise ProcessLost(f"no answer: {error.errors()[0]['msg']}") from None

    def _alone(self, task: Task) -> Ended:
        """Do a task in a process that is started for it."""
        path = [task.folder, self._environment["PYTHONPATH"]]
        return _run(
            [sys.executable, "-m", Parent.__module__, "alone", str(os.getpid())],
            task.model_dump_json(),
            {**self._environment, "PYTHONPATH": os.pathsep.join(path)},
            task.folder,
            LIMITS[task.task],
        )

    def _forked(self, task: Show | Time) -> Ended | None:
        """Do a task in a child of a parent; None where none can be forked."""
        limit = LIMITS[task.task]
        try:
            for _ in range(JUDGES):  # as many idle ones as may have died meanwhile
                with suppress(NotTaken), self._parent(task.device, limit) as parent:
                    return parent.ask(task.model_dump_json(), limit)
            with self._parent(task.device, limit) as parent:
                return parent.ask(task.model_dump_json(), limit)
        except CannotFork:
            self._forks = False
            return None
        except ParentDied as death:
            return death.code, b"", death.said
        except TimeoutError:
            raise _hang(limit) from None

    @contextmanager
    def _parent(self, device: str, limit: float) -> Iterator[Parent]:
        """One that no other thread asks meanwhile; it is kept, unless something goes wrong."""
        if not self._forks:
            raise CannotFork
        while True:
            try:
                of, parent = self._idle.pop()
            except IndexError:
                parent = Parent(self._environment, device, _PROCESSES, limit)
                break
            if of == device and parent.alive:
                break
            parent.end()
        try:
            yield parent
        except BaseException:
            parent.end()
            raise
        self._idle.append((device, parent))

    def _keep(self, most: int) -> None:
        """End all idle parents but so many."""
        while len(self._idle) > most:
            _, parent = self._idle.pop()
            parent.end()


_PROCESSES = Groups()


def _run(
    command: list[str], given: str, environment: Mapping[str, str], cwd: str, limit: float
) -> Ended:
    """How it ends; whatever happens here, the process and its children end.

    In a session of its own, so that an interrupt reaches this process alone.
    """
    with TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        with _PROCESSES.watched(process):
            try:
                answer, _ = process.communicate(given.encode(), timeout=limit)
            except subprocess.TimeoutExpired:
                raise _hang(limit) from None
        errors.seek(0)
        return process.returncode, answer, errors.read().decode("utf-8", "replace")


def _hang(limit: float) -> ProcessLost:
    return ProcessLost(f"hang: no end within {limit:g} s")


def _cause(code: int, said: str) -> str:
    """The last line of a process that ended with an exception; of another, also how it ended."""
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
    if code in (1, BadInput.exit_code, CannotRun.exit_code) and last:
        return last
    end = f"died of {signal.Signals(-code).name}" if code < 0 else f"left with exit code {code}"
    return f"{end}: {last}" if last else end
