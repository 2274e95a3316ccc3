"""The toolchain: what is found first, what is installed, and what is said where neither is possible."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from small_kernel import ARCHS, LOAD, MMA, SmallRecipe

from lanecheck import toolchain as module
from lanecheck.build import Built, build_all, build_device
from lanecheck.errors import BadInput, CannotRun
from lanecheck.inspect import inspect
from lanecheck.toolchain import (
    WHEEL_ROOT,
    Toolchain,
    cache_root,
    check_archs,
    install,
    is_binary_tool,
    lock_hash,
    nvcc_version,
    read_lock,
)


def program(path: Path, says: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'E'\n{says}\nE\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path, monkeypatch) -> dict[str, str]:
    """The environment of a machine on which nothing is installed, and no network."""
    monkeypatch.setattr(module, "SYSTEM", tmp_path / "system")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site")])
    monkeypatch.setattr(module, "_pip_install", lambda *_: pytest.fail("tried to install"))
    return {
        "PATH": str(tmp_path / "bin"),
        "LANECHECK_CACHE": str(tmp_path / "cache"),
        "HOME": str(tmp_path),
    }


def silent(environment: dict[str, str], install: bool = True) -> Toolchain:
    return Toolchain(environment, install, say=lambda _: None)


# Cache


def test_where_the_cache_is(tmp_path):
    assert cache_root({"LANECHECK_CACHE": str(tmp_path)}) == tmp_path
    assert cache_root({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "lanecheck"
    assert cache_root({}) == Path.home() / ".cache" / "lanecheck"


# Finding


def test_the_best_place_wins(machine, tmp_path):
    places = [
        tmp_path / "site" / WHEEL_ROOT / "bin" / "nvcc",
        tmp_path / "system" / "cuda-9.2" / "bin" / "nvcc",
        tmp_path / "system" / "cuda-12.9" / "bin" / "nvcc",
        tmp_path / "system" / "cuda" / "bin" / "nvcc",
        tmp_path / "bin" / "nvcc",
        tmp_path / "home" / "bin" / "nvcc",
        tmp_path / "chosen" / "my-nvcc",
    ]
    machine["CUDA_HOME"] = str(tmp_path / "home")
    for place in places[:-1]:
        program(place)
        found = silent(machine)
        assert (found.nvcc, found.source) == (place, "found")
    machine["LANECHECK_NVCC"] = str(program(places[-1]))
    assert silent(machine).nvcc == places[-1]


def test_a_chosen_nvcc_that_is_none(machine):
    with pytest.raises(BadInput, match="LANECHECK_NVCC=/no/nvcc is not a program: set it to nvcc"):
        silent({**machine, "LANECHECK_NVCC": "/no/nvcc"}).nvcc  # noqa: B018


def test_a_file_that_cannot_be_run_is_passed_over(machine, tmp_path):
    program(tmp_path / "home" / "bin" / "nvcc").chmod(0o644)
    right = program(tmp_path / "bin" / "nvcc")
    assert silent({**machine, "CUDA_HOME": str(tmp_path / "home")}).nvcc == right


def test_host_compilers(machine, tmp_path):
    with pytest.raises(CannotRun, match=r"no C\+\+ compiler here: install g\+\+ or clang\+\+"):
        silent(machine).cxx  # noqa: B018
    clang = program(tmp_path / "bin" / "clang++", "clang version 19\nmore")
    assert (silent(machine).cxx, silent(machine).cxx_version) == (clang, "clang version 19")
    gxx = program(tmp_path / "bin" / "g++")
    assert silent(machine).cxx == gxx
    assert silent({**machine, "CXX": "clang++"}).cxx == clang
    assert silent({**machine, "CXX": str(clang)}).cxx == clang
    with pytest.raises(BadInput, match="CXX=icc is not a program"):
        silent({**machine, "CXX": "icc"}).cxx  # noqa: B018


def test_only_what_is_asked_for_is_looked_up(machine, tmp_path):
    program(tmp_path / "bin" / "g++")
    assert silent(machine, install=False).cxx  # and no word about nvcc


def test_nvcc_is_given_the_same_host_compiler_and_no_flags_of_the_user(machine, tmp_path):
    program(tmp_path / "bin" / "nvcc", "#$ TOP=/opt/toolkit/bin/..")
    gxx = program(tmp_path / "bin" / "g++")
    env = silent({**machine, "PATH": f"{tmp_path}/bin:/bin", "NVCC_APPEND_FLAGS": "-G"})
    assert env.compile_environment["NVCC_CCBIN"] == str(gxx)
    assert "NVCC_APPEND_FLAGS" not in env.compile_environment
    assert env.root == Path("/opt/toolkit")
    assert env.ptxas == Path("/opt/toolkit/bin/ptxas")


# What nvcc can build


@pytest.fixture
def nvcc_of(tmp_path):
    def nvcc_of(version: str, *known: str) -> Path:
        path = tmp_path / version / "nvcc"
        program(path, f"Cuda compilation tools, release {version}, V{version}.88")
        listing = " ".join(f"compute_{name} sm_{name}" for name in known)
        script = path.read_text().replace(
            "cat", f'case "$1" in --list*) echo "{listing}"; exit;; esac\ncat'
        )
        path.write_text(script)
        return path

    return nvcc_of


def test_archs_that_nvcc_can_build(nvcc_of):
    nvcc = nvcc_of("13.0", "80", "86", "89", "90", "100", "120")
    assert nvcc_version(nvcc) == "13.0.88"
    check_archs(nvcc, ARCHS.values())


def test_an_arch_that_nvcc_is_too_old_for(nvcc_of):
    with pytest.raises(BadInput) as caught:
        check_archs(nvcc_of("12.4", "80", "86", "89", "90"), ARCHS.values())
    said = str(caught.value)
    assert said.startswith("nvcc 12.4.88 (/")
    assert "cannot build arch sm_100f: it needs CUDA 12.9 or later: set CUDA_HOME" in said
    assert said.endswith("LANECHECK_NVCC=pinned uses lanecheck's own")
    assert "\n" not in said


def test_an_arch_that_nvcc_no_longer_knows(nvcc_of):
    with pytest.raises(BadInput, match="sm_80: it does not know compute_80, sm_80"):
        check_archs(nvcc_of("15.1", "90"), [ARCHS["sm_80"]])


def test_what_is_no_nvcc(tmp_path):
    fake = program(tmp_path / "nvcc", "hello")
    with pytest.raises(CannotRun, match=r"is not a working nvcc \(hello\)"):
        nvcc_version(fake)
    with pytest.raises(CannotRun, match="does not run"):
        nvcc_version(tmp_path / "none")


# Installing


def test_the_lock_is_pins_and_nothing_else():
    pins = read_lock()
    assert len(pins) == len(set(pins)) == 7
    assert all(
        name and version[0].isdigit() for name, _, version in (p.partition("==") for p in pins)
    )
    assert sum(map(is_binary_tool, pins)) == 2
    assert lock_hash(pins) != lock_hash(pins[1:])


def wheels(*programs: str):
    """A stand-in for pip that installs these programs."""

    def pip_install(pins, target: Path, name: str) -> None:
        for each in programs:
            program(target / WHEEL_ROOT / "bin" / each)
        (target / WHEEL_ROOT / "lib").mkdir()

    return pip_install


def test_what_is_not_found_is_installed_once(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_pip_install", wheels("nvcc"))
    said: list[str] = []
    first = Toolchain(machine, say=said.append)
    assert first.source == "installed"
    assert first.nvcc.is_relative_to(tmp_path / "cache" / "toolchain")
    assert (first.nvcc.parents[1] / "lib64").resolve() == first.nvcc.parents[1] / "lib"
    assert len(said) == 1 and said[0].startswith("no nvcc here: installing a CUDA compiler into ")
    monkeypatch.setattr(module, "_pip_install", lambda *_: pytest.fail("installed again"))
    assert silent(machine).nvcc == first.nvcc


def test_binary_tools_are_installed_apart(machine, monkeypatch, tmp_path):
    program(tmp_path / "bin" / "nvcc")
    monkeypatch.setattr(module, "_pip_install", wheels("cuobjdump", "nvdisasm"))
    tools = silent(machine)
    assert tools.source == "found"
    assert tools.cuobjdump.parent == tools.nvdisasm.parent
    assert tools.cuobjdump.is_relative_to(tmp_path / "cache")


def test_pinned_passes_over_what_is_found(machine, monkeypatch, tmp_path):
    program(tmp_path / "bin" / "nvcc")
    monkeypatch.setattr(module, "_pip_install", wheels("nvcc"))
    assert silent({**machine, "LANECHECK_NVCC": "pinned"}).source == "installed"


def test_without_leave_to_install(machine):
    with pytest.raises(CannotRun, match="no nvcc here: install the CUDA toolkit and set CUDA_HOME"):
        silent(machine, install=False).nvcc  # noqa: B018


@pytest.mark.parametrize(
    "end", [CannotRun("no network"), KeyboardInterrupt(), OSError("disk full")]
)
def test_an_install_that_ends_early_leaves_nothing(tmp_path, monkeypatch, end):
    def half(pins, target: Path, name: str) -> None:
        program(target / WHEEL_ROOT / "bin" / "nvcc")
        raise end

    monkeypatch.setattr(module, "_pip_install", half)
    folder = tmp_path / "toolchain" / "hash"
    with pytest.raises(type(end)):
        install(["a==1"], folder)
    assert os.listdir(folder.parent) == ["hash.lock"]
    monkeypatch.setattr(module, "_pip_install", wheels("nvcc"))
    install(["a==1"], folder)
    assert sorted(os.listdir(folder.parent)) == ["hash", "hash.lock"]


def test_what_a_killed_install_left_is_swept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_pip_install", wheels("nvcc"))
    (tmp_path / "hash.old.part").mkdir()
    install(["a==1"], tmp_path / "hash")
    assert sorted(os.listdir(tmp_path)) == ["hash", "hash.lock"]


def test_two_installs_at_once_are_one(tmp_path, monkeypatch):
    calls, together = [], threading.Barrier(2)

    def slow(pins, target: Path, name: str) -> None:
        calls.append(target)
        wheels("nvcc")(pins, target, name)

    def attempt() -> None:
        together.wait()
        install(["a==1"], tmp_path / "hash")

    monkeypatch.setattr(module, "_pip_install", slow)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(attempt), pool.submit(attempt)]:
            done.result()
    assert len(calls) == 1


def test_packages_without_the_program_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_pip_install", wheels("other"))
    with pytest.raises(CannotRun, match="the pinned packages hold no nvcc"):
        install(["a==1"], tmp_path / "hash")
    assert os.listdir(tmp_path) == ["hash.lock"]


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotRun, match="cannot write to .*: set LANECHECK_CACHE"):
        install(["a==1"], tmp_path / "file" / "hash")


def test_no_network_is_one_line_that_says_what_to_do(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(CannotRun) as caught:
        install(["nvidia-cuda-nvcc==13.0.88"], tmp_path / "hash")
    said = str(caught.value)
    assert said.startswith("nvcc cannot be installed (ERROR: ")
    assert said.endswith("set CUDA_HOME, or run once with a network to fetch nvcc")
    assert "\n" not in said
    assert os.listdir(tmp_path) == ["hash.lock"]


def test_looking_for_pip_does_not_change_what_distutils_is():
    script = (
        "from lanecheck.toolchain import _installer; _installer(); import setuptools, distutils.core;"
        "assert '_distutils' in distutils.core.__file__, distutils.core.__file__"
    )
    pytest.importorskip("setuptools")
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.network
def test_a_machine_without_cuda_builds_and_inspects_every_arch(tmp_path, monkeypatch):
    """Downloads 300 MB."""
    monkeypatch.setattr(module, "SYSTEM", tmp_path / "none")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not (Path(p) / WHEEL_ROOT).exists()])
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("g++", "gcc", "as", "ld", "sh", "rm"):
        (bare / name).symlink_to(shutil.which(name))
    tools = Toolchain({"PATH": str(bare), "LANECHECK_CACHE": str(tmp_path), "HOME": str(tmp_path)})
    check_archs(tools.nvcc, ARCHS.values())
    assert tools.source == "installed"
    archs = ARCHS.values()
    results = build_all(partial(build_device, SmallRecipe(), arch, tools) for arch in archs)
    for arch, built in zip(archs, results, strict=True):
        assert isinstance(built, Built), built
        assert inspect(built, arch, tools, [MMA, LOAD]).problems == ()
    subprocess.run([tools.nvdisasm, "--version"], check=True, capture_output=True)
