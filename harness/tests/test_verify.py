"""``lanecheck verify`` from end to end, on this repository's own kernel and on broken copies of it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from test_reports import TIERS

from lanecheck import gpu, matrix_file, sanitizer
from lanecheck.errors import CannotRun
from lanecheck.matrix import ALL, Row
from lanecheck.reports import model
from lanecheck.reports.model import Report, Status
from lanecheck.toolchain import Toolchain

REPOSITORY = Path(__file__).parents[2]
HOST_JOBS = ("build", "inspect", "fuzz")

pytestmark = pytest.mark.skipif(
    not (REPOSITORY / "kernel").is_dir(), reason="the harness alone is checked out"
)

#: A subject whose sources lie beside it, as a module for a worker to import.
COPY = """
from pathlib import Path
from types import SimpleNamespace

from lanecheck.real import Missing
from packed_gemv import recipe
from packed_gemv.subject import PackedGemv


class Copy(PackedGemv):
    faults = None
    recipe = SimpleNamespace(**vars(recipe) | {"root": Path(__file__).parent / "csrc"})

    def real(self, call):
        raise Missing("left out")


SUBJECT = Copy()
"""


def lanecheck(
    *words: str | Path, cwd: Path = REPOSITORY, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lanecheck", *map(str, words)],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def compilers() -> None:
    tools = Toolchain(install=False)
    try:
        tools.nvcc, tools.cuobjdump, tools.cxx  # noqa: B018
    except CannotRun as reason:
        pytest.skip(str(reason))


def copied(folder: Path, old: str = "", new: str = "") -> Path:
    """A folder with a matrix of one arch and a subject whose ``gemv.cuh`` may have one change."""
    from packed_gemv import recipe

    shutil.copytree(recipe.root, folder / "csrc")
    source = folder / "csrc" / "gemv.cuh"
    if old:
        text = source.read_text()
        assert text.count(old) == 1, old
        source.write_text(text.replace(old, new))
    (folder / "copied.py").write_text(COPY)
    (folder / "matrix.yaml").write_text(SMALL)
    return folder


SMALL = (
    """\
schema: 1
subject: copied:SUBJECT
archs:
  sm_90a:
    {gencode: ["arch=compute_90a,code=sm_90a"], loads_on: ["9.0"], min_ctk: "12.0", role: native}
devices:
  host: {mma: ["9.0"], runner: [ubuntu], pool: 1}
  h100: {cc: "9.0", runner: [gpu-h100], pool: 0, datasheet_gbps: 3350}
jobs:
  build: {column: built, budget: 5m}
  inspect: {column: inspected, budget: 2m}
  fuzz: {column: host-fuzzed, budget: 5m}
  silicon: {column: on silicon, gpu: true, budget: 5m}
