"""The wheel: everything the harness needs is inside, and it judges a subject without the kernel."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import lanecheck

TESTS = Path(__file__).parent
PROJECT = TESTS.parent
SITE = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]

pytestmark = pytest.mark.skipif(
    Path(lanecheck.__file__).parent != PROJECT / "lanecheck", reason="not a checkout"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the backend that this environment has; otherwise pip fetches it."""
    folder = tmp_path_factory.mktemp("wheel")
    has_backend = importlib.util.find_spec("hatchling") is not None
    isolation = ["--no-build-isolation"] if has_backend else []
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--wheel-dir", str(folder), str(PROJECT)],
        capture_output=True,
        text=True,
    )
    if done.returncode and not has_backend:
        pytest.skip("hatchling is neither installed nor to be had")
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("lanecheck-*.whl")
    return path


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside the repository, with a subject in it and the wheel unpacked beside it."""
    folder = tmp_path_factory.mktemp("elsewhere")
    zipfile.ZipFile(wheel).extractall(folder / "installed")
    shutil.copy(TESTS / "second_subject.py", folder)
    return folder


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python with the wheel and the dependencies, but (-S) without editable installations."""
    path = os.pathsep.join([str(folder / "installed"), *SITE])
    return subprocess.run(
        [sys.executable, "-S", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )


def fuzzed(folder: Path, subject: str, cases: int) -> int:
    """Fuzz without a failure or a word of complaint; returns the cases that were judged."""
    words = ("--subject", subject, "--cases", str(cases), "--workers", "1", "--json", "seen.json")
    done = run(folder, "-m", "lanecheck", "fuzz", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    seen = json.loads((folder / "seen.json").read_text())
    assert seen["judged"]["execution"] == seen["judged"]["poison"] == seen["cases"]
    return int(seen["cases"])


def test_the_wheel_holds_every_file_of_the_package(wheel: Path):
    package = PROJECT / "lanecheck"
    here = {
        path.relative_to(PROJECT).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("lanecheck/")}
    assert inside == here
    assert inside >= {
        f"lanecheck/{name}"
        for name in (
            "bench/cuda/ceiling.cu",
            "native/volume.cpp",
            "simt/include/cuda_runtime.h",
            "simt/include/lanecheck/mma.h",
            "simt/runtime.cpp",
            "simt/shared.ld",
            "site/templates/index.html.j2",
            "template.py",
            "toolchain.lock",
        )
    }


def test_the_wheel_has_the_command(wheel: Path):
    archive = zipfile.ZipFile(wheel)
    (entry,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert "lanecheck = lanecheck.cli:main" in archive.read(entry).decode()


def test_the_wheel_alone_judges_a_subject(elsewhere: Path):
    code = "import lanecheck; print(lanecheck.__file__); import packed_gemv.config"
    tried = run(elsewhere, "-c", code)
    (where,) = tried.stdout.split()
    assert "No module named 'packed_gemv" in tried.stderr
    assert Path(where).is_relative_to(elsewhere)
    assert fuzzed(elsewhere, "second_subject:SUBJECT", 50) == 50


def test_the_wheel_alone_replays_a_failure_from_its_line(elsewhere: Path):
    line = "matmul m=1 n=1 k=2 out=fp32 xoff=0 ypad=0 regime=small side=upper seed=0"
    words = ("-m", "lanecheck", "replay", line, "--subject")
    done = run(elsewhere, *words, "second_subject:EXITS_AT_ONCE")
    assert done.returncode == 0, done.stderr
    done = run(elsewhere, *words, "second_subject:WRITES_PAST_END")
    assert done.returncode == 1
    assert "byte y+5 (size 4) was overwritten" in done.stdout


def test_without_a_subject_a_matrix_is_asked_for(elsewhere: Path):
    done = run(elsewhere, "-m", "lanecheck", "fuzz", "--cases", "1")
    assert done.returncode == 2
    assert "no matrix.yaml in" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_template_that_init_copies_is_a_working_subject(elsewhere: Path):
    shutil.copy(elsewhere / "installed" / "lanecheck" / "template.py", elsewhere / "mine.py")
    assert fuzzed(elsewhere, "mine:SUBJECT", 20) == 20
