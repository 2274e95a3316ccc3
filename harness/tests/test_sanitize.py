"""``lanecheck sanitize`` where no GPU is: reports are read, cases are launched, mistakes are one line."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import second_subject
import test_cli
import test_cuda_memory
from test_cli import KERNEL

from lanecheck import cases, compute_sanitizer, sanitized
from lanecheck.cli import sanitize
from lanecheck.compute_sanitizer import Checked, Finding, Reading, read
from lanecheck.covering import FIRST, covering
from lanecheck.cuda_driver import Driver
from lanecheck.errors import CannotRun
from lanecheck.gpu import Gpu
from lanecheck.trial import Target

checkout, library = test_cli.checkout, test_cuda_memory.library

# Covering -------------------------------------------------------------------------------------


class TwoWays(second_subject.Matmul):
    def kernel_of(self, params: Any) -> tuple[int | str, ...]:
        return (params["m"], params["out"])


def test_of_a_subject_that_tells_no_ways_apart_the_first_cases_cover():
    chosen = covering(second_subject.SUBJECT, 7)
    assert chosen == [cases.case(second_subject.SUBJECT, 7, index) for index in range(FIRST)]


def test_every_way_is_covered_by_the_first_case_that_takes_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lanecheck.covering.FIRST", 0)
    monkeypatch.setattr("lanecheck.covering.DRAWS", 400)
    chosen = covering(TwoWays(), 7)
    ways = [TwoWays().kernel_of(one.params) for one in chosen]
    assert len(ways) == len(set(ways)) == 12
    assert chosen[0] == cases.case(TwoWays(), 7, 0)


# Reports --------------------------------------------------------------------------------------

CASES = """\
========= COMPUTE-SANITIZER
lanecheck: case 0 x=0x7f0000000000+192 y0=0x7f0000001e00+28
lanecheck: case 1 x=0x7f0000000000+6000 y0=0x7f0000004400+6904
"""
REPORTS = {
    "Invalid __global__ read of size 16 bytes at gemv.cuh:64 (byte x+6000, size 6000)": """\
========= Invalid __global__ read of size 16 bytes
=========     at __ldg(const uint4 *)+0xc90 in sm_32_intrinsics.hpp:131
=========     by thread (27,0,0) in block (0,0,0)
=========     Access to 0x7f0000001770 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f0000000000 of size 6,000 bytes
=========         Device Frame: load_x<(bool)1>(const __nv_bfloat16 *, int, int)+0xc90 in gemv.cuh:64
=========         Device Frame: gemv_kernel<(int)1>(Params)+0x80 in gemv.cuh:167
=========
========= Program hit CUDA_ERROR_LAUNCH_FAILED (error 719) due to "unspecified launch failure".
=========
lanecheck: failed cuCtxSynchronize: CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure)
========= Target application returned an error
========= ERROR SUMMARY: 3 errors
""",
    "Invalid __shared__ write of size 4 bytes at gemv.cuh:174": """\
========= Invalid __shared__ write of size 4 bytes
=========     at void gemv_kernel<(int)1, (bool)1>(Params)+0xab0 in gemv.cuh:174
=========     by thread (32,0,0) in block (0,0,0)
=========     Access to 0xa00 is out of bounds
=========
========= ERROR SUMMARY: 3 errors
""",
    "Error: Race reported between Read access at gemv.cuh:186 and gemv.cuh:174": """\
========= Error: Race reported between Read access at void k<(int)1>(Params)+0xc80 in gemv.cuh:186
=========     and Write access at void k<(int)1>(Params)+0xad0 in gemv.cuh:174 [128 hazards]
=========     and Write access at void k<(int)1>(Params)+0xb30 in gemv.cuh:188 [128 hazards]
=========
lanecheck: done
========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)
""",
    "Uninitialized __global__ memory read of size 4 bytes at device_atomic_functions.hpp:112 "
    "(byte y0+6900, size 6904)": """\
========= Uninitialized __global__ memory read of size 4 bytes
=========     at atomicAdd(unsigned int *, unsigned int)+0x2360 in device_atomic_functions.hpp:112
=========     by thread (0,0,0) in block (2,1,0)
=========     Address 0x7f0000005ef4
=========
lanecheck: done
========= ERROR SUMMARY: 3 errors
""",
    "Uninitialized access on access by cudaMemcpy source (byte y0+16, size 6904)": """\
