"""Process groups: of children in sessions of their own, which an interrupt of this process does not reach."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that began a session, and all of its group, unless it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Groups:
    """Those that some threads wait for, and that another may have to end."""

    def __init__(self) -> None:
        self._running: set[int] = set()

    @contextmanager
    def watched(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """While this lasts, :meth:`stop` ends the process; afterwards it has ended, whatever happened."""
        self._running.add(process.pid)
        try:
            yield
        finally:
            end(process)
            self._running.discard(process.pid)

    def stop(self) -> None:
        """End what is waited for, so that an interrupted run ends now."""
        for group in tuple(self._running):
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
