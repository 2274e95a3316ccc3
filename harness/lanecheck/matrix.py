"""matrix.yaml: which job runs for which arch on which device, and when.

The file is read once, strictly, into frozen models; nothing downstream knows YAML. Whatever is wrong with it
is one line with a file and a line number, because a matrix that is silently smaller than it looks is how a
kernel ships untested.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml  # type: ignore[import-untyped]
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from lanecheck.errors import BadInput
from lanecheck.tensorcore import model_for

FILE = "matrix.yaml"
ALL = "all"
HOST = "host"
JOBS = {"build": False, "inspect": False, "fuzz": False, "silicon": True, "bench": True}
"""What is done to a cell by ``lanecheck verify`` and ``lanecheck bench``, and whether that takes a GPU."""
GITHUB_LIMIT = 256  # jobs that one GitHub matrix may generate

Loc = tuple[str | int, ...]


# Values ---------------------------------------------------------------------------------------


def duration(text: object) -> float:
    """Seconds in ``90s``, ``5m``, ``1h`` or ``2h30m``."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text) if isinstance(text, str) else []
    if not parts or "".join(map("".join, parts)) != text:
        raise ValueError(f"{text!r} is not a duration: write 90s, 5m or 1h30m")
    return sum(float(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in parts)


def _names(value: object) -> object:
    return (ALL,) if value == ALL else value


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


Duration = Annotated[float, BeforeValidator(duration)]
Names = Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_names)]
Capability = Annotated[str, Field(pattern=r"^\d+\.\d$")]
Gencode = Annotated[
    str, Field(pattern=r"^arch=compute_\d{2,3}[af]?,code=(sm|compute)_\d{2,3}[af]?$")
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Arch(_Strict):
    """A build target: what nvcc is asked for, and where the result loads."""

    name: str
    gencode: tuple[Gencode, ...] = Field(min_length=1)
    loads_on: tuple[Capability, ...] = Field(min_length=1)
    min_ctk: Annotated[str, Field(pattern=r"^\d+\.\d+$")]
    role: Literal["native", "family", "fallback"]

    @property
    def codes(self) -> tuple[str, ...]:
        """What the binary must hold: ``sm_90a`` for machine code, ``compute_80`` for PTX."""
        return tuple(value.partition(",code=")[2] for value in self.gencode)

    @model_validator(mode="after")
    def _true_to_its_codes(self) -> Arch:
        if self.role != (role := _role(self.codes)):
            raise ValueError(f"role must be {role}, as its codes are {', '.join(self.codes)}")
        for cc in self.loads_on:
            if not any(loads(code, cc) for code in self.codes):
                raise ValueError(f"code for {', '.join(self.codes)} does not load on {cc}")
        return self


class Device(_Strict):
    """Where code runs: a GPU has a ``cc``; the host has the ``mma`` arithmetics it computes with."""

    name: str
    runner: tuple[str, ...] = Field(min_length=1)
    pool: int = Field(ge=0)
    cc: Capability | None = None
    datasheet_gbps: int | None = Field(default=None, gt=0)
    mma: tuple[Capability, ...] = ()

    @property
    def gpu(self) -> bool:
        return self.cc is not None

    @model_validator(mode="after")
    def _host_or_gpu(self) -> Device:
        if self.gpu == bool(self.mma):
            raise ValueError("give either cc (a GPU) or mma (the host)")
        if self.gpu != bool(self.datasheet_gbps):
            raise ValueError("datasheet_gbps belongs to a GPU, and every GPU needs it")
        return self


class Job(_Strict):
    """Something that is done to a cell, and the heading it has in the verdict table."""

    name: str
    column: str
    budget: Duration
    gpu: bool = False


class Row(_Strict):
    """Explodes to jobs × archs × devices."""

    jobs: Names
    archs: Names
    devices: Names


class Tier(_Strict):
    rows: tuple[Row, ...] = Field(min_length=1)


class Tiers(_Strict):
    """From the quickest to the most thorough: each holds every cell of the one before."""

    pull_request: Tier
    nightly: Tier
    release: Tier


class Exclusion(_Strict):
    """Cells that are skipped until a day on which someone must look again."""

    reason: str = Field(min_length=1)
    expires: date
    jobs: Names = (ALL,)
    archs: Names = (ALL,)
    devices: Names = (ALL,)


@dataclass(frozen=True, order=True)
class Cell:
    """One arch × device × job."""

    arch: str
    device: str
    job: str

    def __str__(self) -> str:
        return f"{self.arch}/{self.device}/{self.job}"


class Matrix(_Strict):
    schema_: Literal[1] = Field(alias="schema")
    subject: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
    """What commands check unless told otherwise, ``module:ATTRIBUTE``."""
    archs: Mapping[str, Arch] = Field(min_length=1)
    devices: Mapping[str, Device] = Field(min_length=1)
    jobs: Mapping[str, Job] = Field(min_length=1)
    tiers: Tiers
    exclude: tuple[Exclusion, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        """Entries of a mapping learn the name they are filed under."""
        if not isinstance(data, dict):
            return data
        named = dict(data)
        for section in {"archs", "devices", "jobs"} & data.keys():
            if isinstance(entries := data[section], dict):
                named[section] = {
                    name: {**entry, "name": name} if isinstance(entry, dict) else entry
                    for name, entry in entries.items()
                }
        return named

    def cells(self, tier: str, jobs: Sequence[str] = ()) -> list[Cell]:
        """The cells of a tier that are not excluded, of all jobs or those named, in the file's order."""
        self._known("job", jobs, self.jobs)
        return [
            cell
            for cell in self._all(tier)
            if (not jobs or cell.job in jobs) and not self.excluded(cell)
        ]

    def excluded(self, cell: Cell) -> str | None:
        """Why a cell is skipped, and until when; None if it is not."""
        for exclusion in self.exclude:
            if self._matches(exclusion, cell):
                return f"excluded until {exclusion.expires}: {exclusion.reason}"
        return None

    def github(self, tier: str, jobs: Sequence[str] = ()) -> dict[str, list[dict[str, Any]]]:
        """The value of a workflow's ``strategy.matrix``, of all jobs or of those named.

        Cells on a device without runners are left out: they would queue for ever.
        """
        cells = self.cells(tier, jobs)
        rows = [self._github_row(cell) for cell in cells if self.devices[cell.device].pool]
        if not rows:
            cause = "every device of its cells has pool: 0" if cells else "it has no such job"
            raise BadInput(f"tier {tier}: the GitHub matrix would be empty: {cause}")
        if len(rows) > GITHUB_LIMIT:
            raise BadInput(
                f"tier {tier}: {len(rows)} rows, and a GitHub matrix takes {GITHUB_LIMIT}: "
                "ask for fewer jobs at a time"
            )
        return {"include": rows}

    def _github_row(self, cell: Cell) -> dict[str, Any]:
        arch, device, job = self.archs[cell.arch], self.devices[cell.device], self.jobs[cell.job]
        return {
            "name": str(cell),
            "arch": cell.arch,
            "device": cell.device,
            "job": cell.job,
            "gpu": job.gpu,
            "cc": device.cc or "",
            "gencode": list(arch.gencode),
            "runner": list(device.runner),
            "minutes": max(1, round(job.budget / 60)),
        }

    def row_cells(self, row: Row) -> list[Cell]:
        """The pairs of a row that can exist."""
        return [
            Cell(arch, device, job)
            for job, arch, device in itertools.product(
                self._expand(row.jobs, self.jobs),
                self._expand(row.archs, self.archs),
                self._expand(row.devices, self.devices),
            )
            if self._possible(self.archs[arch], self.devices[device], self.jobs[job])
        ]

    def _tier(self, name: str) -> Tier:
        self._known("tier", [name], Tiers.model_fields)
        tier: Tier = getattr(self.tiers, name)
        return tier

    @cached_property
    def _expanded(self) -> dict[str, list[Cell]]:
        return {
            name: [cell for row in self._tier(name).rows for cell in self.row_cells(row)]
            for name in Tiers.model_fields
        }

    def _all(self, tier: str) -> list[Cell]:
        self._known("tier", [tier], Tiers.model_fields)
        return self._expanded[tier]

    @staticmethod
    def _possible(arch: Arch, device: Device, job: Job) -> bool:
        return device.cc in arch.loads_on if job.gpu else not device.gpu

    @staticmethod
    def _expand(names: Sequence[str], known: Iterable[str]) -> list[str]:
        return list(known) if ALL in names else list(names)

    @staticmethod
    def _matches(exclusion: Exclusion, cell: Cell) -> bool:
        return all(
            ALL in names or name in names
            for names, name in (
                (exclusion.archs, cell.arch),
                (exclusion.devices, cell.device),
                (exclusion.jobs, cell.job),
            )
        )

    @staticmethod
    def _known(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
        for name in names:
            if name not in known:
                raise BadInput(f"unknown {kind} {name!r}; known: {', '.join(known)}")


# Codes and capabilities -----------------------------------------------------------------------


def _role(codes: Sequence[str]) -> str:
    if not any(code.startswith("sm_") for code in codes):
        return "fallback"
    return "family" if any(code.endswith("f") for code in codes) else "native"


def loads(code: str, cc: str) -> bool:
    """Whether a device of capability ``cc`` can run ``code``.

    PTX runs on every later capability; machine code on later minors of its major; a family-specific
    target ("f") on its family, which is a major; an architecture-specific one ("a") on exactly its own.
    """
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", code)
    assert match, code
    kind, major, minor, suffix = match.groups()
    built, device = (int(major), int(minor)), _version(cc)
    if suffix == "a":
        return device == built
    if kind == "compute" and not suffix:
        return device >= built
    return device[0] == built[0] and device >= built


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
        except ValueError as error:
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
    for i, row in enumerate(matrix._tier(tier).rows):
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
        kept = set(matrix._all(larger))
        for cell in matrix._all(smaller):
            if cell not in kept:
                yield ("tiers", smaller), f"tier {smaller} has {cell}, which {larger} lacks"


def _exclusions(matrix: Matrix, today: date) -> Problems:
    for i, exclusion in enumerate(matrix.exclude):
        if exclusion.expires < today:
            expired = f"exclusion expired on {exclusion.expires} ({exclusion.reason})"
            yield ("exclude", i, "expires"), f"{expired}: remove it, or give a new date and reason"
        cells = (cell for tier in Tiers.model_fields for cell in matrix._all(tier))
        if not any(matrix._matches(exclusion, cell) for cell in cells):
            yield ("exclude", i), f"exclusion hides no cell ({exclusion.reason}): remove it"


def _models(matrix: Matrix) -> Iterator[tuple[Loc, BaseModel]]:
    for section in ("archs", "devices", "jobs"):
        for name, entry in getattr(matrix, section).items():
            yield (section, name), entry
    for tier in Tiers.model_fields:
        for i, row in enumerate(matrix._tier(tier).rows):
            yield ("tiers", tier, "rows", i), row
    for i, exclusion in enumerate(matrix.exclude):
        yield ("exclude", i), exclusion


# Reading --------------------------------------------------------------------------------------


def find(start: Path | None = None) -> Path:
    """The matrix.yaml of ``start`` (default: the current folder) or of the nearest folder above."""
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (path := folder / FILE).is_file():
            return path
    raise BadInput(f"no {FILE} in {start} or above: run inside the repository, or give its path")


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
    section: dict[str, type[_Strict]] = {
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
