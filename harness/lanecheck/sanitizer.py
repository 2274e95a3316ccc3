"""What AddressSanitizer, UBSan or CUDA say before a process ends: into a file, then into a verdict.

A sanitizer writes its report, some fifty lines, to standard error, where the reports of several workers
would drown the run that they belong to. So a worker's standard error goes to a file of its own. (Their
option ``log_path`` does not do: GCC's UBSan beside ASan ignores it.)
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_FOLDER = "LANECHECK_WORKER_STDERR"
_UNDEFINED = re.compile(r"([^\s/]+:\d+):\d+: runtime error: (.+)")
_ADDRESS = re.compile(r"ERROR: (AddressSanitizer: \S+)")
_CUDA = re.compile(r"^CUDA: \w+: (CUDA_ERROR_\w+)", re.MULTILINE)
_PLACE = re.compile(r"^ +#\d+ .*?([^\s/]+\.(?:cuh?|h|cpp):\d+)", re.MULTILINE)


@contextmanager
def to_files(environment: Mapping[str, str], quiet: bool) -> Iterator[dict[str, str]]:
    """``environment``, completed so that workers are ``quiet`` while this lasts."""
    if not quiet:
        yield dict(environment)
        return
    with tempfile.TemporaryDirectory(prefix="lanecheck-") as folder:
        yield {**environment, _FOLDER: folder}


def begin() -> None:
    """In a worker, before its first trial."""
    if folder := os.environ.get(_FOLDER):
        os.dup2(os.open(Path(folder) / str(os.getpid()), os.O_CREAT | os.O_WRONLY), 2)


def said(process: int | None) -> str | None:
    """What is wrong by the report of a worker that is gone, and where; None if it left none."""
    folder = os.environ.get(_FOLDER)
    if not folder:
        return None
    try:
        return first_error(Path(folder, str(process)).read_text(errors="replace"))
    except OSError:
        return None


def first_error(report: str) -> str | None:
    """The first error of a report: ``gemv.cuh:88: runtime error: left shift of negative value -1``."""
    if found := _UNDEFINED.search(report):
        return f"{found[1]}: runtime error: {found[2]}"
    if found := _ADDRESS.search(report):
        place = _PLACE.search(report, found.end())
        return f"{place[1]}: {found[1]}" if place else found[1]
    if found := _CUDA.search(report):
        return f"{found[1]}, which stays: an access that is not allowed, or the like"
    return None
