"""Inspection: what is read from a binary, and what is held against it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from small_kernel import ARCHS, LOAD, MMA, SmallRecipe, cuda_toolchain

from lanecheck.build import Built, build_all, build_device
from lanecheck.errors import BadInput, CannotRun
from lanecheck.inspect import (
    Function,
    Inspection,
    Spills,
    Usage,
    inspect,
    judge,
    parse_cuobjdump,
    parse_ptxas,
    wrong_codes,
)

# What the tools print

LISTING = """
Fatbin elf code:
================
arch = sm_100f
code version = [1,8]
host = linux
compile_size = 64bit

Resource usage:
 Common:
  GLOBAL:0

\tcode for sm_100f
\t.target\tsm_100f

Fatbin elf code:
================
arch = sm_100f
code version = [1,8]

Resource usage:
 Common:
  GLOBAL:0
 Function _Z4gemmPf:
  REG:32 STACK:8 SHARED:1536 LOCAL:0 CONSTANT[0]:924 TEXTURE:0 SURFACE:0 SAMPLER:0

\tcode for sm_100f
\t.target\tsm_100f

\t\tFunction : _Z4gemmPf
\t.headerflags\t@"EF_CUDA_SM100"
        /*0000*/                   LDC R1, c[0x0][0x37c] ;            /* 0x0000df00ff017b82 */
                                                                      /* 0x000fe20000000800 */
        /*0010*/              @!P0 LDG.E.128.CONSTANT  R4, desc[UR4][R2.64] ;  /* 0x00 */
        /*0020*/                   HMMA.16816.F32.BF16 R8, R4, R12, R8 ;       /* 0x00 */
\t\t..........

Fatbin ptx code:
================
arch = sm_80
code version = [9,0]
compressed
ptxasOptions = -v
"""

LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z4gemmPf' for 'sm_100f'
ptxas info    : Function properties for _Z4gemmPf
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 8 bytes cumulative stack size, 512 bytes smem
ptxas info    : Compile time = 17.012 ms
ptxas info    : Function properties for _Z6helperf
    0 bytes stack frame, 2 bytes spill stores, 0 bytes spill loads
"""


def test_cuobjdump_tells_codes_sizes_and_instructions():
    _, entry, ptx = parse_cuobjdump(LISTING)
    assert (entry.code, ptx.code) == ("sm_100f", "compute_80")
    assert entry.usage == {"_Z4gemmPf": Usage(registers=32, stack=8, shared=1536)}
    assert entry.sass["_Z4gemmPf"] == (
        "LDC R1, c[0x0][0x37c]",
        "@!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64]",
        "HMMA.16816.F32.BF16 R8, R4, R12, R8",
    )
    assert ptx.sass == {}


def test_ptxas_tells_spills_and_which_functions_are_kernels():
    assert parse_ptxas(LOG) == {
        ("sm_100f", "_Z4gemmPf"): Spills(kernel=True, spill_stores=4, spill_loads=12, shared=512),
        ("sm_100f", "_Z6helperf"): Spills(kernel=False, spill_stores=2, spill_loads=0),
    }


def test_nothing_in_nothing_out():
    assert parse_cuobjdump("") == []
    assert parse_ptxas("") == {}


# Rules


def function(name: str = "f", **changes) -> Function:
    healthy = Function(
        name=name,
        code="sm_80",
        registers=32,
        stack=0,
        shared=0,
        spill_stores=0,
        spill_loads=0,
        instructions={"HMMA": 4},
        sass_sha256="",
    )
    return healthy.model_copy(update=changes)


def test_healthy_functions_have_no_problems():
    assert list(judge([function("f"), function("g")], ["HMMA"])) == []


def test_no_function_is_a_problem():
    assert list(judge([], [])) == ["the library holds no kernel"]


def test_spills_name_the_worst():
    functions = [function("f"), function("g", spill_stores=4), function("h", spill_loads=8)]
    (problem,) = judge(functions, [], names={"h": "gemm<1>"})
    assert problem == (
        "sm_80: registers spill in 2 of 3 kernels, first gemm<1> (0 bytes stored, 8 loaded)"
    )


def test_unknown_spills_are_a_problem():
    (problem,) = judge([function(spill_stores=None, spill_loads=None)], [])
    assert problem.startswith("sm_80: spills unknown in 1 of 1 kernels, first f: compile with")


def test_each_code_is_judged_by_itself():
    functions = [function("f"), function("f", code="sm_90a", instructions={"HMMA": 0})]
    (problem,) = judge(functions, ["HMMA"])
    assert problem == "sm_90a: no instruction matches 'HMMA' in 1 of 1 kernels, first f"


def test_codes_that_are_absent_or_were_not_asked_for():
    assert list(wrong_codes(ARCHS["sm_90a"], ["sm_90a", "sm_90a"])) == []
    assert list(wrong_codes(ARCHS["sm_90a"], ["sm_80"])) == [
        "sm_90a: sm_90a was asked for and is not in the library: sm_80 is",
        "sm_90a: sm_80 is in the library and was not asked for: sm_90a was",
    ]
    (absent,) = wrong_codes(ARCHS["ptx_80"], [])
    assert absent == "ptx_80: compute_80 was asked for and is not in the library: nothing is"


# Real binaries

NO_MMA = ("multiply(c, a[i], ", "c[0] += __uint_as_float(a[i].x ^ a[i].y ^ a[i].z ^ a[i].w), (")


