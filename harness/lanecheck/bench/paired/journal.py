"""The log of a comparison: what was shown correct, the processes that count, and those that were lost."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lanecheck.bench.journal import Kind
from lanecheck.bench.paired.pairing import Side
from lanecheck.bench.paired.record import (
    ENTRY,
    Entry,
    Header,
    ProcessRecord,
    ShownRecord,
    only,
    unlike,
)


def outputs(entries: Iterable[Entry]) -> dict[tuple[Side, str], str]:
    """Of what was shown correct, by arm and config."""
    return {(each.arm, each.config): each.output for each in only(ShownRecord, entries)}


def processes_in(path: Path, header: Header) -> int:
    """How many processes of a comparison are in its log already.

    Raises:
        BadInput: if the file is the log of another comparison, or none.
    """
    return len(only(ProcessRecord, LOG.entries(path, header)))


def _differences(first: Header, second: Header) -> list[str]:
    """The fields that tell two comparisons apart; how an arm was named does not."""
    names = []
    for name in Header.model_fields:
        mine, theirs = getattr(first, name), getattr(second, name)
        if name in ("base", "head"):
            mine, theirs = ((arm.code, arm.configs) for arm in (mine, theirs))
        if name == "environment":
            names += unlike(mine, theirs)
        elif mine != theirs:
            names.append(name)
    return names


LOG: Kind[Header, Entry] = Kind("a comparison", Header, ENTRY, _differences)
