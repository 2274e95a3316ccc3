"""A log of work that may be cut: a JSON object a line, written as it comes about; a cut run goes on from it.

The first line is the header: whatever decides that what follows may be used again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from lanecheck.errors import BadInput, CannotRun, LanecheckError

H = TypeVar("H", bound=BaseModel)
E = TypeVar("E", bound=BaseModel)


class Cut(LanecheckError):
    """The user interrupted what is not lost."""

    exit_code = 130


@dataclass
class Journal(Generic[E]):
    """What has been written so far, and where more goes."""

    file: BinaryIO
    entries: list[E] = field(default_factory=list)

    def append(self, entry: E) -> None:
        """Write an entry; once this returns, it stays."""
        self.file.write(entry.model_dump_json().encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())
        self.entries.append(entry)


@dataclass(frozen=True)
class Kind(Generic[H, E]):
    """What a log is of.

    Attributes:
        what: in words, such as ``a comparison``.
        header: its first line's model. entry: of the others.
        differences: of two headers, the names of the fields that keep one from going on with the other.
    """

    what: str
    header: type[H]
    entry: TypeAdapter[E]
    differences: Callable[[H, H], list[str]]

    @contextmanager
    def opened(self, path: Path, header: H) -> Iterator[Journal[E]]:
        """The log that ``header`` describes, new or to be continued.

        A last line that was cut is taken away. While it is open, nobody else can open it.

        Raises:
            BadInput: if the file is another log, or none.
            CannotRun: if another process writes to it, or nobody can.
            Cut: on an interrupt, if there is something to go on from.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+b")
        except OSError as error:
            raise CannotRun(
                f"cannot write to {path} ({error.strerror}): name another --log"
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise CannotRun(f"another process writes to {path}") from None
            file.seek(0)
            whole, _, _ = file.read().rpartition(b"\n")
            journal = Journal(file, self._read(path, whole, header))
            file.truncate(len(whole) + 1 if whole else 0)
            if not whole:
                file.write(header.model_dump_json().encode() + b"\n")
                file.flush()
            try:
                yield journal
            except KeyboardInterrupt:
                if not journal.entries:
                    raise
                raise Cut(f"interrupted; the same command goes on from {path}") from None

    def entries(self, path: Path, header: H) -> list[E]:
        """What is in a log already; nothing if there is none.

        Raises:
            BadInput: if the file is another log, or none.
        """
        if not path.exists():
            return []
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        return self._read(path, whole, header)

    def _read(self, path: Path, text: bytes, header: H) -> list[E]:
        first, *lines = text.splitlines() or [header.model_dump_json().encode()]
        try:
            found = self.header.model_validate_json(first)
            entries = [self.entry.validate_json(line) for line in lines]
        except ValidationError:
            raise BadInput(f"{path} is not the log of {self.what}: name another --log") from None
        if others := self.differences(found, header):
            raise BadInput(
                f"{path} is the log of another run (another {', '.join(others)}): name another --log, "
                "or delete it"
            )
        return entries
