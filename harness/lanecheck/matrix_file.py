"""matrix.yaml, read and checked.

The file is read once, strictly, into the frozen models of :mod:`lanecheck.matrix`. Whatever is wrong with it
is one line with a file and a line number, because a matrix that is silently smaller than it looks is how a
kernel ships untested.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel, ValidationError

from lanecheck.errors import BadInput, CannotRun
from lanecheck.matrix import ALL, Arch, Cell, Device, Exclusion, Job, Matrix, Row, Tier, Tiers
from lanecheck.tensorcore import model_for

FILE = "matrix.yaml"
HOST = "host"
JOBS = {"build": False, "inspect": False, "fuzz": False, "silicon": True, "bench": True}
"""What is done to a cell by ``lanecheck verify`` and ``lanecheck bench``, and whether that takes a GPU."""

Loc = tuple[str | int, ...]


# Reading --------------------------------------------------------------------------------------


def find(start: Path | None = None) -> Path:
    """The matrix.yaml of ``start`` (default: the current folder) or of the nearest folder above."""
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (path := folder / FILE).is_file():
            return path
    raise BadInput(
        f"no {FILE} in {start} or above: run inside the repository, or name it with --matrix"
    )


def load(path: Path, today: date | None = None) -> Matrix:
    """Read and check a matrix; the first thing wrong with it is raised as one line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise BadInput(f"{path}: cannot be read ({reason})") from None
    return parse(text, path.name, today)


def parse(text: str, name: str = FILE, today: date | None = None) -> Matrix:
    """:func:`load` on text; ``name`` is what messages call the file."""
    data, lines = _read_yaml(text, name)

    def fail(loc: Loc, message: str, more: int = 0) -> BadInput:
        while loc not in lines:
            loc = loc[:-1]
        also = f" (and {more} more)" if more else ""
        return BadInput(f"{name}:{lines[loc]}: {message}{also}")

    for section, entry in itertools.product(("archs", "devices", "jobs"), [*lines]):
        if len(entry) == 3 and entry[0] == section and entry[2] == "name":
            raise fail(entry, f"unknown key 'name' in {_where(entry[:-1])}: its key is its name")
    try:
        matrix = Matrix.model_validate(data)
    except ValidationError as error:
        # A misspelt key is the likely cause of a missing one.
        found = sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
        raise fail(found[0]["loc"], _explain(dict(found[0])), len(found) - 1) from None
    for loc, message in (wrong := list(problems(matrix, today or date.today()))):
        raise fail(loc, message, len(wrong) - 1)
    return matrix


