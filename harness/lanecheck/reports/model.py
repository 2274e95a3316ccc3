"""The report of one run: schema 0, a pydantic model, from which the JSON schema is generated.

``python -m lanecheck.reports.model`` prints that schema; ``schema-0.json`` holds it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lanecheck import __version__
from lanecheck.bench.judgement import NUMERIC
from lanecheck.bench.model import BenchRecord
from lanecheck.bench.paired.measured import PowerRecord
from lanecheck.errors import BadInput
from lanecheck.reports.source import SourceRecord
from lanecheck.tensorcore import Evidence
from lanecheck.verdict import Outcome

SCHEMA = Path(__file__).with_name("schema-0.json")
_LONG = 2**20  # characters


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Status(str, Enum):
    """Of a cell: shown right, shown wrong, or not shown."""

    VERIFIED = "verified"
    DISPROVEN = "disproven"
    UNVERIFIED = "unverified"


class CellRecord(_Record):
    """One row of the ledger: arch × device × job.

    Attributes:
        reason: what was shown, or why nothing was.
        evidence: how the tensor core's model that predicted the bits is known.
    """

    arch: str
    device: str
    job: str
    status: Status
    reason: str
    evidence: Evidence | None = None


class BuildRecord(_Record):
    """One compiled library. Sizes are bytes; counts are the largest over its kernels."""

    arch: str
    key: str
    seconds: float
    cached: bool
    kernels: int
    registers: int
    spills: int
    static_shared: int
    codes: list[str]
    sass_sha256: str
    problems: list[str]


class FailureRecord(_Record):
    """What an oracle said of a case that does not pass; ``line`` is the argument of ``lanecheck replay``."""

    line: str
    capability: str
    oracle: str
    outcome: Outcome = Outcome.FAIL
    evidence: str


class CampaignRecord(_Record):
    """Many cases against one target.

    Attributes:
        gpu: the product it ran on; empty on the host, and in older records.
        landmarks: which of the subject's own groups of cases ran, instead of drawn ones.
        blind: cases that could not have shown a misreading, and so are no evidence.
        judged: verdicts by oracle. compared: output elements compared bit for bit, by oracle.
        reordered: cases that are right, in another order of additions than the declared one.
    """

    device: str
    variant: str
    gpu: str = ""
    capabilities: list[str]
    seed: int
    landmarks: str = ""
    cases: int
    blind: int = 0
    launches: int
    seconds: float
    judged: dict[str, int]
    compared: dict[str, int] = {}
    failures: list[FailureRecord]
    reordered: list[FailureRecord] = []

    @property
    def name(self) -> tuple[str, str, int, str]:
        """What it shares with every other campaign that draws the same cases."""
        return self.device, self.variant, self.seed, self.landmarks

    @property
    def failing(self) -> int:
        """How many cases failed; one case may fail several oracles."""
        return len({failure.line for failure in self.failures})

    @property
    def summary(self) -> str:
        """The counts, in words."""
        blind = f" ({self.blind:,} blind)" if self.blind else ""
        suspect = len({f.line for f in self.failures if f.outcome is Outcome.SUSPECT})
        other = f", {suspect:,} of them on a suspect device" if suspect else ""
        reordered = len({note.line for note in self.reordered})
        other += f", {reordered:,} reordered" if reordered else ""
        counts = f"{self.cases:,} cases{blind}, {self.failing:,} failing{other}"
        return f"{counts}, {self.rate:,.0f} cases/s"

    @property
    def lacking(self) -> str | None:
        """Why a campaign without failures shows nothing; None if it does show something."""
        if not self.cases:
            return "no case ran"
        if self.blind == self.cases:
            return "only blind cases ran"
        if not any(self.judged.get(oracle) for oracle in NUMERIC):
            return "no case's numbers were judged"
        return None

    @property
    def good(self) -> bool | None:
        """Whether it shows the kernel right; None if in another order than the declared one."""
        if self.failures or self.lacking:
            return False
        return None if self.reordered else True

    @property
    def rate(self) -> float:
        """Cases a second, oracles included."""
        return self.cases / self.seconds if self.seconds else 0.0


class FaultRecord(_Record):
    """One injected fault: failing cases by oracle, and the first failing line of each.

    Attributes:
        device: ``host`` or ``cuda``. kind: what goes wrong.
        excused: why nothing had to notice there, if nothing did.
        rung: failing cases by the first oracle of the ladder that fails them.
    """

    id: str
    title: str
    device: str = "host"
    kind: str = ""
    killed: bool
    excused: str | None = None
    cases: int
    noticed: dict[str, int]
    rung: dict[str, int] = {}
    silent: list[str]
    first: list[FailureRecord]


class ControlRecord(_Record):
    """One change that must not be flagged.

    Attributes:
        device: ``host`` or ``cuda``.
        expect: ``reordered`` or ``pass``.
        reordered: cases that are right, in another order of additions than the declared one.
        first: the first failing line of each oracle that flags it.
    """

    id: str
    title: str
    device: str = "host"
    expect: str
    clean: bool
    cases: int
    reordered: int
    first: list[FailureRecord]


class ComparisonRecord(_Record):
    """One fault under host execution and on a GPU, over the cases that both ran.

    Attributes:
        alike: pairs of a case and an oracle that fails it on both. only_host, only_gpu: on one, by oracle.
        why: what explains the differences.
    """

    id: str
    kind: str
    cases: int
    alike: int
    only_host: dict[str, int]
    only_gpu: dict[str, int]
    why: str | None

    @property
    def explained(self) -> bool:
        """Whether there is no difference, or one that the kind of the fault lets be."""
        return self.why is not None or not (self.only_host or self.only_gpu)


class SanitizerRecord(_Record):
    """What one tool of compute-sanitizer found.

    Attributes:
        arch: the build it watched. line: the case of its first finding. evidence: that finding.
    """

    tool: str
    arch: str
    cases: int
    errors: int
    line: str = ""
    evidence: str = ""


class SummationRecord(_Record):
    """The order in which one output's terms are added, as recovered from the running kernel.

    Attributes:
        leaves: how many terms. tree: a digest of the tree, so that a change of order shows.
        as_declared: whether it is the order that the subject declares; None if it declares none.
    """

    line: str
    output: str
    capability: str
    device: str = "host"
    leaves: int
    tree: str
    notation: str
    words: str
    as_declared: bool | None


class RealRecord(_Record):
    """Real weights and activations, judged layer by layer inside their model."""

    model: str
    layers: int
    cosines: list[float]
    campaign: CampaignRecord


class Step(_Record):
    """A step of a run, and how it ended, in words."""

    title: str
    summary: str


class Environment(_Record):
    """Where it ran; ``gpus`` are those that took part."""

    system: str
    machine: str
    cores: int
    python: str
    nvcc: str | None = None
    cxx: str | None = None
    gpus: list[str] = Field(default_factory=list)


class Report(_Record):
    """Everything one ``lanecheck verify`` showed.

    Attributes:
        treeless: why no order of additions explains what the kernel returns; empty if one does, if none was
            asked for, and in older records.
        failed: the steps that did not end well; none in older records.
    """

    schema_version: Literal[0] = 0
    tool_version: str = __version__
    created: datetime
    subject: str
    source: SourceRecord
    environment: Environment
    cells: list[CellRecord]
    builds: list[BuildRecord] = Field(default_factory=list)
    campaigns: list[CampaignRecord] = Field(default_factory=list)
    faults: list[FaultRecord] = Field(default_factory=list)
    controls: list[ControlRecord] = Field(default_factory=list)
    comparisons: list[ComparisonRecord] = Field(default_factory=list)
    sanitized: list[SanitizerRecord] = Field(default_factory=list)
    summations: list[SummationRecord] = Field(default_factory=list)
    treeless: str = ""
    real: RealRecord | None = None
    bench: BenchRecord | None = None
    power: PowerRecord | None = None
    failed: list[Step] = Field(default_factory=list)

    @property
    def disproven(self) -> bool:
        """Whether anything was shown wrong: a cell, a case, a real call, a sum that no order explains, a
        sanitizer's finding, or the oracles themselves, by a fault that nothing noticed, a control that
        something did, or a disagreement. A step that failed without is of what could not be run."""
        return (
            any(cell.status is Status.DISPROVEN for cell in self.cells)
            or any(campaign.failures for campaign in self.campaigns)
            or bool(self.treeless)
            or not all(fault.killed or fault.excused for fault in self.faults)
            or not all(control.clean for control in self.controls)
            or not all(comparison.explained for comparison in self.comparisons)
            or any(tool.evidence for tool in self.sanitized)
            or bool(self.real and self.real.campaign.failures)
        )


def schema_text() -> str:
    """The JSON schema of :class:`Report`, as stored in :data:`SCHEMA`."""
    return json.dumps(Report.model_json_schema(), indent=2) + "\n"


def read(path: Path) -> Report:
    """A stored report.

    Raises:
        BadInput: if the file is not a report of this schema.
    """
    try:
        return Report.model_validate_json(path.read_text())
    except OSError as error:
        raise BadInput(f"cannot read report {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadInput(f"{path} is not a report of schema 0: {where}: {first['msg']}") from error


def write(record: BaseModel, path: Path) -> None:
    """Store a report, or a part of one; indented unless it is so long that nobody reads it."""
    text = record.model_dump_json(indent=1)
    write_text((text if len(text) < _LONG else record.model_dump_json()) + "\n", path)


def write_text(text: str, path: Path) -> None:
    """Write a file in one rename, so that no half of one is ever read.

    Raises:
        BadInput: if it cannot be written there.
    """
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise BadInput(f"cannot write {path}: {error.strerror}") from error


if __name__ == "__main__":
    print(schema_text(), end="")
