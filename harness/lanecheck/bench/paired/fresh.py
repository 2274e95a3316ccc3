"""Starts a comparison's processes: each fresh, with one arm's kernel and this harness."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeVar

from pydantic import BaseModel, ValidationError

import lanecheck
from lanecheck.bench.paired.tasks import Build, Offer, Show, Shown, Task, Time, Timed
from lanecheck.errors import BadInput, CannotRun
from lanecheck.groups import Groups

HARNESS = Path(lanecheck.__file__).parents[1]
LIMITS = {"build": 1800.0, "show": 3600.0, "time": 600.0}
"""Seconds after which a process counts as hung, by task."""
JUDGES = 4
"""Processes that judge at a time; each may need some gigabytes for the reference."""
A = TypeVar("A", bound=BaseModel)


class ProcessLost(CannotRun):
    """A process did not answer; the message is the last that it said."""


@dataclass(frozen=True)
class FreshProcesses:
    """Answers each task in a process that has done nothing else and is gone afterwards.

    Attributes:
        environment: of every process, but for where it finds the kernel and the harness.
    """

    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def build(self, task: Build) -> Offer:
        return self._answer(task, Offer)

    def show(self, tasks: Sequence[Show]) -> Generator[Shown, None, None]:
        """The answers in order; some of the processes run side by side, as nothing is timed."""
        with ThreadPoolExecutor(JUDGES) as pool:
            futures = [pool.submit(self._answer, task, Shown) for task in tasks]
            try:
                for future in futures:
                    yield future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                _PROCESSES.stop()
                raise

    def time(self, task: Time) -> Timed:
        return self._answer(task, Timed)

    def _answer(self, task: Task, kind: type[A]) -> A:
        """
        Raises:
            ProcessLost: if the process dies, hangs, or says anything but an answer.
        """
        path = [task.folder, str(HARNESS), self.environment.get("PYTHONPATH", "")]
        environment = {
            **self.environment,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "PYTHONUNBUFFERED": "1",
        }
        code, answer, said = _run(
            [sys.executable, "-m", "lanecheck.bench.paired.process"],
            task.model_dump_json(),
            environment,
            task.folder,
            LIMITS[task.task],
        )
        if code:
            raise ProcessLost(_cause(code, said))
        try:
            return kind.model_validate_json(answer)
        except ValidationError as error:
            raise ProcessLost(f"no answer: {error.errors()[0]['msg']}") from None


_PROCESSES = Groups()


def _run(
    command: list[str], given: str, environment: Mapping[str, str], cwd: str, limit: float
) -> tuple[int, bytes, str]:
    """Exit status, standard output and error; whatever happens here, the process and its children end.

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
                raise ProcessLost(f"hang: no end within {limit:g} s") from None
        errors.seek(0)
        return process.returncode, answer, errors.read().decode("utf-8", "replace")


def _cause(code: int, said: str) -> str:
    """The last line of a process that ended with an exception; of another, also how it ended."""
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
    if code in (1, BadInput.exit_code, CannotRun.exit_code) and last:
        return last
    end = f"died of {signal.Signals(-code).name}" if code < 0 else f"left with exit code {code}"
    return f"{end}: {last}" if last else end