"""
    + TIERS
)


# A healthy kernel -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def healthy(
    compilers: None, tmp_path_factory: pytest.TempPathFactory
) -> tuple[subprocess.CompletedProcess[str], Path]:
    file = tmp_path_factory.mktemp("verify") / "report.json"
    return lanecheck("verify", "--cases", "300", "--json", file), file


@pytest.fixture(scope="module")
def shown(healthy: tuple[subprocess.CompletedProcess[str], Path]) -> Report:
    done, file = healthy
    assert done.returncode == 0, done.stdout + done.stderr
    return model.read(file)


def only_signs_of_life(said: str) -> bool:
    """Whether standard error holds nothing but how far a step is, as on a slow machine."""
    return all(re.fullmatch(r"[\w ,]+: [\d,]+( of [\d,]+)?.*", line) for line in said.splitlines())


def test_a_healthy_kernel_is_disproven_by_nothing(healthy):
    done, file = healthy
    assert done.returncode == 0, done.stdout + done.stderr
    assert only_signs_of_life(done.stderr)
    assert "nothing disproven: " in done.stdout
    assert f"report: {file}" in done.stdout
    assert "\x1b" not in done.stdout


def test_its_report_is_valid_by_the_schema(healthy):
    report = json.loads(healthy[1].read_text())
    jsonschema.validate(report, json.loads(model.SCHEMA.read_text()))


def test_every_host_cell_is_verified(shown):
    archs = matrix_file.load(REPOSITORY / "matrix.yaml").archs
    cells = {(cell.arch, cell.job): cell.status for cell in shown.cells if cell.device == "host"}
    assert cells == {(arch, job): Status.VERIFIED for arch in archs for job in HOST_JOBS}


@pytest.mark.skipif(bool(gpu.detect()), reason="there is a GPU here")
def test_what_needs_a_gpu_is_unverified_with_a_reason(shown):
    cells = [cell for cell in shown.cells if cell.device != "host"]
    assert {cell.job for cell in cells} == {"silicon", "bench"}
    assert {(cell.status, cell.reason) for cell in cells} == {
        (Status.UNVERIFIED, "no GPU on this machine")
    }


def test_every_cell_of_the_matrix_is_in_the_report(shown):
    loaded = matrix_file.load(REPOSITORY / "matrix.yaml")
    everything = loaded.row_cells(Row(jobs=(ALL,), archs=(ALL,), devices=(ALL,)))
    assert sorted(map(str, everything)) == sorted(
        f"{cell.arch}/{cell.device}/{cell.job}" for cell in shown.cells
    )


def test_every_fault_is_noticed(shown):
    assert [fault.id for fault in shown.faults if not (fault.killed or fault.excused)] == []
    assert {fault.kind for fault in shown.faults if fault.excused} == {"asm"}
    noticed = {fault.id: fault.noticed for fault in shown.faults}
    assert len(noticed) >= 20
    assert {"integers", "bits", "probes"} <= noticed["swap-x-halves"].keys()


def test_no_control_is_flagged(shown, healthy):
    assert [control.id for control in shown.controls if not control.clean] == []
    assert {control.expect for control in shown.controls} == {"reordered", "pass"}
    faults, controls = len(shown.faults), len(shown.controls)
    caught = sum(fault.killed for fault in shown.faults)
    assert f"{caught} of {faults} faults caught" in healthy[0].stdout
    assert f"{controls} of {controls} controls clean" in healthy[0].stdout


def test_the_first_rung_of_each_failing_case_is_counted_once(shown):
    for fault in shown.faults:
        assert max(fault.noticed.values(), default=0) <= sum(fault.rung.values()) <= fault.cases


def test_every_case_was_judged(shown):
    plain, hooks, asan, *_ = shown.campaigns
    assert [record.variant for record in (plain, hooks, asan)] == ["plain", "hooks", "asan"]
    for record in (plain, hooks, asan):
        assert record.cases == 300
        assert record.judged["execution"] == 600  # once a tensor core model
        assert record.launches == 1200  # under two colours of poison
        assert record.judged["integers"] > 0


def test_a_fault_is_replayed_from_the_line_of_the_report(shown):
    (fault,) = (fault for fault in shown.faults if fault.id == "swap-x-halves")
    for failure in fault.first:
        done = lanecheck("replay", "--fault", "swap-x-halves", failure.line)
        assert done.returncode == 1
        assert f"fail {failure.oracle}" in done.stdout
        done = lanecheck("replay", failure.line)
        assert done.returncode == 0, done.stdout


# A broken one ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mistaken(compilers: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    old, new = (
        "mma16816(acc[mat][nb], a[mat][u][0], xv.x, xv.y)",
        "mma16816(acc[mat][nb], a[mat][u][0], xv.y, xv.x)",
    )
    return copied(tmp_path_factory.mktemp("mistaken"), old, new)


def test_a_broken_kernel_is_disproven_and_every_line_shows_it_again(mistaken):
    done = lanecheck("verify", "--cases", "40", "--json", "report.json", cwd=mistaken)
    assert done.returncode == 1, done.stdout + done.stderr
    assert only_signs_of_life(done.stderr)
    assert done.stdout.endswith("disproven\n")
    commands = re.findall(r"^lanecheck (replay .*)$", done.stdout, re.MULTILINE)
    assert len(commands) == 5
    for command in commands[:2]:
        again = lanecheck(*shlex.split(command), cwd=mistaken)
        assert again.returncode == 1, again.stdout + again.stderr
        assert re.search(r"^fail (bits|integers)", again.stdout, re.MULTILINE)
    report = model.read(mistaken / "report.json")
    assert report.disproven
    assert {cell.job: cell.status.value for cell in report.cells if cell.device == "host"} == {
        "build": "verified",
        "inspect": "verified",
        "fuzz": "disproven",
    }


def test_what_a_sanitizer_says_is_the_evidence_and_does_not_flood(compilers, tmp_path):
    old = "const int rb = blockIdx.x, sidx = blockIdx.y;"
    new = "const int rb = blockIdx.x + ((-1 - (int)blockIdx.x) << 3 & 0), sidx = blockIdx.y;"
    folder = copied(tmp_path, old, new)
    done = lanecheck("fuzz", "--variant", "asan", "--cases", "2", cwd=folder)
    assert done.returncode == 1
    assert done.stderr == ""
    said = re.findall(r"process on 9.0: crash: (.*)", done.stdout)
    assert said
    assert re.fullmatch(r"gemv\.cuh:\d+: runtime error: left shift of negative value -\d+", said[0])
    (command,) = re.findall(r"^lanecheck (replay .*)$", done.stdout, re.MULTILINE)[:1]
    assert command.startswith("replay --variant asan ")
    again = lanecheck(*shlex.split(command), cwd=folder)
    assert (again.returncode, again.stderr) == (1, "")
    assert said[0] in again.stdout


def test_the_first_error_of_a_report():
    asan = """\