========= Host API memory access error at host access to 0x7f0000004410 of size 14 bytes
=========     Uninitialized access to 0x7f0000004400 on access by cudaMemcpy source
=========
lanecheck: done
========= ERROR SUMMARY: 3 errors
""",
    "Barrier error detected. Divergent thread(s) in block at gemv.cuh:178": """\
========= Barrier error detected. Divergent thread(s) in block.
=========     at gemv_kernel<(int)1>(Params)+0xb10 in gemv.cuh:178
=========     by thread (0,0,0) in block (0,0,0)
=========
lanecheck: done
========= ERROR SUMMARY: 3 errors
""",
}


@pytest.mark.parametrize("evidence", REPORTS)
def test_a_finding_is_the_tool_s_first_line_its_place_and_the_byte(evidence: str):
    reading = read(CASES + REPORTS[evidence], {"gemv.cuh"})
    assert reading.finding == Finding(1, evidence)
    assert reading.errors == 3
    assert reading.done == ("lanecheck: done" in REPORTS[evidence])


@pytest.mark.parametrize("summary", ["ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards (0)"])
def test_a_clean_report_has_no_finding(summary: str):
    output = f"{CASES}lanecheck: done\n========= {summary}\n"
    assert read(output) == Reading(done=True, errors=0, finding=None)


def test_a_launch_that_fails_is_a_finding():
    output = f"{CASES}lanecheck: failed returned CUDA error 9\n========= ERROR SUMMARY: 0 errors\n"
    assert read(output).finding == Finding(1, "returned CUDA error 9")


def test_a_report_without_a_summary_has_no_count():
    assert read(CASES) == Reading(done=False, errors=None, finding=None)


# The watched process, and the tools around it ----------------------------------------------------

#: A subject whose launch is on the device: it refuses one k, and is given addresses and nothing else.
ON_DEVICE = """
from pathlib import Path
from types import SimpleNamespace

from second_subject import FATAL_K, Matmul


class OnDevice(Matmul):
    recipe = SimpleNamespace(root=Path(__file__).parent)

    def launch(self, library, params, buffers, stream):
        assert stream
        assert all(buffer.elements is None for buffer in buffers.values())
        return "returned CUDA error 9" if params["k"] == FATAL_K else None


SUBJECT = OnDevice()
"""

#: A compute-sanitizer: five rows are a race, a third case is an uninitialised read, synccheck never says.
TOOL = """#!{python}
import subprocess, sys

tool, command = sys.argv[2], sys.argv[sys.argv.index({python!r}) :]
lines = open(command[-1]).read().splitlines()
print("========= COMPUTE-SANITIZER")
done = subprocess.run(command, capture_output=True, text=True)
found = 0
for said in done.stdout.splitlines():
    print(said)
    number = said.split()[2] if " case " in said else None
    if number and " m=5 " in lines[int(number)] and tool == "racecheck":
        print("========= Error: Race reported between Read access at k(int)+0x80 in on_device.py:7")
        print("=========     and Write access at k(int)+0x60 in on_device.py:3 [4 hazards]")
        found += 1
    if number and int(number) > 1 and tool == "initcheck":
        print("========= Uninitialized __global__ memory read of size 4 bytes")
        found += 1
print(done.stderr)
if tool != "synccheck":
    print("========= ERROR SUMMARY:", found, "errors")
