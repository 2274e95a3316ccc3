"""The report: its schema, what it may not leave out, and how it is stored."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

from lanecheck import matrix_file
from lanecheck.errors import BadInput
from lanecheck.reports import model, store
from lanecheck.reports.model import (
    CampaignRecord,
    CellRecord,
    ComparisonRecord,
    FailureRecord,
    FaultRecord,
    RealRecord,
    Report,
    SanitizerRecord,
    Status,
    Step,
)
from lanecheck.reports.results import environment
from lanecheck.reports.source import SourceRecord, elsewhere, source_record

RECORDED = Path(__file__).parents[2] / store.RECORDED

TIERS = """\
tiers:
  pull_request: {rows: [{jobs: all, archs: all, devices: all}]}
  nightly: {rows: [{jobs: all, archs: all, devices: all}]}
  release: {rows: [{jobs: all, archs: all, devices: all}]}
"""
"""Of a matrix that asks for everything everywhere."""

MATRIX = matrix_file.parse(
    """\
schema: 1
subject: small:SUBJECT
archs:
  sm_80:
    {gencode: ["arch=compute_80,code=sm_80"], loads_on: ["8.0"], min_ctk: "11.0", role: native}
  sm_90a:
    {gencode: ["arch=compute_90a,code=sm_90a"], loads_on: ["9.0"], min_ctk: "12.0", role: native}
devices:
  host: {mma: ["8.0"], runner: [ubuntu], pool: 1}
  a100: {cc: "8.0", runner: [gpu-a100], pool: 0, datasheet_gbps: 2039}
  h100: {cc: "9.0", runner: [gpu-h100], pool: 0, datasheet_gbps: 3350}
jobs:
  build: {column: built, budget: 5m}
  silicon: {column: on silicon, gpu: true, budget: 10m}