class _NoAlias(yaml.SafeLoader):
    """Without aliases a file is a tree, in which every value has one line."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not supported", problem_mark=mark)
        return super().compose_node(parent, index)


def _read_yaml(text: str, name: str) -> tuple[object, dict[Loc, int]]:
    """The data of one YAML document, sequences as tuples, and the line of every key and item."""
    loader = _NoAlias(text)
    lines: dict[Loc, int] = {(): 1}

    def value(node: yaml.Node, loc: Loc) -> object:
        lines.setdefault(loc, node.start_mark.line + 1)
        if isinstance(node, yaml.SequenceNode):
            return tuple(value(item, (*loc, i)) for i, item in enumerate(node.value))
        if not isinstance(node, yaml.MappingNode):
            return loader.construct_object(node)
        result = {}
        for key_node, item in node.value:
            key, line = loader.construct_object(key_node), key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise BadInput(f"{name}:{line}: key {key!r} is not a string: write it in quotes")
            here: Loc = (*loc, key)
            if key in result:
                first = lines[here]
                raise BadInput(f"{name}:{line}: key {key!r} again; it is already on line {first}")
            lines[here] = line
            result[key] = value(item, here)
        return result

    try:
        node = loader.get_single_node()
        return (None if node is None else value(node, ())), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise BadInput(f"{name}:{line}: not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise BadInput(f"{name}:1: not valid YAML: {str(error).splitlines()[0]}") from None
    finally:
        loader.dispose()


# Rules that span entries ----------------------------------------------------------------------

Problems = Iterator[tuple[Loc, str]]


def problems(matrix: Matrix, today: date) -> Problems:
    """What is wrong with a matrix whose entries are each well formed, with the place of each."""
    names = {"jobs": matrix.jobs, "archs": matrix.archs, "devices": matrix.devices}
    broken = [*_lists(matrix), *_references(matrix, names), *_jobs(matrix), *_host(matrix)]
    yield from broken
    if broken:
        return
    yield from _same_build(matrix)
    for tier in Tiers.model_fields:
        yield from _rows(matrix, tier)
        if not matrix.cells(tier):
            yield ("tiers", tier), f"tier {tier} has no cell left: its exclusions hide all of it"
    yield from _subsets(matrix)
    yield from _exclusions(matrix, today)


def _lists(matrix: Matrix) -> Problems:
    """No list names anything twice."""
    for loc, model in _models(matrix):
        for field in type(model).model_fields:
            value = getattr(model, field)
            if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
                for i, item in enumerate(value):
                    if item in value[:i]:
                        yield (*loc, field, i), f"{item!r} is listed twice in {_where(loc)}"
                    if item == ALL and len(value) > 1:
                        yield (*loc, field, i), f"'all' stands alone in {_where(loc)}"


def _references(matrix: Matrix, names: Mapping[str, Mapping[str, BaseModel]]) -> Problems:
    """Every name in a row or an exclusion is defined."""
    for loc, model in _models(matrix):
        if isinstance(model, (Row, Exclusion)):
            for field, known in names.items():
                for i, name in enumerate(getattr(model, field)):
                    if name != ALL and name not in known:
                        yield (*loc, field, i), _unknown(field[:-1], name, loc, known)


def _jobs(matrix: Matrix) -> Problems:
    """Each job is one that a command does, where that does it."""
    for name, job in matrix.jobs.items():
        if name not in JOBS:
            yield ("jobs", name), f"nothing does job {name!r}; known: {', '.join(JOBS)}"
        elif job.gpu != JOBS[name]:
            yield ("jobs", name), f"job {name} must have gpu: {str(JOBS[name]).lower()}"


def _host(matrix: Matrix) -> Problems:
    """One device is the host, and each of its arithmetics has a model. A GPU's need not: what would be
    computed with it stays unverified."""
    hosts = [name for name, device in matrix.devices.items() if not device.gpu]
    for name in hosts:
        if name != HOST:
            yield ("devices", name), f"device {name} has mma, and the one host is called {HOST}"
    if HOST not in hosts:
        yield ("devices",), f"no device is the host: add one called {HOST}, with mma"
        return
    for i, cc in enumerate(matrix.devices[HOST].mma):
        try:
            model_for(cc)
        except CannotRun as error:
            yield ("devices", HOST, "mma", i), f"mma of device {HOST}: {error}"


def _same_build(matrix: Matrix) -> Problems:
    first: dict[frozenset[str], str] = {}
    for name, arch in matrix.archs.items():
        twin = first.setdefault(frozenset(arch.gencode), name)
        if twin != name:
            yield ("archs", name, "gencode"), f"arch {name} has the gencode of {twin}: keep one"


def _rows(matrix: Matrix, tier: str) -> Problems:
    """Each row yields cells, every name written in it yields one, and no cell comes twice."""
    seen: dict[Cell, int] = {}
    for i, row in enumerate(matrix.tier(tier).rows):
        loc: Loc = ("tiers", tier, "rows", i)
        cells = matrix.row_cells(row)
        if not cells:
            yield loc, f"{_where(loc)} yields no cell: none of its archs loads on its devices"
        for field in ("jobs", "archs", "devices"):
            used = {getattr(cell, field[:-1]) for cell in cells}
            for j, name in enumerate(getattr(row, field)):
                if cells and name != ALL and name not in used:
                    message = f"{field[:-1]} {name} of {_where(loc)} yields no cell with the others"
                    yield (*loc, field, j), message
        for cell in cells:
            if seen.setdefault(cell, i) != i:
                yield loc, f"{_where(loc)} repeats {cell} of row {seen[cell] + 1}"


def _subsets(matrix: Matrix) -> Problems:
    for smaller, larger in itertools.pairwise(Tiers.model_fields):
        kept = set(matrix.all_cells(larger))
        for cell in matrix.all_cells(smaller):
            if cell not in kept:
                yield ("tiers", smaller), f"tier {smaller} has {cell}, which {larger} lacks"


def _exclusions(matrix: Matrix, today: date) -> Problems:
    for i, exclusion in enumerate(matrix.exclude):
        if exclusion.expires < today:
            expired = f"exclusion expired on {exclusion.expires} ({exclusion.reason})"
            yield ("exclude", i, "expires"), f"{expired}: remove it, or give a new date and reason"
        cells = (cell for tier in Tiers.model_fields for cell in matrix.all_cells(tier))
        if not any(exclusion.hides(cell) for cell in cells):
            yield ("exclude", i), f"exclusion hides no cell ({exclusion.reason}): remove it"


def _models(matrix: Matrix) -> Iterator[tuple[Loc, BaseModel]]:
    for section in ("archs", "devices", "jobs"):
        for name, entry in getattr(matrix, section).items():
            yield (section, name), entry
    for tier in Tiers.model_fields:
        for i, row in enumerate(matrix.tier(tier).rows):
            yield ("tiers", tier, "rows", i), row
    for i, exclusion in enumerate(matrix.exclude):
        yield ("exclude", i), exclusion


# Words ----------------------------------------------------------------------------------------


def _explain(error: dict[str, Any]) -> str:
    loc: Loc = error["loc"]
    key, owner = (loc[-1] if loc else ""), loc[:-1]
    if error["type"] == "extra_forbidden":
        known = [field for field in _keys(owner) if field != "name"]
        return f"unknown key {key!r} in {_where(owner)}; known: {', '.join(known)}"
    if error["type"] == "missing":
        return f"{_where(owner)} lacks {key!r}"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "string_type" and isinstance(error["input"], (int, float)):
        message = f'write {error["input"]} in quotes: "{error["input"]}"'
    field = [part for part in loc[2:] if isinstance(part, str)][-1:]
    return f"{' of '.join([*field, _where(loc)])}: {message}"


def _keys(loc: Loc) -> list[str]:
    """The keys that the mapping at ``loc`` may have."""
    if not loc:
        return [field.alias or name for name, field in Matrix.model_fields.items()]
    section: dict[str, type[BaseModel]] = {
        "archs": Arch,
        "devices": Device,
        "jobs": Job,
        "exclude": Exclusion,
    }
    if loc[0] == "tiers":
        return [*(Tiers, Tier, Row)[min(len(loc) - 1, 2)].__pydantic_fields__]
    return [*section[str(loc[0])].__pydantic_fields__]


def _where(loc: Loc) -> str:
    match loc:
        case ("tiers", tier, "rows", int(row), *_):
            return f"row {row + 1} of tier {tier}"
        case ("exclude", int(index), *_):
            return f"exclusion {index + 1}"
        case ("archs" | "devices" | "jobs" | "tiers" as section, name, *_):
            return f"{str(section)[:-1]} {name}"
        case (section, *_):
            return str(section)
    return "the file"


def _unknown(kind: str, name: str, loc: Loc, known: Iterable[str]) -> str:
    return f"unknown {kind} {name!r} in {_where(loc)}; known: {', '.join(known)}"
