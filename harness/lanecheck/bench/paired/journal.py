"""The log of a comparison: a JSON object a line, written as it comes about, so that a cut run can go on."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from lanecheck.bench.paired.pairing import Side
from lanecheck.bench.paired.record import (
    ENTRY,
    Entry,
    Header,
    LostRecord,
    ProcessRecord,
    ShownRecord,
)
from lanecheck.errors import BadInput, CannotRun


@dataclass
class Journal:
    """What has been written so far, and where more goes."""

    file: BinaryIO
    entries: list[Entry] = field(default_factory=list)

    @property
    def processes(self) -> list[ProcessRecord]:
        return [each for each in self.entries if isinstance(each, ProcessRecord)]

    @property
    def lost(self) -> list[LostRecord]:
        return [each for each in self.entries if isinstance(each, LostRecord)]

    @property
    def outputs(self) -> dict[tuple[Side, str], str]:
        """Of what was shown correct, by arm and config."""
        shown = (each for each in self.entries if isinstance(each, ShownRecord))
        return {(each.arm, each.config): each.output for each in shown}

    def append(self, entry: Entry) -> None:
        """Write an entry; once this returns, it stays."""
        self.file.write(entry.model_dump_json().encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())
        self.entries.append(entry)


@contextmanager
def opened(path: Path, header: Header) -> Iterator[Journal]:
    """The log of the comparison that ``header`` describes, new or to be continued.

    A last line that was cut is taken away. While it is open, nobody else can open it.

    Raises:
        BadInput: if the file is the log of another comparison, or none.
        CannotRun: if another process writes to it, or nobody can.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    except OSError as error:
        raise CannotRun(f"cannot write to {path} ({error.strerror}): name another --log") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CannotRun(f"another comparison writes to {path}") from None
        file.seek(0)
        whole, _, _ = file.read().rpartition(b"\n")
        journal = Journal(file, _read(path, whole, header))
        file.truncate(len(whole) + 1 if whole else 0)
        if not whole:
            file.write(header.model_dump_json().encode() + b"\n")
            file.flush()
        yield journal


def processes_in(path: Path, header: Header) -> int:
    """How many processes of a comparison are in its log already.

    Raises:
        BadInput: if the file is the log of another comparison, or none.
    """
    if not path.exists():
        return 0
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return sum(isinstance(each, ProcessRecord) for each in _read(path, whole, header))


def _read(path: Path, text: bytes, header: Header) -> list[Entry]:
    """The entries below the header."""
    try:
        first, *entries = [ENTRY.validate_json(line) for line in text.splitlines()] or [header]
    except ValidationError:
        raise BadInput(f"{path} is not the log of a comparison: name another --log") from None
    if not isinstance(first, Header):
        raise BadInput(f"{path} has no header: name another --log, or delete it")
    if others := [*_differences(first, header)]:
        raise BadInput(
            f"{path} is the log of another comparison (another {', '.join(others)}): name another "
            "--log, or delete it"
        )
    return entries


def _differences(first: Header, second: Header) -> Iterator[str]:
    """The fields that tell two comparisons apart; how an arm was named does not."""
    for name in Header.model_fields:
        mine, theirs = getattr(first, name), getattr(second, name)
        if name in ("base", "head"):
            mine, theirs = ((arm.code, arm.configs) for arm in (mine, theirs))
        if mine != theirs:
            yield name