"""


@pytest.fixture
def target(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """The subject above on the fake driver, in this process and in its children."""
    (tmp_path / "on_device.py").write_text(ON_DEVICE)
    monkeypatch.syspath_prepend(tmp_path)
    folders = (tmp_path, Path(second_subject.__file__).parent, os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path(library).parent))
    monkeypatch.setattr(Driver.__init__, "__defaults__", (0, library))
    return Target("on_device:SUBJECT", "cuda", ("9.0",), Path(library), "sm_90a")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "compute-sanitizer"
    path.write_text(TOOL.format(python=sys.executable))
    path.chmod(0o755)
    return path


def line(**axes: int | str) -> str:
    usual = {"m": 3, "n": 4, "k": 6, "out": "bf16", "xoff": 3, "ypad": 2, "regime": "small"}
    params = {**usual, "side": "upper", "seed": 9, **axes}
    return " ".join(["matmul", *(f"{name}={value}" for name, value in params.items())])


def watch(target: Target, tmp_path: Path, *lines: str) -> int:
    (tmp_path / "lines").write_text("\n".join(lines))
    return sanitized.main([target.subject, str(target.library), str(tmp_path / "lines")])


def test_each_case_is_announced_with_the_bounds_of_its_tensors(target, tmp_path, capsys):
    assert watch(target, tmp_path, line(), line(xoff=0)) == 0
    first, second, done = capsys.readouterr().out.splitlines()
    assert re.sub(r"0x[0-9a-f]+", "", first) == "lanecheck: case 0 x=+42 w=+48 y=+32"
    assert second.startswith("lanecheck: case 1 x=0x")
    assert done == "lanecheck: done"


def test_only_elements_are_given_to_the_device(target, tmp_path, monkeypatch):
    given: list[tuple[int, int]] = []
    upload = Driver.upload
    monkeypatch.setattr(
        Driver,
        "upload",
        lambda self, to, row: given.append((to, row.nbytes)) or upload(self, to, row),
    )
    watch(target, tmp_path, line(xoff=3))
    (x, x_bytes), (_, w_bytes) = given
    assert x % 256 == 3 * 2
    assert (x_bytes, w_bytes) == (3 * 6 * 2, 4 * 6 * 2)


def test_a_failed_launch_ends_the_process(target, tmp_path, capsys):
    assert watch(target, tmp_path, line(k=second_subject.FATAL_K), line()) == 1
    assert capsys.readouterr().out.splitlines()[1:] == ["lanecheck: failed returned CUDA error 9"]


def test_a_finding_comes_with_its_case_and_is_looked_for_in_it_alone(target, program):
    lines = [line(m=2), line(m=4), line(m=5), line(m=6)]
    tools = ["memcheck", "racecheck", "initcheck"]
    clean, race, unread = compute_sanitizer.check(program, tools, target, lines)
    assert clean == Checked("memcheck", 4, 0)
    assert (race.line, race.errors) == (line(m=5), 1)
    assert (
        race.evidence
        == "Error: Race reported between Read access at on_device.py:7 and on_device.py:3"
    )
    assert (unread.line, unread.errors) == (line(m=5), 2)
    assert unread.evidence.endswith("memory read of size 4 bytes; not by this case alone")


def test_a_tool_without_a_verdict_is_not_a_clean_one(target, program):
    with pytest.raises(CannotRun, match="synccheck came to no verdict: lanecheck: done"):
        compute_sanitizer.check(program, ["synccheck"], target, [line()])


def test_a_device_that_the_tools_do_not_know_is_one_clear_line(target, program):
    program.write_text("#!/bin/sh\necho '========= Error: Device not supported. Please refer'\n")
    with pytest.raises(CannotRun, match="does not work on this machine: Device not supported"):
        compute_sanitizer.check(program, ["memcheck"], target, [line()])


def test_a_hang_is_a_finding_in_the_case_that_hangs(target, program, monkeypatch):
    monkeypatch.setattr(compute_sanitizer, "TIME_LIMIT", 0.5)
    program.write_text("#!/bin/sh\necho 'lanecheck: case 0'; echo 'lanecheck: case 1'; sleep 60\n")
    (hang,) = compute_sanitizer.check(program, ["memcheck"], target, [line(), line(m=2)])
    assert (hang.line, hang.evidence) == (line(m=2), "no end within 0.5 s")


def test_the_program_is_found_beside_a_toolkit_and_missed_with_a_remedy(tmp_path, program):
    (tmp_path / "bin").mkdir()
    beside = program.rename(tmp_path / "bin" / program.name)
    assert compute_sanitizer.find({"CUDA_HOME": str(tmp_path), "PATH": ""}) == beside
    beside.chmod(0o644)
    with pytest.raises(
        CannotRun, match="no compute-sanitizer .* pip install nvidia-cuda-sanitizer"
    ):
        compute_sanitizer.find({"CUDA_HOME": str(tmp_path), "PATH": ""})


# The command ----------------------------------------------------------------------------------

MISTAKES = {
    "--device tpu": "--device is host or cuda, not 'tpu'",
    "--tool nope": "--tool 'nope' is unknown; known: memcheck, racecheck, initcheck, synccheck",
    "--line other": "the line is of subject 'other'",
    "--cases 0": "Invalid value for '--cases': ",
    "--subject second_subject:SUBJECT": "'matmul' is a callable: there is nothing to build",
}


@KERNEL
@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(words, lanecheck, checkout):
    code, said, complaint = lanecheck("sanitize", *words.split())
    assert (code, said) == (2, "")
    assert MISTAKES[words] in complaint
    assert complaint.count("\n") == 1


@KERNEL
def test_without_a_gpu_the_gpu_s_part_cannot_run(lanecheck, checkout, monkeypatch):
    monkeypatch.setattr(sanitize.gpu, "detect", lambda: [])
    code, _, complaint = lanecheck("sanitize", "--device", "cuda")
    assert code == 3
    assert "no GPU on this machine loads an arch of matrix.yaml" in complaint


H200 = [Gpu("NVIDIA H200", "9.0", "GPU-1")]


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> list[Checked]:
    """A machine with a GPU, whose tools say what this list holds."""
    said: list[Checked] = []
    built = Target("packed_gemv.subject:SUBJECT", "cuda", ("9.0",), Path("lib.so"), "sm_90a")
    monkeypatch.setattr(sanitize.gpu, "detect", lambda: H200)
    monkeypatch.setattr(sanitize.compute_sanitizer, "find", lambda: Path("compute-sanitizer"))
    monkeypatch.setattr(sanitize, "read_target", lambda *words: built)
    monkeypatch.setattr(sanitize.compute_sanitizer, "check", lambda *words: said)
    monkeypatch.setattr(sanitize, "covering", lambda *words: [])
    return said


@KERNEL
def test_a_finding_fails_and_comes_with_the_command_that_shows_it(
    on_gpu,
    lanecheck,
    checkout,
):
    on_gpu += [
        Checked("memcheck", 836, 0),
        Checked("racecheck", 836, 3, "packed_gemv m=1", "Race reported at gemv.cuh:1"),
    ]
    code, said, _ = lanecheck("sanitize", "--device", "cuda", "--fault", "read-past-k")
    assert code == 1
    assert [" ".join(text.split()) for text in said.splitlines()] == [
        "ok memcheck, sm_90a 836 cases, 0 errors",
        "!! racecheck, sm_90a 836 cases, 3 errors",
        "lanecheck sanitize --device cuda --tool racecheck --fault read-past-k --arch sm_90a "
        "--line 'packed_gemv m=1'",
        "racecheck: Race reported at gemv.cuh:1",
    ]


@KERNEL
def test_clean_tools_are_exit_code_0(on_gpu, lanecheck, checkout):
    on_gpu.append(Checked("memcheck", 836, 0))
    assert lanecheck("sanitize", "--device", "cuda", "--tool", "memcheck")[0] == 0


@KERNEL
def test_on_the_host_both_checking_builds_fuzz(lanecheck, monkeypatch):
    monkeypatch.setattr(sanitize.gpu, "detect", lambda: [])
    code, said, _ = lanecheck("sanitize", "--cases", "25")
    titles = re.findall(r"^ok fuzz on host, (\w+) +25 cases", said, re.MULTILINE)
    assert (code, titles) == (0, ["asan", "hooks"])


@KERNEL
def test_what_the_tools_cannot_do_fails_only_where_they_are_asked_for(
    on_gpu, lanecheck, checkout, monkeypatch
):
    def refuse(*words: Any) -> list[Checked]:
        raise CannotRun("Device not supported")

    monkeypatch.setattr(sanitize, "_VARIANTS", ())
    monkeypatch.setattr(sanitize.compute_sanitizer, "check", refuse)
    code, said, _ = lanecheck("sanitize")
    assert (code, said.split()) == (0, ["--", "compute-sanitizer", "Device", "not", "supported"])
    code, _, complaint = lanecheck("sanitize", "--device", "cuda")
    assert (code, complaint) == (3, "lanecheck: Device not supported\n")
