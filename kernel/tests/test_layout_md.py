"""LAYOUT.md is true: its commands run, its outputs are what they print, its code and numbers exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from packed_gemv.labs import pictures

KERNEL = Path(__file__).parent.parent
PAGE = KERNEL / "LAYOUT.md"
TEXT = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""

pytestmark = pytest.mark.skipif(not TEXT, reason="not a checkout")

COMMANDS = [
    line.partition(" #")[0].strip()
    for block in re.findall(r"^```sh\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
    if line.strip()
]
OUTPUTS = re.findall(
    r"^<!-- (output|part of): (.+?) -->\n```\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE
)
CODE = re.findall(r"^```(cpp|python)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
ERROR = re.compile(r"\d\.\de[+-]\d\d\b")


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """What a command prints; those that write do so in a folder of their own."""
    folder = tmp_path_factory.mktemp("layout")
    path = os.pathsep.join(filter(None, [str(KERNEL), os.environ.get("PYTHONPATH")]))

    @cache
    def run(command: str) -> str:
        words = shlex.split(command.replace("/tmp/", f"{folder}/"))
        assert words[:2] == ["python", "-m"], f"{command}: the page promises Python alone"
        done = subprocess.run(
            [sys.executable, *words[1:]],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1"},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    return run


def comparable(text: str) -> tuple[str, list[float]]:
    """Errors, which differ between machines in their last bits, apart from the rest."""
    return ERROR.sub("ERROR", text).rstrip("\n"), [float(e) for e in ERROR.findall(text)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs(command: str, printed: Callable[[str], str]) -> None:
    assert printed(command)


@pytest.mark.parametrize(("kind", "command", "block"), OUTPUTS)
def test_every_output_is_what_the_command_prints(
    kind: str, command: str, block: str, printed: Callable[[str], str]
) -> None:
    (said, errors), (whole, all_errors) = comparable(block), comparable(printed(command))
    if kind == "output":
        assert said == whole
    else:
        assert f"\n{said}\n" in f"\n{whole}\n"
    assert len(errors) in (0, len(all_errors))
    for written, found in zip(errors, all_errors):
        assert written / 4 < found < written * 4


def test_following_it_leaves_no_file_behind_in_a_checkout() -> None:
    for command in COMMANDS:
        if re.search(r"labs\.(page|pictures) ", command):
            assert " /tmp/" in command


def test_every_command_with_an_output_is_one_that_the_page_tells_to_run() -> None:
    assert {command for _, command, _ in OUTPUTS} <= set(COMMANDS)


@pytest.mark.parametrize(("language", "block"), CODE)
def test_quoted_code_is_the_source(language: str, block: str) -> None:
    source = {"cpp": "csrc/gemv.cuh", "python": "layout.py"}[language]
    assert block in (KERNEL / "packed_gemv" / source).read_text(encoding="utf-8")


def test_every_picture_is_shown_with_words_for_it_and_every_link_leads_somewhere() -> None:
    shown = re.findall(r"!\[(.+?)\]\(pictures/(.+?)\)", TEXT)
    assert [name for _, name in shown] == list(dict.fromkeys(name for _, name in shown))
    assert {name for _, name in shown} == set(pictures.PICTURES)
    for target in re.findall(r"\]\((?!http)(.+?)\)", TEXT):
        assert (KERNEL / target).exists(), target


def test_every_number_in_the_prose_is_one_that_a_lab_shows(
    printed: Callable[[str], str],
) -> None:
    prose = re.sub(r"^```.*?^```|<!--.*?-->|`[^`]*`|\(.*?\.svg\)", "", TEXT, flags=re.DOTALL | re.M)
    labs = " ".join(map(printed, COMMANDS)) + " ".join(
        draw() for draw in pictures.PICTURES.values()
    )
    told = set(re.findall(r"(?<![\w.])\d{2,}(?![\w.]?\d)", prose))
    assert {"16", "32", "64", "512", "13"} <= told
    assert not {n for n in told if not re.search(rf"(?<!\d){n}(?!\d)", labs)}


@pytest.mark.parametrize(
    "claim",
    [
        "An error of about 1e-16",
        "The error is about 1:",
        "13 tokens are NB = 2",
        "512 contiguous bytes a step",
        "a K block of 16 rows is 64 of them",
        "those six enter the sum once too often",
        "9, 9, 8 and 8",
        "pip install ./harness",
        "tuned on an H200",
        "It does not ask which GPU there is",
    ],
)
def test_it_says_what_a_reader_comes_for(claim: str) -> None:
    assert claim in TEXT.replace("\n", " ")
