"""The log of a benchmark: which rows stay in it, and which run may use them again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Union

from pydantic import TypeAdapter

from lanecheck.bench import peers
from lanecheck.bench.asking import Asking
from lanecheck.bench.journal import Kind
from lanecheck.bench.machine import Environment
from lanecheck.bench.model import Row
from lanecheck.bench.plan import Shape
from lanecheck.bench.strict import Strict
from lanecheck.build import tree
from lanecheck.executor import ORACLE
from lanecheck.subject import Params, load, sources

_HARNESS = Path(__file__).parents[1]


class BenchHeader(Strict):
    """What a benchmark is of; the log of one with the same header can be gone on with.

    Attributes:
        benchmark: digest of the code that times and judges: Lanecheck's, and the subject's own without what
            its library is compiled from.
        versions: of the packages that peers are made of, those that are installed.
        gpu: the product's name.
    """

    subject: str
    benchmark: str
    versions: dict[str, str]
    library_sha256: str
    gpu: str
    rounds: int
    seed: int


class RowEntry(Strict):
    """A row in a log, the seconds that it took, and what it ran on.

    Attributes:
        asked: the names of the peers that were; not those of which an attempt had failed. Empty in old logs,
            which do not say.
    """

    seconds: float
    environment: Environment
    row: Row
    asked: tuple[str, ...] = ()


class Loss(Strict):
    """A peer that is not asked any more, by this run and by those that go on from its log.

    Attributes:
        peer: its name.
        reason: what it did.
    """

    peer: str
    reason: str


Entry = Union[RowEntry, Loss]


def rows_in(entries: Iterable[Entry]) -> list[RowEntry]:
    """The rows in a log."""
    return [entry for entry in entries if isinstance(entry, RowEntry)]


def lost(entries: Iterable[Entry]) -> dict[str, str]:
    """The peers that are not asked any more, and why not."""
    return {entry.peer: entry.reason for entry in entries if isinstance(entry, Loss)}


def lasting(row: Row) -> bool:
    """Whether a run that goes on may use a row: not if its process failed, or its GPU was held back."""
    died = any(each.oracle == ORACLE for each in row.correctness)
    return not died and not row.unsettled


def shape(params: Params) -> str:
    """A shape as a key."""
    return str(dict(params))


def usable(entries: Sequence[Entry], shapes: Sequence[Shape]) -> dict[str, RowEntry]:
    """What a run over these shapes may use again, by :func:`shape`: of each, the latest entry for which every
    peer was asked that the run would ask."""
    refused = lost(entries)
    wanted = {shape(params): {*Asking(patience, refused).names} for params, patience in shapes}
    named = ((shape(entry.row.params), entry) for entry in rows_in(entries))
    return {
        name: entry for name, entry in named if name in wanted and wanted[name] <= {*entry.asked}
    }


def _differences(first: BenchHeader, second: BenchHeader) -> list[str]:
    names = BenchHeader.model_fields
    return [name for name in names if getattr(first, name) != getattr(second, name)]


LOG: Kind[BenchHeader, Entry] = Kind("a benchmark", BenchHeader, TypeAdapter(Entry), _differences)


def headed(reference: str, library: Path, gpu: str, rounds: int, seed: int) -> BenchHeader:
    """What decides whether a log's rows may be used again.

    Args:
        reference: the subject, ``module:ATTRIBUTE``. gpu: the product's name.
    """
    subject = load(reference)
    code = [tree(_HARNESS), sources(reference, subject)]
    return BenchHeader(
        subject=subject.name,
        benchmark=hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest(),
        versions=peers.versions(),
        library_sha256=hashlib.sha256(library.read_bytes()).hexdigest(),
        gpu=gpu,
        rounds=rounds,
        seed=seed,
    )
