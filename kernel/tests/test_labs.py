"""The labs: what they print is true, fits a terminal, and a mistake gets one line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import packed_gemv
from packed_gemv import config as c
from packed_gemv.labs import configs, fragments, runs

LABS = {"configs": configs, "fragments": fragments}


def printed(capsys: pytest.CaptureFixture[str], lab: str, arguments: str = "") -> str:
    """What the lab prints; every line fits 80 columns."""
    assert LABS[lab].main(arguments.split()) == 0
    out, err = capsys.readouterr()
    assert not err
    assert max(map(len, out.splitlines())) <= 80
    assert out == "\n".join(line.rstrip() for line in out.splitlines()) + "\n"
    return out


def errors(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"x @ W\d?\.T: (\S+)", text)]


# --- lab 2


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "--m 5",
        "--m 13",
        "--m 13 --nw 8",
        "--nw 16 --s 2",
        "--u 1 --s 9",
        "--m 64 --nw 1",
        "--dual",
    ],
)
def test_the_answer_is_right_to_float64s_own_error(
    capsys: pytest.CaptureFixture[str], arguments: str
) -> None:
    found = errors(printed(capsys, "fragments", arguments))
    assert len(found) == 1 + ("--dual" in arguments)
    assert all(1e-17 < error < 1e-15 for error in found)


@pytest.mark.parametrize("arguments", ["", "--m 13 --nw 8", "--dual --s 3"])
def test_exchanged_halves_are_about_one_off(
    capsys: pytest.CaptureFixture[str], arguments: str
) -> None:
    text = printed(capsys, "fragments", f"--break {arguments}")
    assert all(0.5 < error < 2 for error in errors(text)) and errors(text)
    assert "values 0-3 and 4-7 of every octet of x change" in text


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("", [1, 2]),
        ("--m 8", [2]),
        ("--nw 4", [2]),
        ("--u 2", [2]),
        ("--s 1", [2]),
        ("--dual", [2]),
        ("--break", [2]),
        ("--part 1", [1]),
        ("--part 2", [2]),
        ("--part 1 --m 5", [1]),
    ],
)
def test_an_option_of_the_walk_asks_for_part_2(
    capsys: pytest.CaptureFixture[str], arguments: str, shown: list[int]
) -> None:
    text = printed(capsys, "fragments", arguments)
    assert [int(part) for part in re.findall(r"^Part (\d)\. ", text, re.MULTILINE)] == shown


def test_thirteen_tokens_are_two_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    assert "NB = 1: 1 block of 8 tokens" in printed(capsys, "fragments")
    assert "NB = 2: 2 blocks of 8 tokens" in printed(capsys, "fragments", "--m 13")


def test_the_lanes_loads(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "fragments")
    assert text.count("512 contiguous bytes") == 2
    flat = " ".join(text.split())
    assert "0 0 (0, 0) (0, 1) (8, 0) (8, 1) (0, 2) (0, 3) (8, 2) (8, 3)" in flat
    assert "1 (0, 4) (0, 5) (8, 4) (8, 5) (0, 6) (0, 7) (8, 6) (8, 7)" in flat
    assert "5 0 (1, 8) (1, 9) (9, 8) (9, 9) (1, 10) (1, 11) (9, 10) (9, 11)" in flat
    assert "0 0, 8192, 16, 8208 0" in flat  # rows 0 and 8, columns 0 and 8 of 512, two bytes each
    assert "5 1028, 9220, 1044, 9236 80" in flat


def test_what_lanes_hold_of_all_three(capsys: pytest.CaptureFixture[str]) -> None:
    flat = " ".join(printed(capsys, "fragments").split())
    assert "5 1,2-3 9,2-3 1,10-11 9,10-11 2-3,1 10-11,1 1,2 1,3 9,2 9,3" in flat
    assert "packed, step 1 4 5 12 13 20 21 28 29 6 7 14 15 22 23 30 31" in flat
    assert "a warp makes 4 loads. Each wants 128 bytes from 8 rows" in flat
    assert "touches 8 sectors of 32 bytes: 256 bytes are moved" in flat
    assert "for 512 bytes: 16 sectors, all of them wanted" in flat
    assert "2 pieces of 16 bytes for both steps, at bytes 0 and 8192" in flat
    assert "The next K block is 64 units of 16 bytes further on" in flat


@pytest.mark.parametrize("lane", [0, 13, 31])
def test_a_picture_marks_what_one_lane_holds(capsys: pytest.CaptureFixture[str], lane: int) -> None:
    text = printed(capsys, "fragments", f"--picture {lane}")
    marked = re.findall(r"\[ ?(\d+) (\w\d)\]", text)
    assert {int(owner) for owner, _ in marked} == {lane}
    registers = ["A0", "A2", "A1", "A3", "B0", "B1", "C0", "C1", "C2", "C3"]
    assert [register for _, register in marked] == registers
    assert f"packed W, 1 load: bytes {16 * lane}-{16 * lane + 15}" in text
    assert text.count("512 contiguous bytes") == 2
    assert "so row = 16·RB + 8·h + g" in text


def test_a_picture_marks_lane_13_unless_told_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "fragments", "--picture") == printed(capsys, "fragments", "--picture 13")


def test_a_picture_is_the_same_text_without_rich(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    with_rich = printed(capsys, "fragments", "--picture")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert printed(capsys, "fragments", "--picture") == with_rich


def test_a_terminal_gets_colours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    plain = printed(capsys, "fragments", "--picture")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert fragments.main(["--picture"]) == 0
    coloured = capsys.readouterr().out
    assert "\x1b[" in coloured
    stripped = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", coloured).splitlines()]
    assert stripped == plain.splitlines()


def test_a_terminal_of_16_colours_gets_them_by_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    for name in ("NO_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-16color")
    assert fragments.main(["--picture"]) == 0
    used = re.findall(r"\x1b\[30;(\d+)m", capsys.readouterr().out)
    assert list(dict.fromkeys(used)) == ["46", "43", "42", "45"]  # cyan, yellow, green, magenta


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", "slice 0: 0-3 | 4-7 | 8-11 | 12-15"),
        ("--nw 3 --u 1 --s 2", "slice 1: 9-11 | 12-13 | 14-15"),
        ("--nw 8", "(not even: blocks left over by the last whole trip go one by one)"),
        ("--nw 16 --s 2", "slice 1: nothing"),
        ("--s 5", "and 1 more slice"),
    ],
)
def test_the_warps_slices(
    capsys: pytest.CaptureFixture[str], arguments: str, expected: str
) -> None:
    assert expected in printed(capsys, "fragments", arguments)


# --- lab 0


def test_every_shape_is_listed_with_its_split(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "configs")
    for name, (n, k) in configs.SHAPES.items():
        config = c.select(1, n, k)
        (row,) = [line for line in text.splitlines() if line.startswith(f"  {name} ")]
        numbers = row.removeprefix(f"  {name}").split()
        expected = [n, k, -(-k // 32), config.s, config.nw, config.u]
        assert numbers[:6] == [str(value) for value in expected]
        assert numbers[-1] == ("yes" if config.is_even(k) else "no")


@pytest.mark.parametrize("arguments", ["--m 64", "--dual", "--m 13 --dual"])
def test_other_tables_fit_too(capsys: pytest.CaptureFixture[str], arguments: str) -> None:
    printed(capsys, "configs", arguments)


def test_tuned_entries_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(c, "_table", lambda dual: {(128256, 16384): (16, 8, 4), (7, 9): (1, 1, 1)})
    short, text = printed(capsys, "configs"), printed(capsys, "configs", "--all")
    assert "table for one weight: 2 shapes, listed by --all\n" in short
    assert "table for one weight: 2 shapes\n" in text
    row = "128256 16384 512 4 16 8 8 = 1·8 yes"
    assert row in " ".join(text.split()) and row not in " ".join(short.split())
    monkeypatch.setattr(c, "_table", lambda dual: {})
    assert "table for one weight: 0 shapes\n" in printed(capsys, "configs")


def test_trips_of_three_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "configs", "--k 512 --nw 4 --u 3")
    flat = " ".join(text.split())
    assert "UnevenError: 4 K blocks a warp (K/32 = 16 over S·NW = 4) do not split into" in flat
    assert "the last trip would read past the warp's share" in flat
    assert "\nrequire_even says:\n  UnevenError: " in text
    assert "warp 0: 0-2 | 3-5" in text and "warp 3: 12-14 | 15-17" in text
    assert "Counted more than once: 4-5, 8-9, 12-13" in text
    assert "Read beyond the last block: 16-17" in text
    assert "warp 0: 0-2 | 3 alone" in text
    assert "u=3 is not compiled; choose one of (1, 2, 4, 8)" in text


def test_an_even_walk_has_nothing_to_explain(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "configs", "--k 512 --nw 4 --u 2")
    assert "Divides evenly: 16 blocks over 4 warps, 2 trips of 2 each." in text
    assert "would read" not in text and "compiled" not in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--k 500", "The last block has 20 columns only"),
        ("--k 33 --nw 1 --u 1", "The last block has 1 column only"),
        ("--s 3", "UnevenError: K/32 = 16 blocks do not split into S = 3 equal shares"),
        ("--nw 16 --s 3", "Never read: 0-15"),
        ("--k 100000 --nw 5 --u 8 --s 3", "Never read: 1040, 2081, 3122-3124"),
        ("--nw 16 --s 256 --k 1048576 --u 64", "Counted more than once: "),
        ("--m 64 --nw 8", "nw=8 is not in 1…4"),
    ],
)
def test_other_walks(capsys: pytest.CaptureFixture[str], arguments: str, expected: str) -> None:
    assert expected in printed(capsys, "configs", arguments)


@pytest.mark.parametrize(
    ("arguments", "warps"),
    [
        ("", ["[--]"] * 4),
        ("--u 3", ["[-]+"] * 4),
        ("--u 1 --nw 2", ["########"] * 2),
        ("--k 1088 --s 2 --nw 2 --u 4", ["[--][--]+", "[--][--]+", "[--][--]", "[--][--]"]),
    ],
)
def test_a_walk_as_a_picture(
    capsys: pytest.CaptureFixture[str], arguments: str, warps: list[str]
) -> None:
    lines = printed(capsys, "configs", f"--picture {arguments}").splitlines()[2:]
    assert [line[16:].strip() for line in lines] == warps
    starts = [len(line) - len(drawn) for line, drawn in zip(lines, warps)]
    ends = [len(line) for line in lines]
    assert starts == [16, *ends[:-1]]  # each begins below the end of the one before


@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 9), st.integers(1, 200))
def test_whole_trips_are_right_exactly_when_the_split_is_even(
    nw: int, u: int, s: int, k_blocks: int
) -> None:
    walk, k = configs.Walk(nw, u, s), 32 * k_blocks
    assert (configs.whole_trips(walk, k) == walk.slices(k)) == walk.is_even(k)


# --- both


@pytest.mark.parametrize(
    ("lab", "arguments", "message"),
    [
        ("fragments", "--picture 32", "argument --picture: '32' is not a lane: 0 to 31"),
        (
            "configs",
            "--picture --k 4096",
            "128 K blocks and 4 warps: a picture has room for 64 and",
        ),
        ("fragments", "--u 3", r"u=3 is not compiled; choose one of \(1, 2, 4, 8\)"),
        (
            "fragments",
            "--u 3",
            r"u=3 .* Nor would 4 blocks a warp make whole trips of 3: "
            r"see python -m packed_gemv.labs.configs --k 512 --u 3\n",
        ),
        ("fragments", "--u 5 --nw 3", "u=5 .* Nor would 5 or 6 blocks .* --k 512 --u 5 --nw 3"),
        ("fragments", "--u 16 --nw 1", r"u=16 is not compiled; choose one of \(1, 2, 4, 8\)\n"),
        ("fragments", "--nw 17 --u 3", r"nw=17 is not in 1…16: .* shared memory\n"),
        ("fragments", "--nw 17", "nw=17 is not in 1…16"),
        ("fragments", "--m 0", "argument --m: '0' is not an integer of at least 1"),
        ("fragments", "--m 65", "argument --m: 65 tokens: the kernel takes 1 to 64"),
        ("fragments", "--s 65", "argument --s: 65 slices: this lab takes 1 to 64"),
        ("fragments", "--brake", "unrecognized arguments: --brake"),
        ("configs", "--m 65", "argument --m: 65 tokens"),
        ("configs", "--u -1", "argument --u: '-1' is not an integer"),
        ("configs", "--k many", "argument --k: 'many' is not an integer"),
        ("configs", "--k 1048577", "K = 1048577: this lab follows walks up to K = 1048576"),
        ("configs", "--nw 4097", "S·NW = 4097"),
        ("configs", "--u 65", "U = 65"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(
    capsys: pytest.CaptureFixture[str], lab: str, arguments: str, message: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        LABS[lab].main(arguments.split())
    out, err = capsys.readouterr()
    assert stopped.value.code == 2
    assert not out and err.count("\n") == 1
    assert re.match(f"{lab}: {message}", err)


@pytest.mark.parametrize("lab", LABS)
def test_help_has_an_example_that_runs(capsys: pytest.CaptureFixture[str], lab: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        LABS[lab].main(["--help"])
    assert stopped.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    arguments = text.partition(f"Example: python -m packed_gemv.labs.{lab} ")[2]
    assert arguments
    printed(capsys, lab, arguments)


@pytest.mark.parametrize("lab", LABS)
def test_a_lab_runs_as_a_module(lab: str) -> None:
    """By itself: it imports nothing but the standard library, numpy and this package."""
    home = Path(packed_gemv.__file__).parents[1]
    script = (
        "import runpy, sys\n"
        f"try: runpy.run_module('packed_gemv.labs.{lab}', run_name='__main__')\n"
        "except SystemExit as stopped: assert not stopped.code\n"
        "print(*{'lanecheck', 'torch', 'rich'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=home, capture_output=True, encoding="utf-8", check=True
    )
    assert done.stdout and done.stderr.strip() == ""


def test_runs_of_numbers() -> None:
    assert runs([]) == "none"
    assert runs([3]) == "3"
    assert runs([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
