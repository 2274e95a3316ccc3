"""Process groups: of children in sessions of their own, which an interrupt of this process does not reach."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from weakref import WeakSet

PR_SET_PDEATHSIG = 1
"""Of Linux's prctl: the signal that a process gets when the thread that started it ends."""


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that began a session, and all of its group, unless it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def end_with(starter: int) -> None:
    """Have this process killed when the thread that started it ends, as it does if its process is killed.

    Args:
        starter: the process that did; if it has gone already, this one goes too.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != starter:
            os.kill(os.getpid(), signal.SIGKILL)


class Groups:
    """Those that some threads wait for, and that another may have to end."""

    def __init__(self) -> None:
        self._running: set[int] = set()
        self._stopped: WeakSet[threading.Thread] = WeakSet()

    @contextmanager
    def watched(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """While this lasts, :meth:`stop` ends the process; afterwards it has ended, whatever happened."""
        self._running.add(process.pid)
        try:
            if threading.current_thread() in self._stopped:  # since it began to start the process
                end(process)
            yield
        finally:
            end(process)
            self._running.discard(process.pid)

    def stop(self) -> None:
        """End what other threads wait for, and what they start yet, so that an interrupted run ends now."""
        self._stopped.update(set(threading.enumerate()) - {threading.current_thread()})
        for group in tuple(self._running):
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
