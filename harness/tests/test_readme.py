"""The README is true: its output blocks are what its commands print, its commands exist, CI runs its test
command."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from rich.console import Console

from lanecheck import matrix_file, native, verify
from lanecheck.cli import app
from lanecheck.faults import catalogue
from lanecheck.matrix import Arch, Matrix
from lanecheck.reports.model import CellRecord, Report, Status
from lanecheck.simt import VARIANTS
from lanecheck.subject import load
from lanecheck.tensorcore import model_for
from lanecheck.terminal import reasons, verdict_table

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8") if README.exists() else ""
# As noxfile.py's session `readme` finds and fills them.
BLOCKS = dict(re.findall(r"<!-- output: (.+?) -->\n```\n(.*?)```", TEXT, re.DOTALL))
VERIFY = "lanecheck verify"
NO_GPU = "no GPU on this machine"

pytestmark = pytest.mark.skipif(not TEXT, reason="not a checkout")


# The output blocks ----------------------------------------------------------------------------


def test_the_output_blocks_are_those_of_three_commands() -> None:
    commands = [" ".join(command.split()[:3]) for command in BLOCKS]
    assert commands == [VERIFY, "lanecheck replay --fault", "lanecheck demo swap-x-halves"]


@pytest.mark.parametrize(
    "command", [each for each in BLOCKS if each != VERIFY], ids=lambda command: command.split()[1]
)
def test_a_block_is_exactly_what_its_command_prints(command: str) -> None:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=ROOT,
        env={**environment, "PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr  # a fault shown is 1
    assert done.stdout.strip() == BLOCKS[command].strip()


# The block of verify, which takes minutes: what it says of this checkout ------------------------


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return matrix_file.load(ROOT / "matrix.yaml")


@pytest.fixture(scope="module")
def cells(matrix: Matrix) -> list[CellRecord]:
    """Those of a run without a GPU in which nothing fails."""

    def cell(arch: Arch, device: str, job: str, evidence: Any = None) -> CellRecord:
        status, reason = (Status.VERIFIED, "") if device == "host" else (Status.UNVERIFIED, NO_GPU)
        record = CellRecord(arch=arch.name, device=device, job=job, status=status, reason=reason)
        return record.model_copy(update={"evidence": evidence})

    def weakest(arch: Arch) -> str:
        """How the models of the arch's tensor cores are known."""
        return max(model_for(cc).evidence[cc] for cc in arch.loads_on)  # published after measured

    archs, gpus = matrix.archs.values(), [each for each in matrix.devices.values() if each.gpu]
    return [
        *(cell(arch, "host", job) for job in ("build", "inspect") for arch in archs),
        *(cell(arch, "host", "fuzz", weakest(arch)) for arch in archs),
        *(
            cell(arch, device.name, job)
            for job in ("silicon", "bench")
            for arch in archs
            for device in gpus
            if device.cc in arch.loads_on
        ),
    ]


def test_the_table_of_verify_is_that_of_this_matrix(
    matrix: Matrix, cells: list[CellRecord]
) -> None:
    report = cast(Report, SimpleNamespace(cells=cells))
    console = Console(width=1000, color_system=None, force_terminal=False)
    with console.capture() as printed:
        console.print(verdict_table(report, matrix))
        for line in reasons(report, matrix):
            console.print(line, soft_wrap=True)
    assert f"what this run shows\n{printed.get()}report: " in BLOCKS[VERIFY]


def test_the_last_line_of_verify_counts_the_cells_of_this_matrix(cells: list[CellRecord]) -> None:
    verified = sum(cell.status is Status.VERIFIED for cell in cells)
    said = BLOCKS[VERIFY].splitlines()[-1]
    assert (
        said == f"nothing disproven: {verified} cells verified, {len(cells) - verified} unverified"
    )


def test_the_steps_of_verify_are_those_of_this_checkout(matrix: Matrix) -> None:
    folder = load(matrix.subject).faults
    assert folder is not None
    entries = catalogue.load(folder)
    faults = [each for each in entries if not each.control]
    waiting = [each.id for each in faults if not each.variants]  # for a GPU, to be built for
    controls, archs = len(entries) - len(faults), len(matrix.archs)
    cases = {"plain": 10_000, **verify.CHECKED_CASES}
    assert list(cases) == list(VARIANTS)
    expected = [
        ("tensor core models", f"{native.check():,} outputs of three implementations agree"),
        ("build", f"{archs} of {archs} archs, {len(VARIANTS)} host builds (# from the cache)"),
        ("inspect", "# kernels, no spills"),
        *(
            (f"fuzz on host, {name}", f"{count:,} cases (# blind), 0 failing, # cases/s")
            for name, count in cases.items()
        ),
        ("order of additions", "# trees recovered, each as declared"),
        (
            "break on purpose",
            f"{len(faults) - len(waiting)} of {len(faults)} faults caught (only a GPU runs it: "
            f"{', '.join(waiting)}), {controls} of {controls} controls clean",
        ),
        ("real weights", "all-MiniLM-L6-v2: # layers, # calls, 0 failing, cosine >= #"),
    ]
    steps = BLOCKS[VERIFY].split("\n\n")[0].splitlines()
    assert len(steps) == len(expected)
    for step, (title, summary) in zip(steps, expected):
        number = re.escape(f"ok {title:<22} {summary}").replace(r"\#", r"[\d,.]+")
        assert re.fullmatch(number, step), (step, summary)


# The commands ---------------------------------------------------------------------------------


def test_every_command_exists() -> None:
    known = {command.callback.__name__ for command in app.registered_commands}
    named = set(re.findall(r"`lanecheck (\w+)", TEXT))
    assert named
    assert named <= known


def commands_of(workflow: Any) -> list[str]:
    """What the steps of a workflow run, line by line."""
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    return [line for step in steps for line in step.get("run", "").splitlines()]


def test_ci_runs_the_test_command() -> None:
    (command,) = re.findall(r"^(python3 noxfile\.py -s tests)\b", TEXT, re.MULTILINE)
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()
    workflow = ROOT / ".github" / "workflows" / "ci.yml"
    assert command in commands_of(yaml.safe_load(workflow.read_text()))
