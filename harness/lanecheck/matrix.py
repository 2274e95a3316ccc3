"""The matrix: which job runs for which arch on which device, and when.

Its models are frozen and strict about each entry by itself; :mod:`lanecheck.matrix_file` reads them from
matrix.yaml and checks what spans entries. Nothing downstream knows YAML.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from lanecheck.errors import BadInput

ALL = "all"
GITHUB_LIMIT = 256  # jobs that one GitHub matrix may generate


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

    def hides(self, cell: Cell) -> bool:
        """Whether a cell is one of them."""
        return all(
            ALL in names or name in names
            for names, name in (
                (self.archs, cell.arch),
                (self.devices, cell.device),
                (self.jobs, cell.job),
            )
        )


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

    def tier(self, name: str) -> Tier:
        """A tier by its name."""
        self._known("tier", [name], Tiers.model_fields)
        tier: Tier = getattr(self.tiers, name)
        return tier

    def cells(self, tier: str, jobs: Sequence[str] = ()) -> list[Cell]:
        """The cells of a tier that are not excluded, of all jobs or those named, in the file's order."""
        self._known("job", jobs, self.jobs)
        return [
            cell
            for cell in self.all_cells(tier)
            if (not jobs or cell.job in jobs) and not self.excluded(cell)
        ]

    def all_cells(self, tier: str) -> list[Cell]:
        """The cells of a tier, excluded or not, in the file's order."""
        self._known("tier", [tier], Tiers.model_fields)
        return self._expanded[tier]

    def excluded(self, cell: Cell) -> str | None:
        """Why a cell is skipped, and until when; None if it is not."""
        for exclusion in self.exclude:
            if exclusion.hides(cell):
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

    @cached_property
    def _expanded(self) -> dict[str, list[Cell]]:
        return {
            name: [cell for row in self.tier(name).rows for cell in self.row_cells(row)]
            for name in Tiers.model_fields
        }

    @staticmethod
    def _possible(arch: Arch, device: Device, job: Job) -> bool:
        return device.cc in arch.loads_on if job.gpu else not device.gpu

    @staticmethod
    def _expand(names: Sequence[str], known: Iterable[str]) -> list[str]:
        return list(known) if ALL in names else list(names)

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