==7==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x60 at pc 0x7f bp 0x7f sp 0x7f
WRITE of size 4 at 0x60 thread T0
    #0 0x7f in memset (/lib/libasan.so.8+0x1)
    #1 0x7f in void trip<1>(int) /src/csrc/gemv.cuh:77
"""
    place = "gemv.cuh:77: AddressSanitizer: heap-buffer-overflow"
    assert sanitizer.first_error(asan) == place
    assert sanitizer.first_error(asan.splitlines()[0]) == "AddressSanitizer: heap-buffer-overflow"
    assert sanitizer.first_error("Fatal Python error: Segmentation fault") is None


# Cells that must be verified ------------------------------------------------------------------


@pytest.mark.skipif(bool(gpu.detect()), reason="there is a GPU here")
def test_a_required_cell_that_cannot_be_verified_here(compilers, tmp_path):
    words = ("--cases", "20", "--json", "report.json", "--require", "*/h100/*,*/host/build")
    done = lanecheck("verify", *words, cwd=copied(tmp_path))
    assert done.returncode == 3, done.stdout
    assert done.stderr == (
        "lanecheck: required but not verified: sm_90a/h100/silicon (no GPU on this machine)\n"
    )
    assert not model.read(tmp_path / "report.json").disproven


#: An arch that loads where no tensor core has a model.
UNMODELLED = """\
archs:
  ptx_80:
    {gencode: ["arch=compute_80,code=compute_80"], loads_on: ["8.7"], min_ctk: "11.0", role: fallback}
"""


def test_what_could_not_be_run_is_neither_disproven_nor_a_success(compilers, tmp_path):
    folder = copied(tmp_path)
    for name, old, new in (
        ("copied.py", "import Missing", "import RealRun"),
        ("copied.py", 'raise Missing("left out")', 'return RealRun("Silent", 0, [])'),
        ("matrix.yaml", "archs:\n", UNMODELLED),
    ):
        text = (folder / name).read_text()
        assert text.count(old) == 1
        (folder / name).write_text(text.replace(old, new))
    done = lanecheck("verify", "--cases", "20", "--json", "report.json", cwd=folder)
    assert done.returncode == 3, done.stdout + done.stderr
    assert (
        "!! real weights           Silent: 0 layers, 0 calls, 0 failing: no case ran" in done.stdout
    )
    assert done.stderr.endswith(
        "lanecheck: real weights: Silent: 0 layers, 0 calls, 0 failing: no case ran\n"
    )
    report = model.read(folder / "report.json")
    assert not report.disproven
    assert [step.title for step in report.failed] == ["real weights"]
    fuzzed = {cell.arch: (cell.status, cell.reason) for cell in report.cells if cell.job == "fuzz"}
    assert fuzzed["sm_90a"][0] is Status.VERIFIED
    assert fuzzed["ptx_80"] == (Status.UNVERIFIED, "no model of the tensor core of 8.7")


# Machines that lack something -----------------------------------------------------------------


def bare(folder: Path, *programs: str) -> str:
    """A PATH with nothing but these programs and what they need themselves."""
    folder.mkdir()
    for name in ("sh", "git", *programs):
        (folder / name).symlink_to(found := shutil.which(name) or pytest.skip(f"no {name}"))
        assert found
    return str(folder)


def refused(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line on standard error."""
    assert done.returncode == code, done.stdout + done.stderr
    assert re.fullmatch(r"lanecheck: .*\n", done.stderr), done.stderr
    return done.stderr


