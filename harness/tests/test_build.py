"""Building: what is a new library and what is not, and what is left when it fails."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_kernel import ARCHS, SmallRecipe, cuda_toolchain

import lanecheck
from lanecheck import native
from lanecheck.build import (
    BuildFailed,
    build_all,
    build_device,
    build_host,
    first_error,
    run,
    tree,
)
from lanecheck.errors import BadInput, CannotRun
from lanecheck.simt import HostVariant
from lanecheck.toolchain import Toolchain

SOURCE = """\
#include "value.h"
int runtime();
extern "C" int answer() { return runtime() + VALUE + EXTRA; }
"""


@dataclass(frozen=True)
class HostRecipe:
    root: Path
    calls: list[Path] = field(default_factory=list)

    def device(self, nvcc: Path, gencode: Sequence[str], source: Path, out: Path) -> list[str]:
        raise NotImplementedError

    def host(
        self, cxx: Path, flags: Sequence[str], include: Sequence[Path], source: Path, out: Path
    ) -> list[str]:
        self.calls.append(source)
        folders = [f"-I{folder}" for folder in include]
        return [str(cxx), *flags, *folders, "-c", str(source / "kernel.cpp"), "-o", str(out)]


@pytest.fixture
def simt(tmp_path, monkeypatch):
    """A stand-in for the host execution: a runtime of one function, and one header."""
    home = tmp_path / "simt"
    (home / "include").mkdir(parents=True)
    (home / "include" / "extra.h").write_text("#define EXTRA 100\n")
    (home / "runtime.cpp").write_text("int runtime() { return RUNTIME; }\n")

    def variant(*runtime: str) -> HostVariant:
        return HostVariant(
            "stand-in",
            compile_flags=("-fPIC", "-include", "extra.h"),
            runtime_flags=runtime,
            link_flags=("-Wl,-z,defs",),
        )

    fake = SimpleNamespace(
        __file__=str(home / "__init__.py"),
        INCLUDE=home / "include",
        RUNTIME=home / "runtime.cpp",
        VARIANTS={"plain": variant("-DRUNTIME=1000"), "other": variant("-DRUNTIME=2000")},
    )
    monkeypatch.setitem(sys.modules, "lanecheck.simt", fake)
    monkeypatch.setattr(lanecheck, "simt", fake, raising=False)
    return home


@pytest.fixture
def toolchain(tmp_path):
    return Toolchain({**os.environ, "LANECHECK_CACHE": str(tmp_path / "cache")})


def sources(folder: Path) -> HostRecipe:
    folder.mkdir(parents=True)
    (folder / "kernel.cpp").write_text(SOURCE)
    (folder / "value.h").write_text("#define VALUE 1\n")
    return HostRecipe(folder)


@pytest.fixture
def recipe(tmp_path):
    return sources(tmp_path / "csrc")


def answer(built) -> int:
    return ctypes.CDLL(str(built.path)).answer()


def entries(toolchain) -> list[str]:
    return sorted(os.listdir(Path(toolchain.environment["LANECHECK_CACHE"]) / "build"))


def test_a_host_library_is_the_kernel_and_the_runtime(simt, recipe, toolchain):
    built = build_host(recipe, "plain", toolchain)
    assert answer(built) == 1101
    assert answer(build_host(recipe, "other", toolchain)) == 2101
    assert built.path.name == "host-plain.so"
    assert built.commands[0][0] == "{cxx}"
    assert "{source}/kernel.cpp" in built.commands[0]
    assert str(recipe.root) not in str(built.commands)


def test_the_second_time_comes_from_the_cache(simt, recipe, toolchain):
    first, second = (build_host(recipe, "plain", toolchain) for _ in range(2))
    assert (first.cached, second.cached) == (False, True)
    assert (first.path, first.key, first.log) == (second.path, second.key, second.log)
    assert first.seconds == second.seconds > 0


def test_the_same_sources_in_another_folder_are_the_same_library(simt, recipe, toolchain, tmp_path):
    twin = sources(tmp_path / "elsewhere" / "deep")
    assert build_host(twin, "plain", toolchain).key == build_host(recipe, "plain", toolchain).key


def test_an_overlay_changes_the_library_and_not_the_source(simt, recipe, toolchain):
    faulty = build_host(recipe, "plain", toolchain, {"value.h": "#define VALUE 7\n"})
    assert answer(faulty) == 1107
    assert answer(build_host(recipe, "plain", toolchain)) == 1101
    assert (recipe.root / "value.h").read_text() == "#define VALUE 1\n"


def test_an_overlay_of_the_same_text_is_the_healthy_library(simt, recipe, toolchain):
    healthy = build_host(recipe, "plain", toolchain)
    same = build_host(recipe, "plain", toolchain, {"value.h": "#define VALUE 1\n"})
    assert same.cached and same.key == healthy.key


@pytest.mark.parametrize("name", ["valve.h", "../csrc/value.h", "/etc/passwd"])
def test_an_overlay_of_another_file_is_refused(simt, recipe, toolchain, name):
    with pytest.raises(BadInput, match="overlay names .* not a file below"):
        build_host(recipe, "plain", toolchain, {name: ""})


def test_everything_that_goes_in_is_in_the_key(simt, recipe, toolchain):
    keys = [build_host(recipe, "plain", toolchain).key]
    for path in (recipe.root / "value.h", simt / "include" / "extra.h", simt / "runtime.cpp"):
        path.write_text(path.read_text() + "// more\n")
        keys.append(build_host(recipe, "plain", toolchain).key)
    (recipe.root / "unused.h").write_text("")
    keys.append(build_host(recipe, "plain", toolchain).key)
    assert len(set(keys)) == len(keys)


LEFT = [".git", ".nox", ".venv", ".lanecheck", ".ruff_cache", "__pycache__", "k.egg-info"]


@pytest.mark.parametrize("above", ["", *LEFT])
def test_what_tools_leave_in_a_folder_is_none_of_its_files(above, tmp_path):
    """Wherever the folder itself lies."""
    folder = tmp_path / above / "csrc"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a_cache.h").write_text("")
    before = tree(folder)
    assert [*before] == ["deep/a_cache.h"]
    for place in (folder, folder / "deep"):
        for name in LEFT:
            (place / name).mkdir()
            (place / name / "some").write_text("")
    assert tree(folder) == before


def test_nor_does_it_go_into_the_key(simt, recipe, toolchain):
    before = build_host(recipe, "plain", toolchain).key
    (recipe.root / ".mypy_cache").mkdir()
    (recipe.root / ".mypy_cache" / "some").write_text("")
    assert build_host(recipe, "plain", toolchain).key == before


def test_a_failed_build_says_why_and_leaves_nothing(simt, recipe, toolchain):
    with pytest.raises(BuildFailed) as caught:
        build_host(recipe, "plain", toolchain, {"value.h": "#define VALUE nonsense\n"})
    assert str(caught.value).startswith("host-plain does not compile: value.h:1:")
    assert "'nonsense' was not declared" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "kernel.cpp" in caught.value.log
    assert caught.value.exit_code == 1
    assert len(entries(toolchain)) == 1  # the runtime


def test_a_link_error_is_a_failed_build(simt, recipe, toolchain):
    overlay = {"value.h": "int missing(); \n#define VALUE missing()\n"}
    with pytest.raises(BuildFailed, match="undefined reference"):
        build_host(recipe, "plain", toolchain, overlay)


def test_a_command_that_writes_nothing_is_a_failed_build(simt, recipe, toolchain, monkeypatch):
    monkeypatch.setattr(HostRecipe, "host", lambda self, *rest: ["true"])
    variants = sys.modules["lanecheck.simt"].VARIANTS
    monkeypatch.setitem(variants, "plain", replace(variants["plain"], link_flags=("--version",)))
    with pytest.raises(BuildFailed, match=r"did not write host-plain\.so"):
        build_host(recipe, "plain", toolchain)


# Lanecheck's own C++ --------------------------------------------------------------------------


@pytest.fixture
def compiled_anew():
    """The tensor core models in C++ are compiled once a process."""
    native.build.cache_clear()
    yield
    native.build.cache_clear()


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Makes CXX a program that says it is a compiler, and then does this."""

    def make(script: str) -> Path:
        program = tmp_path / "cxx"
        program.write_text(f"#!/bin/sh\n[ $1 = --version ] && echo 'cxx 1.0' && exit\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("CXX", str(program))
        monkeypatch.setenv("LANECHECK_CACHE", str(tmp_path / "cache"))
        return program

    return make


COMPILERS = {
    "exit 1": "the compiler says nothing",
    "echo 'a.cpp:1: error: bad'; echo 1 error; exit 1": "a.cpp:1: error: bad",
    "echo first; echo out of memory; exit 4": "out of memory",
}


@pytest.mark.parametrize("script", COMPILERS)
def test_a_compiler_that_does_not_compile_the_runtime_disproves_nothing(
    script, simt, recipe, compiler
):
    program = compiler(script)
    with pytest.raises(CannotRun) as caught:
        build_host(recipe, "plain", Toolchain())
    assert str(caught.value) == (
        f"{program} does not compile Lanecheck's own runtime ({COMPILERS[script]}): "
        "set CXX to another g++ or clang++"
    )
    assert recipe.calls == []


@pytest.mark.parametrize("script", COMPILERS)
def test_nor_does_one_that_does_not_compile_the_tensor_core_models(
    script, compiler, compiled_anew, tmp_path
):
    program = compiler(script)
    with pytest.raises(CannotRun) as caught:
        native.build()
    assert str(caught.value) == (
        f"{program} does not compile Lanecheck's own tensor core models ({COMPILERS[script]}): "
        "set CXX to another g++ or clang++"
    )
    assert os.listdir(tmp_path / "cache" / "native") == []


def test_a_compiler_that_writes_nothing_does_not_compile(simt, recipe, compiler, compiled_anew):
    compiler("exit 0")
    with pytest.raises(
        CannotRun, match=r"runtime \(error: the command did not write runtime-plain.o"
    ):
        build_host(recipe, "plain", Toolchain())
    with pytest.raises(CannotRun, match="does not compile Lanecheck's own tensor core models"):
        native.build()


@pytest.mark.parametrize("cache", ["file", "file/below"])
def test_the_models_need_a_cache_that_can_be_written(cache, compiled_anew, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LANECHECK_CACHE", str(tmp_path / cache))
    with pytest.raises(
        CannotRun, match="cannot write to .*/native .*: set LANECHECK_CACHE to another"
    ):
        native.build()


# Mistakes -------------------------------------------------------------------------------------


def test_unknown_variant(simt, recipe, toolchain):
    with pytest.raises(BadInput, match="unknown host variant 'fast'; known: plain, other"):
        build_host(recipe, "fast", toolchain)


def test_an_entry_that_lost_its_library_is_built_again(simt, recipe, toolchain):
    first = build_host(recipe, "plain", toolchain)
    first.path.unlink()
    again = build_host(recipe, "plain", toolchain)
    assert not again.cached and answer(again) == 1101


def test_builds_of_one_key_at_the_same_time_do_not_clash(simt, recipe, toolchain):
    with ThreadPoolExecutor(4) as pool:
        builds = [pool.submit(build_host, recipe, "plain", toolchain) for _ in range(4)]
        paths = {build.result().path for build in builds}
    assert len(paths) == 1
    assert len(entries(toolchain)) == 2  # the runtime and the library, and no leftovers


def test_a_cache_that_cannot_be_written(simt, recipe, tmp_path):
    (tmp_path / "file").write_text("")
    toolchain = Toolchain({**os.environ, "LANECHECK_CACHE": str(tmp_path / "file")})
    with pytest.raises(CannotRun, match="cannot write to .*: set LANECHECK_CACHE"):
        build_host(recipe, "plain", toolchain)


def test_failed_builds_do_not_hide_the_others(simt, recipe, toolchain):
    overlays = [{}, {"value.h": "#error no\n"}, {"value.h": "#define VALUE 3\n"}]
    results = build_all(partial(build_host, recipe, "plain", toolchain, o) for o in overlays)
    assert [type(result).__name__ for result in results] == ["Built", "BuildFailed", "Built"]
    assert answer(results[2]) == 1103


def test_other_errors_of_a_job_are_raised():
    with pytest.raises(ZeroDivisionError):
        build_all([lambda: 1 // 0, lambda: 1])


def test_a_command_that_takes_too_long_dies_with_its_children(tmp_path):
    start = time.monotonic()
    status, said, _ = run(["sh", "-c", "echo first; sleep 60 & wait"], tmp_path, os.environ, 0.3)
    assert time.monotonic() - start < 10
    assert status != 0
    assert first_error(said) == "error: stopped after 0 s"


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("In file included from a:\nk.cpp:1:2: error: bad\nk.cpp:3:1: error: worse", "k.cpp:1:2: error: bad"),
        ("k.cu(7): warning #1: x\nk.cu(8): error: q is undefined\n", "k.cu(8): error: q is undefined"),
        (
            "ptxas info : 0\nptxas a.ptx, line 5; error   : Not a name",
            "ptxas a.ptx, line 5; error   : Not a name",
        ),
        ("nvcc fatal   : Unsupported gpu architecture", "nvcc fatal   : Unsupported gpu architecture"),
        ("k.o: in function f:\nk.o: undefined reference to `g'", "k.o: undefined reference to `g'"),
        ("Killed", "Killed"),
        ("", "the compiler says nothing"),
    ],
)  # fmt: skip
def test_the_line_that_says_what_is_wrong(log, line):
    assert first_error(log) == line


def test_device_libraries(tmp_path):
    toolchain = cuda_toolchain(tmp_path)
    names = ("sm_80", "ptx_80")
    jobs = [partial(build_device, SmallRecipe(), ARCHS[name], toolchain) for name in names]
    sm, ptx = build_all(jobs)
    assert sm.key != ptx.key
    assert sm.path.name == "sm_80.so"
    assert "bytes spill stores" in sm.log and "Compiling entry function" not in ptx.log
    assert "-gencode=arch=compute_80,code=sm_80" in sm.commands[0]
    assert hasattr(ctypes.CDLL(str(sm.path)), "launch")
    again = jobs[0]()
    assert again.cached and again.log == sm.log
    with pytest.raises(BuildFailed, match=r"sm_80 does not compile: small.cu\(1\): error:"):
        build_device(SmallRecipe(), ARCHS["sm_80"], toolchain, {"small.cu": "nonsense;\n"})
