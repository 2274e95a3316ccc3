"""A failing case looked at: which mma went wrong first, and the case as a folder of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

lanecheck = pytest.importorskip("lanecheck")

from lanecheck import simt  # noqa: E402
from lanecheck.build import NO_OVERLAY, build_host  # noqa: E402
from lanecheck.cases import Case, parse  # noqa: E402
from lanecheck.errors import BadInput  # noqa: E402
from lanecheck.faults import catalogue  # noqa: E402
from lanecheck.reproduce import export  # noqa: E402
from lanecheck.tensorcore import model_for  # noqa: E402
from lanecheck.toolchain import Toolchain  # noqa: E402
from lanecheck.trace import Walk, first_wrong, trace, traced  # noqa: E402
from lanecheck.trial import Target, draw_inputs, keeps_workspace, launcher, schedule  # noqa: E402
from packed_gemv.subject import SUBJECT  # noqa: E402

REFERENCE = "packed_gemv.subject:SUBJECT"
SMALLEST = (
    "packed_gemv m=1 n=16 k=32 nw=1 u=1 s=1 dual=0 fused=0 bias=0 out=fp32 xpad=0 xoff=0 ypad=0 "
    "regime=small side=upper seed=0"
)
# Remainders everywhere: of tokens, rows, K, warps and trips.
WIDE = (
    "packed_gemv m=13 n=21 k=331 nw=3 u=2 s=2 dual=1 fused=0 bias=1 out=bf16 xpad=3 xoff=5 ypad=7 "
    "regime=special side=lower seed=7"
)
LINES = [
    SMALLEST,
    WIDE,
    "packed_gemv m=5 n=33 k=200 nw=2 u=4 s=1 dual=0 fused=0 bias=0 out=fp32 xpad=0 xoff=0 ypad=0 "
    "regime=normal side=upper seed=2",
    "packed_gemv m=64 n=7 k=31 nw=2 u=1 s=3 dual=1 fused=1 bias=0 out=fp32 xpad=0 xoff=1 ypad=0 "
    "regime=spread side=upper seed=3",
]


def target(variant: str = "plain", fault: str | None = None, *capabilities: str) -> Target:
    recipe = SUBJECT.recipe
    overlay = NO_OVERLAY
    if fault:
        overlay = catalogue.find(SUBJECT.faults, fault).inject(recipe.root)
    library = build_host(recipe, variant, Toolchain(), overlay).path
    return Target(REFERENCE, "host", capabilities or ("9.0",), library, variant)


# The walk ---------------------------------------------------------------------------------------


def walks_and_log(one: Case, row: int, host: Target) -> tuple[list[Walk], dict]:
    """What every warp of a row should hold, and what it held."""
    core = model_for(host.capabilities[0])
    walks = list(SUBJECT.walks(one.params, draw_inputs(SUBJECT, one), core, "y0", (0, row)))
    records, library = {}, simt.HostLibrary(host.library)
    for cta in {walk.cta for walk in walks}:
        with launcher(SUBJECT, one, host) as launch:
            library.log_mma((*cta, 0))
            assert not launch()
            records[cta] = library.mma_log()
            library.log_mma(limit=0)
    return walks, records


@pytest.mark.parametrize("capability", ["8.0", "9.0"])
@pytest.mark.parametrize("variant", ["plain", "hooks"])
@pytest.mark.parametrize("line", LINES)
def test_every_register_of_a_healthy_kernel_is_the_emulators(line, variant, capability) -> None:
    one = parse(line, SUBJECT)
    for row in range(0, int(one.params["n"]), 16):
        walks, records = walks_and_log(one, row, target(variant, None, capability))
        assert sum(len(walk.titles) for walk in walks) == sum(map(len, records.values())) > 0
        assert first_wrong(walks, records, ended=False) is None


@pytest.fixture(scope="module")
def wide() -> tuple[list[Walk], dict]:
    return walks_and_log(parse(WIDE, SUBJECT), 16, target())


def spoilt(
    records: Mapping, field: str, number: int, lane: int, register: int, value: object
) -> dict:
    """The log with another value in one register of warp 1 of CTA (1, 1)."""
    log = records[1, 1].copy()
    ((at,),) = np.nonzero((log["warp"] == 1) & (log["number"] == number))
    log[field][at, lane, register] = value
    return {**records, (1, 1): log}


def test_a_wrong_weight_has_its_place_and_that_of_what_is_there_instead(wide) -> None:
    walks, records = wide
    walk = next(walk for walk in walks if (walk.cta, walk.warp) == ((1, 1), 1))
    other = walk.registers["A"].data[3, 9, 2]
    said = first_wrong(walks, spoilt(records, "a", 6, 9, 0, other), ended=False)
    assert said.startswith(
        "mma 6 of warp 1, CTA (1, 1) (K block 8, token block 1, w1, step 0): lane 9 (g 2, t 1), "
        f"A register 0 holds 0x{other:08X} (w1[18, 270…271] = "
    ), said
    assert "expected" in said
    assert f"0x{walk.registers['A'].data[6, 9, 0]:08X} (w1[18, 264…265] = " in said


def test_a_wrong_accumulator_is_none_of_the_operands(wide) -> None:
    walks, records = wide
    said = first_wrong(walks, spoilt(records, "c", 8, 0, 1, 0.5), ended=False)
    assert "lane 0 (g 0, t 0), C register 1 holds 0x3F000000 (0.5), expected 0x" in said
    assert "(Σ w0[16] · x[1] = " in said
    assert said.endswith("; A and B are right, and this is not what they should have been added to")
    said = first_wrong(walks, spoilt(records, "d", 8, 0, 1, 0.5), ended=False)
    assert said.endswith("; A, B and C are right, and this is not their result")


def test_what_no_output_depends_on_may_be_anything(wide) -> None:
    walks, records = wide
    n, m = 21, 13  # the second row block has rows 16…20, the second token block tokens 8…12
    beyond = {"a": (4 * (n - 16), 0), "b": (4 * (m - 8), 0), "d": (4 * (n - 16), 0)}
    for field, (lane, register) in beyond.items():
        assert first_wrong(walks, spoilt(records, field, 4, lane, register, 1), ended=False) is None


def test_missing_mma_are_counted(wide) -> None:
    walks, records = wide
    log = records[1, 1]
    fewer = {**records, (1, 1): log[(log["warp"] != 1) | (log["number"] < 5)]}
    assert first_wrong(walks, fewer, ended=False) == (
        "warp 1, CTA (1, 1) executed 5 mma, expected 16: "
        "none from K block 8, token block 1, w0, step 1 on"
    )
    assert first_wrong(walks, fewer, ended=True) is None
    more = {**records, (1, 1): np.concatenate([log, log[log["warp"] == 1][-1:]])}
    assert first_wrong(walks, more, ended=False) == (
        "warp 1, CTA (1, 1) executed 17 mma, expected 16"
    )


# The trace --------------------------------------------------------------------------------------


def test_a_trace_names_the_first_wrong_register() -> None:
    said = list(trace(parse(SMALLEST, SUBJECT), target("plain", "swap-x-halves", "8.0", "9.0")))
    assert said[:3] == [
        "on 8.0: y0[0, 0] is -45 (0xC2340000), expected -5 (0xC0A00000) (16 of 16 elements differ)",
        "  y0[0, 0] is accumulator 0 of lane 0 (g 0, t 0), token block 0, CTA (0, 0)",
        "  mma 0 of warp 0, CTA (0, 0) (K block 0, token block 0, w0, step 0): lane 0 (g 0, t 0), "
        "B register 0 holds 0xBF80C000 (x[0, 4…5] = -2, -1), "
        "expected 0x408040A0 (x[0, 0…1] = 5, 4)",
    ]
    assert said[3:] == [said[0].replace("8.0", "9.0"), *said[1:3]]


def test_a_trace_of_a_fault_after_the_mma_says_which_sum_is_wrong() -> None:
    one = parse(WIDE.replace("special", "normal"), SUBJECT)
    _, place, after, *sums = trace(one, target("plain", "bf16-split-k-partials"))
    assert place.endswith("CTAs (0, 0…1)")
    assert after == "  each of the 88 mma is as expected: the fault is after them"
    assert sums[0].startswith("  slice 0, warp 0, K blocks 0…1: should sum to ")
    assert [line.partition(": ")[0] for line in sums[6:8]] == ["  slice 0", "  slice 1"]
    for line in sums[6:8]:
        assert "its warps should add up to" in line
        assert "; the workspace holds " in line
    assert sums[8].startswith("  the slices should add up to ")
    assert sums[9].startswith("  with the bias ")


@pytest.mark.parametrize("variant", ["plain", "asan"])
def test_a_trace_of_a_healthy_case_says_so(variant) -> None:
    said = traced(parse(WIDE, SUBJECT), target(variant, None, "8.0", "9.0"))
    assert said == [f"on {cc}: every bit is the predicted one" for cc in ("8.0", "9.0")]


# The export -------------------------------------------------------------------------------------


def exported(folder: Path, line: str, fault: str | None = None) -> Path:
    host = Target(REFERENCE, "host", ("8.0", "9.0"))
    overlay = NO_OVERLAY
    if fault:
        overlay = catalogue.find(SUBJECT.faults, fault).inject(SUBJECT.recipe.root)
    export(parse(line, SUBJECT), host, folder, f"lanecheck replay '{line}'", overlay)
    return folder


def test_an_export_reproduces_without_python(tmp_path) -> None:
    folders = [
        exported(tmp_path / "broken", SMALLEST, "swap-x-halves"),
        exported(tmp_path / "healthy", WIDE),
    ]
    bare = {"PATH": os.environ["PATH"]}
    builds = [
        subprocess.Popen(["sh", str(folder / "build.sh")], env=bare, cwd=tmp_path)
        for folder in folders
    ]
    assert [build.wait() for build in builds] == [0, 0]
    broken, healthy = (
        subprocess.run(["./host"], cwd=folder, env=bare, capture_output=True, text=True)
        for folder in folders
    )
    assert broken.returncode == 1
    assert broken.stdout.splitlines() == [
        f"{core}, launch {launch}: y0[0, 0] is -45 (0xC2340000), expected -5 (0xC0A00000) "
        "(16 elements differ)"
        for core in ("ampere", "hopper")
        for launch in (1, 2)
    ]
    assert (healthy.returncode, healthy.stdout) == (0, "every bit is the expected one\n")


def test_an_export_holds_the_line_the_values_and_the_fault(tmp_path) -> None:
    folder = exported(tmp_path / "case", WIDE, "swap-x-halves")
    assert f"lanecheck replay '{WIDE}'" in (folder / "README.txt").read_text()
    inputs = draw_inputs(SUBJECT, parse(WIDE, SUBJECT))
    x = np.fromfile(folder / "data" / "x.bin", "<u2").reshape(13, 331)
    np.testing.assert_array_equal(x, inputs["x"])
    for cc in ("8.0", "9.0"):
        core = model_for(cc)
        predicted = SUBJECT.predict(parse(WIDE, SUBJECT).params, inputs, core)
        for name, bits in predicted.items():
            file = folder / "data" / "expected" / core.name / f"{name}.bin"
            np.testing.assert_array_equal(np.fromfile(file, "<u2").reshape(13, 21), bits)
    assert (
        "mma16816(acc[mat][nb], a[mat][u][0], xv.z, xv.w)"
        in (folder / "kernel" / "gemv.cuh").read_text()
    )


@pytest.mark.parametrize("seed", [256, 257, 3, 514])
def test_an_export_goes_about_its_launches_as_a_trial_does(tmp_path, seed: int) -> None:
    line = re.sub(r"seed=\d+", f"seed={seed}", SMALLEST)
    text = (exported(tmp_path / "case", line) / "case.h").read_text()
    case = parse(line, SUBJECT)
    assert f"kWorkspaceStays = {str(keeps_workspace(case)).lower()};" in text
    for colour in range(2):
        how = schedule(case, colour)
        numbers = f"{how['schedule_seed']}u, {how['resident_ctas']}, {int(how['preempt'])}, "
        assert f"    {{{numbers}{how['poison_seed']}u}},\n" in text


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc on PATH")
def test_the_program_of_an_export_compiles_for_a_gpu(tmp_path) -> None:
    folder = exported(tmp_path / "case", WIDE)
    command = ["nvcc", "-std=c++17", "-Ikernel", "-c", "main.cpp", "-o", "main.o"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_export_overwrites_nothing(tmp_path) -> None:
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(BadInput, match="it is not an empty folder"):
        exported(tmp_path, SMALLEST)
    with pytest.raises(BadInput, match="it is not an empty folder"):
        exported(tmp_path / "mine", SMALLEST)
    assert os.listdir(tmp_path) == ["mine"]