#: The command line on a machine where no CUDA program is to be found.
NO_CUDA = """
from lanecheck import cli, toolchain
toolchain.candidates = lambda name, environment: iter(())
cli.main()
"""


def test_without_nvcc_and_network(tmp_path):
    cache = tmp_path / "cache"
    words = ("verify", "--cases", "10", "--json", str(tmp_path / "report.json"))
    done = subprocess.run(
        [sys.executable, "-c", NO_CUDA, *words],
        cwd=REPOSITORY,
        env=os.environ
        | {"LANECHECK_CACHE": str(cache), "LANECHECK_NVCC": ""}
        | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
    )
    said = refused(done, 3)
    assert "nvcc cannot be installed (ERROR: " in said
    assert said.endswith("set CUDA_HOME, or run once with a network to fetch nvcc\n")
    assert not (tmp_path / "report.json").exists()
    assert [file.name for file in cache.rglob("*") if file.suffix != ".lock"] == ["toolchain"]


def test_without_a_host_compiler(compilers, tmp_path):
    nvcc, cache = Toolchain(install=False).nvcc, tmp_path / "cache"
    done = lanecheck(
        "verify",
        *("--cases", "10", "--json", tmp_path / "report.json"),
        PATH=bare(tmp_path / "bin"),
        LANECHECK_CACHE=str(cache),
        LANECHECK_NVCC=str(nvcc),
        CXX="",
    )
    said = refused(done, 3)
    assert said == "lanecheck: no C++ compiler here: install g++ or clang++, or set CXX to one\n"
    assert not (tmp_path / "report.json").exists()
    assert [file for file in cache.rglob("*") if file.is_file() and file.suffix != ".lock"] == []


def test_an_arch_that_the_toolkit_does_not_know(compilers, tmp_path):
    text = (
        SMALL.replace("90a", "190a")
        .replace('"9.0"]', '"19.0"]')
        .replace('mma: ["19.0"]', 'mma: ["9.0"]')
    )
    (tmp_path / "matrix.yaml").write_text(text.replace("copied:", "packed_gemv.subject:"))
    done = lanecheck("verify", "--json", "report.json", cwd=tmp_path)
    said = refused(done, 2)
    assert "cannot build arch sm_190a: it does not know compute_190, sm_190: set CUDA_HOME" in said
    assert os.listdir(tmp_path) == ["matrix.yaml"]


# GPUs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("product", "cc", "devices"),
    [
        ("NVIDIA H200", "9.0", ["h200"]),
        ("NVIDIA A100-SXM4-80GB", "8.0", ["a100"]),
        ("NVIDIA GeForce RTX 3090", "8.6", ["rtx3090"]),
        ("NVIDIA GeForce RTX 3090 Ti", "8.6", []),
        ("NVIDIA L4", "8.9", ["l4"]),
        ("NVIDIA L40S", "8.9", []),
        ("NVIDIA GeForce RTX 4090", "8.9", ["rtx4090"]),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "8.9", []),
        ("NVIDIA GeForce RTX 4090 D", "8.9", []),
    ],
)
def test_a_product_is_the_device_of_its_whole_name(product, cc, devices):
    shipped = matrix_file.load(REPOSITORY / "matrix.yaml")
    assert list(gpu.matched([gpu.Gpu(product, cc, "GPU-0")], shipped)) == devices