"""
    + TIERS
)


def cell(
    arch: str, device: str, job: str, status: str = "verified", reason: str = "shown"
) -> CellRecord:
    return CellRecord(arch=arch, device=device, job=job, status=Status(status), reason=reason)


def report(*cells: CellRecord, day: int = 1, source: str = "a", **parts: Any) -> Report:
    return Report(
        created=datetime(2026, 11, day, 12, 30, tzinfo=timezone.utc),
        subject="small",
        source=SourceRecord(git_sha="0123456789abcdef", dirty=False, sha256=source * 64),
        environment=environment("13.0.88", "g++", parts.pop("gpus", [])),
        cells=list(cells),
        **parts,
    )


def campaign(*lines: str) -> CampaignRecord:
    failures = [
        FailureRecord(line=line, capability="8.0", oracle=oracle, evidence="y is 1, expected 2")
        for line in lines
        for oracle in ("integers", "bits")
    ]
    return CampaignRecord(
        device="host",
        variant="plain",
        capabilities=["8.0"],
        seed=0,
        cases=1000,
        launches=1000,
        seconds=2.0,
        judged={"execution": 1000},
        failures=failures,
    )


def fault(killed: bool) -> FaultRecord:
    noticed = {"bits": 3} if killed else {}
    return FaultRecord(
        id="swap", title="swapped", killed=killed, cases=10, noticed=noticed, silent=[], first=[]
    )


def compared(why: str | None) -> ComparisonRecord:
    return ComparisonRecord(
        id="swap", kind="race", cases=10, alike=4, only_host={"bits": 1}, only_gpu={}, why=why
    )


def sanitized(evidence: str) -> SanitizerRecord:
    return SanitizerRecord(tool="memcheck", arch="sm_90a", cases=8, errors=0, evidence=evidence)


# The schema -----------------------------------------------------------------------------------


def test_the_stored_schema_is_that_of_the_model():
    printed = subprocess.run(
        [sys.executable, "-W", "error", "-m", "lanecheck.reports.model"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert model.SCHEMA.read_text() == printed, (
        "run python -m lanecheck.reports.model > harness/lanecheck/reports/schema-0.json"
    )
    jsonschema.Draft202012Validator.check_schema(json.loads(printed))


def test_a_report_is_valid_by_the_schema_and_survives_its_file(tmp_path):
    real = RealRecord(model="m", layers=2, cosines=[0.99], campaign=campaign())
    shown = report(
        cell("sm_80", "host", "build"), campaigns=[campaign("a")], faults=[fault(True)], real=real
    )
    model.write(shown, tmp_path / "report.json")
    jsonschema.validate(
        json.loads((tmp_path / "report.json").read_text()), json.loads(model.SCHEMA.read_text())
    )
    assert model.read(tmp_path / "report.json") == shown


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"schema_version": 1}, "schema_version"),
        ({"surprise": 1}, "surprise"),
        ({"cells": [{"arch": "sm_80"}]}, "cells.0.device"),
        ({"cells": None}, "cells"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(tmp_path, change, place):
    file = tmp_path / "report.json"
    file.write_text(json.dumps(json.loads(report().model_dump_json()) | change))
    with pytest.raises(BadInput) as caught:
        model.read(file)
    assert f"is not a report of schema 0: {place}: " in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(file.read_text()), json.loads(model.SCHEMA.read_text()))


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_broken_file_is_refused(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(BadInput, match="is not a report of schema 0"):
        model.read(tmp_path / "report.json")
    with pytest.raises(BadInput, match="cannot read report"):
        model.read(tmp_path / "none.json")


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the harness alone is checked out")
def test_every_recorded_report_is_still_read():
    files = store.recorded(RECORDED.parents[1])
    assert files
    for file in files:
        assert model.read(file).subject


# What it says ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "disproven"),
    [
        (report(cell("sm_80", "host", "build")), False),
        (report(cell("sm_80", "a100", "silicon", "unverified")), False),
        (report(cell("sm_80", "host", "build", "disproven")), True),
        (report(faults=[fault(True)]), False),
        (report(faults=[fault(True), fault(False)]), True),
        (report(faults=[fault(False).model_copy(update={"excused": "PTX"})]), False),
        (report(comparisons=[compared(why=None)]), True),
        (report(comparisons=[compared(why="a race")]), False),
        (report(sanitized=[sanitized("")]), False),
        (report(sanitized=[sanitized("read beyond x")]), True),
        (report(real=RealRecord(model="m", layers=1, cosines=[1], campaign=campaign())), False),
        (report(real=RealRecord(model="m", layers=1, cosines=[1], campaign=campaign("a"))), True),
        (report(campaigns=[campaign()]), False),
        (report(campaigns=[campaign("a")]), True),
        (report(treeless="sums of ones differ"), True),
        (report(failed=[Step(title="real weights", summary="no case ran")]), False),
    ],
    ids=[
        *("verified", "unverified", "cell", "killed", "survived", "excused"),
        *("unexplained", "explained", "clean", "finding", "real", "real call"),
        *("campaign", "case", "no tree", "not run"),
    ],
)
def test_what_makes_a_report_one_of_something_wrong(shown, disproven):
    assert shown.disproven is disproven


def test_failing_cases_are_counted_once_whoever_noticed():
    assert campaign("a", "b").failing == 2
    assert campaign("a", "b").summary == "1,000 cases, 2 failing, 500 cases/s"


@pytest.mark.parametrize(
    ("sha", "dirty", "commit"),
    [("0123456789abcdef", False, "0123456789ab"), ("0123456789abcdef", True, "0123456789ab+"),
     (None, True, "unknown"), (None, None, "unknown")],
)  # fmt: skip
def test_a_commit_with_changes_has_a_plus(sha, dirty, commit):
    assert SourceRecord(git_sha=sha, dirty=dirty, sha256="a").commit == commit


# Where it lies --------------------------------------------------------------------------------


def test_casual_reports_lie_apart_and_recorded_ones_by_device_and_year(tmp_path):
    name = "20261101T123000Z-0123456789ab.json"
    assert store.place(report(), tmp_path, record=False) == tmp_path / ".lanecheck/reports" / name
    assert store.place(report(), tmp_path, True) == tmp_path / "reports/runs/host/2026" / name
    gpu = report(gpus=["NVIDIA H200", "NVIDIA H200"])
    assert store.place(gpu, tmp_path, True) == tmp_path / "reports/runs/nvidia-h200/2026" / name


def test_recorded_reports_come_oldest_first_whatever_the_device(tmp_path):
    for day, gpus in ((3, []), (1, ["NVIDIA H200"]), (2, [])):
        store.save(report(day=day, gpus=gpus), tmp_path, record=True)
    assert [model.read(file).created.day for file in store.recorded(tmp_path)] == [1, 2, 3]


def test_a_copy_is_all_there_is_unless_the_run_is_recorded(tmp_path):
    copy = tmp_path / "deep" / "copy.json"
    assert store.save(report(), tmp_path, False, copy) == copy
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [copy]
    recorded = store.save(report(), tmp_path, True, copy)
    assert recorded.read_text() == copy.read_text()
    assert store.recorded(tmp_path) == [recorded]


def test_a_file_that_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"cannot write .*file/report.json: "):
        model.write(report(), tmp_path / "file" / "report.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match="cannot write"):
        model.write(report(), tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


# What it judged -------------------------------------------------------------------------------


def recipe(root: Path, device: str = "-fmad=false", host: str = "-O1") -> SimpleNamespace:
    return SimpleNamespace(
        root=root,
        device=lambda nvcc, gencode, source, out: [
            *(str(nvcc), device, *gencode, f"-I{source}/lib", str(source / "kernel.cu"), str(out))
        ],
        host=lambda cxx, flags, include, source, out: [
            *(str(cxx), host, *flags, *map(str, include), str(source / "kernel.cu"), str(out))
        ],
    )


def test_outside_git_the_commit_is_unknown(tmp_path):
    (tmp_path / "kernel.cu").write_text("")
    record = source_record(Path("/"), recipe(tmp_path))
    assert (record.git_sha, record.dirty, record.commit) == (None, None, "unknown")


def test_a_commit_says_nothing_of_a_copy_that_is_no_part_of_its_checkout(tmp_path):
    own, copy, another = (
        tmp_path / name for name in ("checkout/kernel", "checkout/.venv/kernel", "other/kernel")
    )
    for folder in (own, copy, another):
        folder.mkdir(parents=True)
        (folder / "kernel.cu").write_text("")
    root = tmp_path / "checkout"
    (root / ".gitignore").write_text(".venv\n")
    for words in (["init", "-q"], ["add", ".gitignore"], ["commit", "-q", "-m", "first"]):
        identity = "-c", "user.name=a", "-c", "user.email=a@b"
        subprocess.run(["git", "-C", root, *identity, *words], check=True)
    untracked = source_record(root, recipe(own))
    assert untracked.git_sha and untracked.dirty and not elsewhere(root, recipe(own))
    for folder in (copy, another):
        assert elsewhere(root, recipe(folder))
        assert source_record(root, recipe(folder)).commit == "unknown"
    assert not elsewhere(another, recipe(copy))  # where there is no commit at all


@pytest.mark.parametrize(
    ("text", "flags", "differs"),
    [
        ("", {}, False),
        ("// more", {}, True),
        ("", {"device": "-use_fast_math"}, True),
        ("", {"host": "-O2"}, True),
    ],
    ids=["a copy elsewhere", "its text", "how nvcc compiles it", "how the host compiles it"],
)
def test_a_source_is_what_is_compiled_and_how_wherever_it_lies(tmp_path, text, flags, differs):
    for folder, content in (("here", ""), ("there", text)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "kernel.cu").write_text(content)
    here = source_record(tmp_path, recipe(tmp_path / "here"))
    there = source_record(tmp_path, recipe(tmp_path / "there", **flags))
    assert here.differs(there) is there.differs(here) is differs


def test_an_older_record_that_does_not_say_how_it_was_compiled_is_of_the_same_source():
    old = SourceRecord(git_sha=None, dirty=None, sha256="a")
    new = old.model_copy(update={"recipe_sha256": "b"})
    other = old.model_copy(update={"sha256": "c"})
    assert not old.differs(new) and not new.differs(old) and not old.differs(old)
    assert old.differs(other) and other.differs(new)
