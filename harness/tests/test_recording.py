"""What --record files: under the device that ran, and only cells that exist."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from test_ledger import ran
from test_reports import TIERS, recipe

from lanecheck import gpu, matrix_file
from lanecheck.cli import recording
from lanecheck.gpu import Gpu
from lanecheck.reports import model, store
from lanecheck.reports.model import CampaignRecord, Report

TEXT = (
    """\
schema: 1
subject: small:SUBJECT
archs:
  sm_80: {gencode: ["arch=compute_80,code=sm_80"], loads_on: ["8.0", "8.6", "8.9"],
          min_ctk: "11.0", role: native}
  sm_90a: {gencode: ["arch=compute_90a,code=sm_90a"], loads_on: ["9.0"], min_ctk: "12.0",
           role: native}
devices:
  host: {mma: ["8.0", "9.0"], runner: [here], pool: 1}
  l4: {cc: "8.9", runner: [gpu], pool: 0, datasheet_gbps: 300}
  a100: {cc: "8.0", runner: [gpu], pool: 0, datasheet_gbps: 2039}
  h200: {cc: "9.0", runner: [gpu], pool: 0, datasheet_gbps: 4800}
jobs:
  fuzz: {column: host-fuzzed, budget: 5m}
  silicon: {column: on silicon, gpu: true, budget: 5m}
"""
    + TIERS
)
L4, A100 = Gpu("NVIDIA L4", "8.9", "GPU-l4"), Gpu("NVIDIA A100-SXM4-80GB", "8.0", "GPU-a100")
H200, A10G = Gpu("NVIDIA H200", "9.0", "GPU-h200"), Gpu("NVIDIA A10G", "8.6", "GPU-a10g")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A matrix in a folder of its own, and nothing that compiles."""
    source = tmp_path / "csrc"
    source.mkdir()
    subject = SimpleNamespace(name="small", recipe=recipe(source))
    monkeypatch.setattr(recording, "load", lambda reference: subject)
    tools = SimpleNamespace(nvcc_version="13.0", cxx_version="g++")
    monkeypatch.setattr(recording, "toolchain", lambda: tools)
    path = tmp_path / "matrix.yaml"
    path.write_text(TEXT)
    return path


def recorded(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    here: list[Gpu],
    of: CampaignRecord,
    gpus: tuple[str, ...] | None,
) -> tuple[str, Report]:
    """The folder of what is filed on a machine with these GPUs, and the report."""
    monkeypatch.setattr(gpu, "detect", lambda: here)
    recording.save_campaigns([of], matrix_file.load(file), file, None, gpus)
    (stored,) = store.recorded(file.parent)
    return stored.parents[1].name, model.read(stored)


@pytest.mark.parametrize(
    ("here", "that", "arch", "folder", "cells"),
    [
        ([L4, A100], A100, "sm_80", "nvidia-a100-sxm4-80gb", ["sm_80/a100/silicon"]),
        ([L4, A100], L4, "sm_80", "nvidia-l4", ["sm_80/l4/silicon"]),
        ([L4, H200], H200, "sm_90a", "nvidia-h200", ["sm_90a/h200/silicon"]),
        ([A10G], A10G, "sm_80", "nvidia-a10g", []),
        ([A10G, L4], A10G, "sm_80", "nvidia-a10g", []),
    ],
    ids=["A100 beside L4", "L4 beside A100", "H200 beside L4", "A10G", "A10G beside L4"],
)
def test_evidence_is_filed_under_the_gpu_that_ran(
    file, monkeypatch, capsys, here, that, arch, folder, cells
):
    of = ran(7, variant=arch, capabilities=[that.cc])
    place, report = recorded(file, monkeypatch, here, of, (that.uuid,))
    assert place == folder
    assert report.environment.gpus == [that.name]
    assert [f"{each.arch}/{each.device}/{each.job}" for each in report.cells] == cells
    assert [each.gpu for each in report.campaigns] == [that.name]
    said = "matrix.yaml has no such device: NVIDIA A10G, so that no cell is recorded\n"
    assert (said in capsys.readouterr().out) == (not cells)


@pytest.mark.parametrize(
    ("here", "cells"),
    [([H200, H200], ["h200"]), ([L4, A100], [])],
    ids=["all alike", "one of two kinds"],
)
def test_without_saying_which_ran_only_gpus_that_are_all_alike_show_a_cell(
    file, monkeypatch, here, cells
):
    arch = "sm_90a" if H200 in here else "sm_80"
    _, report = recorded(file, monkeypatch, here, ran(7, variant=arch), None)
    assert [each.device for each in report.cells] == cells


def test_what_ran_on_the_host_of_a_machine_with_gpus_is_the_hosts(file, monkeypatch):
    place, report = recorded(file, monkeypatch, [H200], ran(7, host=True), ())
    assert (place, report.environment.gpus) == ("host", [])
    assert {(each.device, each.job) for each in report.cells} == {("host", "fuzz")}
    assert [each.gpu for each in report.campaigns] == [""]


def test_a_case_that_showed_nothing_leaves_its_cells_unverified(file, monkeypatch):
    blind = ran(1, host=True, blind=1)
    _, report = recorded(file, monkeypatch, [], blind, ())
    assert {(each.status, each.reason) for each in report.cells} >= {
        ("unverified", "only blind cases ran, measured model")
    }
    assert not report.disproven
