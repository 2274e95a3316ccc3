"""The README is true: its output blocks are filled, its commands exist, CI runs its test command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lanecheck.cli import app

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"

pytestmark = pytest.mark.skipif(not README.exists(), reason="not a checkout")


def test_every_output_block_is_filled() -> None:
    blocks = re.findall(r"<!-- output: (.+?) -->\n```\n(.*?)```", README.read_text(), re.DOTALL)
    commands = [" ".join(command.split()[:3]) for command, _ in blocks]
    assert commands == [
        "lanecheck verify",
        "lanecheck replay --fault",
        "lanecheck demo swap-x-halves",
    ]
    assert all(len(text.splitlines()) > 5 for _, text in blocks)


def test_every_command_exists() -> None:
    known = {command.callback.__name__ for command in app.registered_commands}
    named = set(re.findall(r"`lanecheck (\w+)", README.read_text()))
    assert named
    assert named <= known


def test_ci_runs_the_test_command() -> None:
    (command,) = re.findall(r"^(python3 noxfile\.py -s tests)\b", README.read_text(), re.MULTILINE)
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()