@pytest.fixture(scope="module")
def toolchain(tmp_path_factory):
    return cuda_toolchain(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def libraries(toolchain, tmp_path_factory) -> dict[str, Built]:
    recipe = SmallRecipe()
    moved = tmp_path_factory.mktemp("moved") / "a folder"
    shutil.copytree(recipe.root, moved)
    (moved / "note.txt").write_text("")
    text = (recipe.root / "small.cu").read_text()
    fat = ARCHS["sm_80"].model_copy(
        update={"gencode": (*ARCHS["sm_80"].gencode, *ARCHS["ptx_80"].gencode)}
    )
    builds = {
        "healthy": partial(build_device, recipe, ARCHS["sm_80"], toolchain),
        "hopper": partial(build_device, recipe, ARCHS["sm_90a"], toolchain),
        "moved": partial(build_device, replace(recipe, root=moved), ARCHS["sm_80"], toolchain),
        "fat": partial(build_device, recipe, fat, toolchain),
        "ptx": partial(build_device, recipe, ARCHS["ptx_80"], toolchain),
        "spilling": partial(
            build_device, replace(recipe, flags=("-maxrregcount=32",)), ARCHS["sm_80"], toolchain
        ),
        "without mma": partial(
            build_device, recipe, ARCHS["sm_80"], toolchain, {"small.cu": text.replace(*NO_MMA)}
        ),
    }
    return dict(zip(builds, build_all(builds.values()), strict=True))


@pytest.fixture
def look(libraries, toolchain):
    def look(name: str, arch: str = "sm_80", required: Sequence[str] = (MMA, LOAD)) -> Inspection:
        return inspect(libraries[name], ARCHS[arch], toolchain, required)

    return look


def test_a_healthy_library(look):
    seen = look("healthy")
    assert seen.problems == ()
    assert (seen.machine_codes, seen.ptx_codes, seen.assembled_for) == (("sm_80",), (), None)
    narrow, wide = sorted(seen.functions, key=lambda f: f.instructions[MMA])
    assert (narrow.instructions[MMA], wide.instructions[MMA]) == (4, 32)
    assert (narrow.instructions[LOAD], wide.instructions[LOAD]) == (2, 16)
    assert narrow.shared == wide.shared == 128
    assert 16 < narrow.registers < wide.registers <= 255


def test_shared_memory_is_the_kernel_s_own_on_every_arch(look):
    assert {f.shared for f in look("hopper", "sm_90a").functions} == {128}


def test_results_go_into_a_report_and_come_back(look):
    seen = look("healthy")
    assert Inspection.model_validate_json(seen.model_dump_json()) == seen


def test_the_hash_is_of_the_code_and_not_of_where_it_was_built(look):
    assert look("moved").sass_sha256 == look("healthy").sass_sha256
    assert look("without mma").sass_sha256 != look("healthy").sass_sha256


def test_an_arch_that_was_not_asked_for_is_present(look):
    extra = "sm_80: compute_80 is in the library and was not asked for: sm_80 was"
    assert look("fat").problems == (extra,)


def test_spilling(look):
    (problem,) = look("spilling").problems
    assert problem.startswith("sm_80: registers spill in 1 of 2 kernels, first ")
    assert [f.spilled > 0 for f in look("spilling").functions].count(True) == 1


def test_a_required_instruction_is_missing(look):
    (problem,) = look("without mma").problems
    assert problem.startswith(f"sm_80: no instruction matches {MMA!r} in 2 of 2 kernels")


def test_ptx_is_held_to_the_same_rules_after_assembly(look):
    seen = look("ptx", "ptx_80")
    assert seen.problems == ()
    assert (seen.machine_codes, seen.ptx_codes) == ((), ("compute_80",))
    assert seen.assembled_for == "sm_121"
    assert {f.code for f in seen.functions} == {"sm_121"}
    assert sorted(f.instructions[MMA] for f in seen.functions) == [4, 32]


def test_a_library_without_the_compiler_s_output(libraries, toolchain):
    silent = replace(libraries["healthy"], log="", key="silent")
    (problem,) = inspect(silent, ARCHS["sm_80"], toolchain).problems
    assert "spills unknown in 2 of 2 kernels" in problem


def test_a_library_without_device_code(toolchain, libraries, tmp_path):
    host = tmp_path / "host.so"
    (tmp_path / "host.cpp").write_text("int f() { return 1; }\n")
    shutil.copy(libraries["healthy"].path, host)
    subprocess.run([toolchain.cxx, "-shared", "-o", host, tmp_path / "host.cpp"], check=True)
    seen = inspect(replace(libraries["healthy"], path=host, key="host"), ARCHS["sm_80"], toolchain)
    assert seen.problems == (
        "sm_80: sm_80 was asked for and is not in the library: nothing is",
        "the library holds no kernel",
    )


def test_what_is_no_library(toolchain, libraries, tmp_path):
    (tmp_path / "text.so").write_text("text")
    broken = replace(libraries["healthy"], path=tmp_path / "text.so", key="text")
    with pytest.raises(CannotRun, match="cuobjdump cannot read"):
        inspect(broken, ARCHS["sm_80"], toolchain)


def test_a_pattern_that_is_none(toolchain, libraries):
    with pytest.raises(BadInput, match=r"'HMMA\(' is not a regular expression"):
        inspect(libraries["healthy"], ARCHS["sm_80"], toolchain, ["HMMA("])


def test_the_answer_is_kept_for_the_same_question_only(look, libraries, toolchain, monkeypatch):
    first = look("healthy")
    monkeypatch.setattr("lanecheck.inspect._inspect", lambda *_: pytest.fail("asked again"))
    assert look("healthy") == first
    with pytest.raises(pytest.fail.Exception, match="asked again"):
        look("healthy", required=[MMA])
