"""A process that has imported what every process of a comparison needs, and forks one for each task.

Starting Python and importing torch takes longer than what is timed. A child begins after that, and all that
a time depends on is its own: the CUDA context, for the parent never begins one; memory and streams; its
folder, its ``sys.path``, and its import of the arm's kernel, of which the parent knows nothing.

What the children of one parent have in common, where processes that were started alone would each draw
anew: the addresses at which Python, numpy and torch are loaded, the seed of string hashes, numpy's global
generator, and whatever else an import leaves in memory. Base and head have it in common, too, so that it
favours neither; but a comparison sees one such draw for each parent, and not one for each process.

``python -m lanecheck.bench.paired.parent DEVICE`` is the parent, and :class:`Parent` is how it is asked. Both
talk over the parent's standard input, a socket: first whether it forks, then tasks, each of which it
acknowledges before it forks, and answers, each of them a line of JSON. It has one child at a time, and its
process group is it and that child. Both end when whoever asks has gone, and the child when the parent has.

``… parent alone PID`` does one task, of standard input, and ends with the process PID that started it.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

import lanecheck
from lanecheck.groups import Groups, end_with

HARNESS = Path(lanecheck.__file__).parents[1]
Ended = tuple[int, bytes, str]
"""Exit status, or less than 0 the signal; standard output; standard error."""


class CannotFork(Exception):
    """Something runs or is open in the parent that its children could not share."""


class ParentDied(Exception):
    """It ended, and with it the child that it had.

    Args:
        code: its exit status. said: its standard error.
    """

    def __init__(self, code: int, said: str) -> None:
        super().__init__(code, said)
        self.code, self.said = code, said


class NotTaken(ParentDied):
    """It ended before it took the task, of which nothing was done."""


class Parent:
    """One parent, in a session of its own, which an interrupt of this process does not reach.

    Args:
        environment: of the parent and of its children.
        device: whose children's imports it has made.
        groups: which end it if they are stopped.
        limit: seconds that its imports may take.

    Raises:
        TimeoutError: if they take longer. ParentDied: if it ends instead. CannotFork: if it cannot.
    """

    def __init__(
        self, environment: Mapping[str, str], device: str, groups: Groups, limit: float
    ) -> None:
        with ExitStack() as stack:
            self._errors = stack.enter_context(TemporaryFile())
            self._channel, theirs = socket.socketpair()
            stack.enter_context(self._channel)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__, device],
                    env=dict(environment),
                    cwd=HARNESS,
                    stdin=theirs.fileno(),
                    stdout=self._errors,
                    stderr=self._errors,
                    start_new_session=True,
                )
            stack.enter_context(groups.watched(self._process))
            self._lines = stack.enter_context(self._channel.makefile("rb"))
            self._channel.settimeout(limit)
            if not json.loads(self._line()):
                raise CannotFork
            self._stack = stack.pop_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, task: str, limit: float) -> Ended:
        """Have a child do a task, a line of JSON. After an error, :meth:`end` it.

        Raises:
            TimeoutError: if the child does not end within ``limit`` seconds. NotTaken: if the parent had
                ended. ParentDied: if it ends.
        """
        self._channel.settimeout(limit)
        with suppress(BrokenPipeError, ConnectionResetError):
            self._channel.sendall(task.encode() + b"\n")
        try:
            self._line()
        except ParentDied as death:
            raise NotTaken(death.code, death.said) from None
        code, answer, said = json.loads(self._line())
        return code, answer.encode(), said

    def end(self) -> None:
        """End it, and the child that it has."""
        self._stack.close()

    def _line(self) -> bytes:
        try:
            line = self._lines.readline()
        except ConnectionResetError:
            line = b""
        if not line.endswith(b"\n"):
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # who has ended already, but for a child
            self._process.wait()
            self._errors.seek(0)
            raise ParentDied(self._process.returncode, _text(self._errors))
        return line


def main() -> None:
    """In the parent, until nobody asks any more; in each child, until its task is done."""
    from lanecheck.bench.paired import process

    if sys.argv[1] == "alone":
        end_with(int(sys.argv[2]))
        return process.respond(sys.stdin.read())
    if sys.argv[1] == "cuda":
        with suppress(ImportError):  # the child says it
            import torch  # noqa: F401
    gc.freeze()  # what was imported stays: no child need look through it
    _say(_can_fork())
    for line in iter(sys.stdin.buffer.readline, b""):
        with TemporaryFile(buffering=0) as answer, TemporaryFile(buffering=0) as errors:
            _say(True)
            parent, child = os.getpid(), os.fork()
            if not child:
                end_with(parent)
                _begin(json.loads(line)["folder"], answer.fileno(), errors.fileno())
                process.respond(line.decode())
                return
            status = _ended(child)
            _say([os.waitstatus_to_exitcode(status), _text(answer), _text(errors)])


def _can_fork() -> bool:
    """Whether no threads run and no GPU is open, as far as this system tells.

    A fork is tried first: libraries that mind forks, such as numpy's OpenBLAS, end their native threads
    before one, and start them anew when there is work. Any other thread is one that a child would miss.
    """
    files, threads = Path("/proc/self/fd"), Path("/proc/self/task")
    if threading.active_count() > 1 or not files.is_dir():
        return False
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    if len([*threads.iterdir()]) > 1:
        return False
    opened = [os.readlink(file) for file in files.iterdir() if file.is_symlink()]
    return not any(name.startswith("/dev/nvidia") for name in opened)


def _ended(child: int) -> int:
    """The status of a child that has ended; if whoever asked goes before that, this group ends now.

    Not by :func:`.groups.end_with`: the thread that started this process may end long before its process.
    """
    try:
        ending = os.pidfd_open(child)
    except OSError:  # a Linux before 5.3
        return os.waitpid(child, 0)[1]
    try:
        waiting = select.poll()
        waiting.register(ending, select.POLLIN)
        waiting.register(0, 0)  # of the channel only that it was hung up
        while ending not in dict(waiting.poll()):
            os.killpg(0, signal.SIGKILL)
    finally:
        os.close(ending)
    return os.waitpid(child, 0)[1]


def _begin(folder: str, answer: int, errors: int) -> None:
    """Make a child what ``python -m`` in ``folder`` would be, with that folder first in PYTHONPATH."""
    with open(os.devnull, "rb") as nothing:
        for ours, standard in ((nothing.fileno(), 0), (answer, 1), (errors, 2)):
            os.dup2(ours, standard)
    os.chdir(folder)
    sys.path.insert(0, folder)
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, path)))


def _say(something: object) -> None:
    with open(0, "wb", closefd=False) as channel:
        channel.write(json.dumps(something).encode() + b"\n")


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


if __name__ == "__main__":
    main()
