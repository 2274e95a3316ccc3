"""The exercises: right answers are accepted, mistakes are named, and nothing else gets through."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packed_gemv
from packed_gemv import fragments as f
from packed_gemv.config import Config
from packed_gemv.emulator import Float64, Problem, bf16_bits, emulate, warp_walk
from packed_gemv.labs import exercise as lab
from packed_gemv.labs.exercises import EXERCISES, write_pack
from packed_gemv.labs.exercises.forms import Answer, Letter, Tuples, Unreadable, letter
from packed_gemv.labs.exercises.model import Coding, Exercise, Part
from packed_gemv.labs.exercises.slots import FILLS
from packed_gemv.labs.fragments import K, N, halves_exchanged
from packed_gemv.layout import PackedWeight, pack

ASKED = {i: each for i, each in enumerate(EXERCISES, 1) if isinstance(each, Exercise)}
CODING = {i: each for i, each in enumerate(EXERCISES, 1) if isinstance(each, Coding)}
LANES = range(f.LANES)


def parts(lane: int) -> Iterator[tuple[str, Part]]:
    """Every question about a lane, such as ``1a``."""
    for number, each in ASKED.items():
        for i, part in enumerate(each.sheet(lane).parts):
            yield f"{number}{letter(i)}", part


def part(name: str, lane: int = 13) -> Part:
    return dict(parts(lane))[name]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and output, which fits 80 columns."""
    try:
        code = lab.main(arguments)
    except SystemExit as stopped:
        assert isinstance(stopped.code, int)
        code = stopped.code
    out, err = capsys.readouterr()
    assert not (out and err)
    assert code in ((2,) if err else (0, 1))
    if err:
        assert err.startswith("exercise: ") and err.count("\n") == 1
    assert max(map(len, out.splitlines()), default=0) <= 80
    assert out == "\n".join(line.rstrip() for line in out.splitlines()) + ("\n" if out else "")
    return code, out or err


# --- the answers, against sources of their own


#: Worked out by hand from the chapter, for lane 13: g = 3, t = 1.
BY_HAND = {
    "1a": (3, 2, 11, 2, 3, 10, 11, 10),
    "1b": (3076, 11268, 3092, 11284),
    "1c": (8, 16),
    "2a": (3, 8, 3, 9, 11, 8, 11, 9, 3, 10, 3, 11, 11, 10, 11, 11),
    "2b": (8, 9, 10, 11, 12, 13, 14, 15),
    "2c": (1,),
    "2d": (3,),
    "3a": (((2 * 16 + 5) * 2 + 1) * 32 + 13,),
    "3b": (38608,),
    "3c": (1024,),
    "4a": (12, 13, 14, 15),
    "4b": (12, 13, 14, 15, 8, 9, 10, 11),
    "4c": (3,),
    "5a": (2,),
    "5b": (3, 11),
    "5c": (7, 12),
    "5d": (3, 2, 3, 3, 11, 2, 11, 3, 3, 10, 3, 11, 11, 10, 11, 11),
    "5e": (2, 3),
    "6a": (24, 25, 26, 27),
    "6b": (27, 28, 29, 30),
    "6c": (4, 5, 8, 9, 12, 13),
    "6d": (1,),
    "8a": (19, 239),
    "8b": (2, 6, 0, 22, 5),
}


def test_lane_13_by_hand() -> None:
    assert {name: each.right for name, each in parts(13)} == BY_HAND


class Nothing:
    """No arithmetic: only what the registers hold is of interest."""

    def chains(self, a: Any, b: Any, slices: list[range]) -> Any:
        return np.zeros((len(slices), len(a), len(b), f.ROWS, f.TOKENS))

    def exact(self) -> bool:
        return True


@pytest.mark.parametrize("lane", LANES)
def test_the_registers_of_an_emulated_warp(lane: int) -> None:
    weight = np.arange(N * K, dtype=np.uint16).reshape(N, K)
    x = np.arange(13 * K, dtype=np.uint16).reshape(13, K)
    problem = Problem(x, (PackedWeight.of(weight),), (None,))
    walk = warp_walk(problem, Config(4, 4, nb=2), Nothing(), 0, 0)
    assert walk.place[:4].tolist() == [[0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0], [0, 1, 0, 1]]
    assert part("2a", lane).right == pairs(walk.a[0, lane])
    both = {k for step in (0, 1) for k in pairs(walk.a[step, lane])[1::2]}
    assert part("2b", lane).right == tuple(sorted(both))
    assert part("4a", lane).right == pairs(walk.b[1, lane])[1::2]
    tokens = [set(pairs(walk.b[2 * nb, lane])[::2]) for nb in (0, 1)]
    assert part("5b", lane).right == tuple(token for one in tokens for token in one)


def pairs(positions: Any) -> Answer:
    return tuple(int(i) for position in positions for i in divmod(int(position), K))


@pytest.mark.parametrize("lane", LANES)
def test_formulas_of_every_lane(lane: int) -> None:
    g, t = divmod(lane, 4)
    assert part("1a", lane).right == (g, 2 * t, g + 8, 2 * t, g, 2 * t + 8, g + 8, 2 * t + 8)
    assert part("1b", lane).right[1] == 1024 * (g + 8) + 4 * t
    assert part("3b", lane).right == ((2 * 16 + 5) * 1024 + 512 + 16 * lane,)
    swapped = [*range(8 * t + 4, 8 * t + 8), *range(8 * t, 8 * t + 4)]
    assert part("4b", lane).right == tuple(swapped)
    stored = {(g + 8 * h, 8 * b + 2 * t + e) for h in (0, 1) for b in (0, 1) for e in (0, 1)}
    right = part("5d", lane).right
    assert set(zip(right[::2], right[1::2])) == {at for at in stored if at[1] < 13}
    assert part("8a", lane).right == (16 + g, 7 * 32 + 8 * t + 4 + 2 + 1)


@pytest.mark.parametrize("k", range(8, 16))
def test_swapped_halves_in_the_emulator(k: int) -> None:
    weight = np.zeros((N, K), np.float32)
    weight[3, k] = 1
    x = halves_exchanged(bf16_bits((np.arange(K) % 256).astype(np.float32)[None]))
    problem = Problem(x, (PackedWeight.of(bf16_bits(weight)),), (None,))
    (y,) = emulate(problem, Config(1, 1), Float64())
    assert y[0, 3] == part("4b").right[k - 8]


def test_only_one_fill_shows_the_swap() -> None:
    random = np.random.default_rng(4).integers(-9, 10, (f.ROWS, f.K_BLOCK))
    k = np.arange(f.K_BLOCK)
    fills = {
        "W random, x all ones": (random, np.ones_like(k)),
        "W all ones, x random": (np.ones_like(random), random[0]),
        "W random, x[k] = k mod 4": (random, k % 4),
        "W random, x[k] = k mod 8": (random, k % 8),
    }
    assert list(fills) == list(FILLS)
    seen = [not np.array_equal(w @ x, w @ x[k ^ 4]) for w, x in fills.values()]
    assert [i for i, notices in enumerate(seen) if notices] == [*part("4c").right]


# --- right answers and mistakes


@pytest.mark.parametrize("lane", LANES)
def test_right_answers_are_accepted(lane: int) -> None:
    for name, each in parts(lane):
        for answer in (each.right, *each.also):
            for text in spellings(each, answer):
                verdict = each.check(text)
                assert verdict.right, (name, text)
                assert verdict.text == each.solution()


def spellings(part: Part, answer: Answer) -> list[str]:
    written = part.form.write(answer)
    if isinstance(part.form, Letter):
        return [written, written.upper(), f" ({written}) ", f"{written}."]
    spaced = "  ".join(map(str, answer))
    assert isinstance(part.form, Tuples)
    size = len(part.form.names)
    items = [answer[i : i + size] for i in range(0, len(answer), size)]
    worded = "; ".join(
        " ".join(f"{name} {i}" for name, i in zip(part.form.names, item)) for item in items
    )
    texts = [written, spaced, spaced.replace("  ", ","), f"[{spaced}]", str(items), worded]
    if not part.form.ordered:
        texts.append(str(items[::-1]))
    return texts


@pytest.mark.parametrize("lane", LANES)
def test_every_mistake_gets_its_own_hint(lane: int) -> None:
    for name, each in parts(lane):
        key = each.form.key
        told = [key(answer) for answer in (each.right, *each.also)]
        for mistake in each.mistakes:
            for answer in mistake.answers:
                if key(answer) in told:  # g and t exchanged is no mistake in lane 0
                    assert lane != 13, (name, mistake.hint, answer)
                    continue
                told.append(key(answer))
                verdict = each.check(each.form.write(answer))
                assert not verdict.right and verdict.text == mistake.hint, name


def test_hints_tell_the_mistake_and_not_the_answer() -> None:
    for name, each in parts(13):
        answer = each.form.write(each.right)
        hints = [mistake.hint for mistake in each.mistakes]
        assert len(hints) >= 3 and all(hints), name
        assert all(hint.endswith((".", "?")) for hint in hints)
        if len(answer) >= 4:
            assert not any(answer in hint for hint in [*hints, each.nudge]), name


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("1a", "(3,8) (11,8) (3,10) (11,10)", "Those are the k of the packed layout"),
        ("1a", "(3,2) (4,2) (3,10) (4,10)", "g and g+8, not g and g+1"),
        ("1a", "(1,6) (9,6) (1,14) (9,14)", "g and t are exchanged"),
        ("1a", "(3,2) (11,2) (3,4) (11,4)", "eight further on, not two"),
        ("1a", "(3,2) (11,2) (5,5) (6,6)", "Of yours, only (3, 2) (11, 2) belong."),
        ("1a", "(3,2) (11,2)", "There should be 4; yours has 2."),
        ("1a", "(0,0) (0,0) (0,0) (0,0)", "None of these. Start from g"),
        ("1b", "1538 5634 1546 5642", "Those are offsets in elements"),
        ("1b", "388 1412 404 1428", "K = 512 values, not N = 64"),
        ("1b", "3076 4100 3092 4116", "g and g+8, not g and g+1"),
        ("1c", "32 4", "Not every lane is alone"),
        ("2a", "3 2 3 3 11 2 11 3 3 10 3 11 11 10 11 11", "k of the natural layout"),
        ("2a", "3 8 3 9 3 10 3 11 11 8 11 9 11 10 11 11", "The registers alternate"),
        ("2a", "3 8 3 9 11 8 11 9 3 10 3 11 11 10 11 12", "Right up to the seventh. The eighth"),
        ("3a", f"{37 * 32 + 32 + 13}", "two steps of 32 lanes: 64 units, not 32"),
        ("3a", f"{37 * 64 + 64 + 13}", "From step 0 to step 1 it is 32 units"),
        ("3b", "2413", "in units"),
        ("3b", "19304", "in elements"),
        ("3c", "512", "from step 0 to step 1"),
        ("4a", "2 3 10 11", "Those are the slots"),
        ("4b", "8-15", "step 0 gets xv.z and xv.w"),
        ("5a", "1", "Round up"),
        ("5c", "7 15", "There is no token 15"),
        ("5c", "7 13", "token M is already out of bounds"),
        ("5e", "5 6 7", "the groups g whose token is clamped"),
        ("6a", "20-23", "Slice and warp are exchanged"),
        ("6b", "24-27", "went to the first warps"),
        ("6c", "3 7 11 15", "a whole trip"),
        ("8a", "(23, 365)", "That is the place in a row-major W"),
        ("8a", "(46, 504)", "The offset is in bytes: value 12141"),
        ("8b", "2 6 0 21 5", "4g + t, not 8t + g"),
    ],
)
def test_typical_mistakes(name: str, answer: str, hint: str) -> None:
    verdict = part(name).check(answer)
    assert not verdict.right and hint in verdict.text


@pytest.mark.parametrize("lane", LANES)
def test_examples_show_the_form_and_not_the_answer(lane: int) -> None:
    for name, each in parts(lane):
        if each.example:
            assert not each.check(each.example).right, name


# --- what is no answer


@pytest.mark.parametrize("text", ["", " ", "()", "why?", "-", "…"])
def test_nothing_is_no_answer(text: str) -> None:
    for _, each in parts(13):
        with pytest.raises(Unreadable):
            each.check(text)


@given(st.text(), st.integers(0, 31))
def test_random_text_answers_no_exercise(text: str, lane: int) -> None:
    assert not any(
        all(accepted(part, text) for part in each.sheet(lane).parts) for each in ASKED.values()
    )


@given(st.lists(st.integers(0, 70000), max_size=20), st.integers(0, 31))
def test_random_numbers_answer_no_exercise(numbers: list[int], lane: int) -> None:
    text = " ".join(map(str, numbers))
    for each in ASKED.values():
        assert not all(accepted(part, text) for part in each.sheet(lane).parts)


def accepted(part: Part, text: str) -> bool:
    try:
        return part.check(text).right
    except Unreadable:
        return False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("none", "no number in 'none'"),
        ("(3, 2) 11", "3 numbers in '(3, 2) 11'; each item is (row, k)"),
        ("9" * 5000, "more than any answer"),
    ],
)
def test_an_answer_of_another_form_is_said_to_be_one(text: str, message: str) -> None:
    with pytest.raises(Unreadable, match=re.escape(message)):
        part("1a").check(text)


@pytest.mark.parametrize(
    "text", ["24-27", "24 to 27", "24..27", "24…27", "24 – 27", "blocks 24 - 27"]
)
def test_ranges(text: str) -> None:
    assert Tuples(("K block",)).read(text) == (24, 25, 26, 27)


@pytest.mark.parametrize(
    "text", ["-2413", "- 2413", "−2413", "–2413", "(3, -2)", "3 -2", "k=-2", "-3-5", "0 - 4, -9"]
)
def test_a_sign_is_refused(text: str) -> None:
    for names in (("k",), ("row", "k")):
        with pytest.raises(Unreadable, match="no answer here is negative"):
            Tuples(names).read(text)


def test_a_sign_is_refused_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "3a", "-2413")
    assert code == 2 and "leave out the minus" in text


@pytest.mark.parametrize(
    "text", ["2413.0", "37*64 + 45", "37 × 64", "2400+13", "(37)*64", "37·64", "4g + t", "4*(3+1)"]
)
def test_what_is_not_worked_out_is_refused(text: str) -> None:
    with pytest.raises(Unreadable, match="itself, worked out"):
        part("3a").check(text)


def test_thousands_where_one_number_is_due() -> None:
    assert part("3a").check("2,413").right and part("3b").check("38,608 bytes").right
    assert Tuples(("byte",), one=True).read("1,048,576") == (1048576,)
    assert Tuples(("byte",)).read("16,200,300") == (16, 200, 300)
    assert Tuples(("byte",), one=True).read("16, 200") == (16, 200)
    assert Tuples(("byte",), one=True).read("1024,200,16") == (1024, 200, 16)


def test_every_single_number_may_have_thousands() -> None:
    for name, each in parts(13):
        if isinstance(each.form, Tuples):
            single = len(each.right) == len(each.form.names) == 1
            assert each.form.one == (single and each.form.ordered), name


def test_a_letter_in_a_sentence_gets_a_kind_answer(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "2c", "I", "think", "b")
    assert code == 2 and "answer with the letter alone, a to d, not 'I think b'" in text


def test_other_numbers() -> None:
    form = Tuples(("byte",))
    assert form.read("0x10, 007 and 5-3") == (16, 7, 5, 3)
    with pytest.raises(Unreadable):
        form.read("0-999999")


# --- a function of the reader's


def judged(capsys: pytest.CaptureFixture[str], folder: Path, source: str) -> tuple[int, str]:
    path = folder / "mine.py"
    path.write_text(source, encoding="utf-8")
    code, text = run(capsys, "7", "--file", str(path))
    assert [each.name for each in folder.iterdir()] == ["mine.py"]
    return code, " ".join(text.split())


SOLUTION = write_pack.WRITE_PACK.solution


def test_the_solution_is_right(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, text = judged(capsys, tmp_path, SOLUTION)
    assert code == 0 and text.startswith("Right: the same as the kernel's on 4 shapes")


@pytest.mark.parametrize("shape", ["(-1)", "(rb, kb, 2, 8, 4, 2, 2, 2)", "(rb * kb, 512)"])
def test_any_shape_will_do(capsys: pytest.CaptureFixture[str], tmp_path: Path, shape: str) -> None:
    source = SOLUTION.replace("(rb, kb, 2, 32, 8)", shape)
    assert source != SOLUTION and judged(capsys, tmp_path, source)[0] == 0


@pytest.mark.parametrize("number", range(len(write_pack.MISREADINGS)))
def test_a_misread_pack_is_named(number: int) -> None:
    misread, hint = write_pack.MISREADINGS[number]
    verdict = write_pack.check(lambda w: np.ascontiguousarray(misread(w)))
    assert not verdict.right
    assert hint in verdict.text and "The first that differs is element " in verdict.text
    assert len({hint for _, hint in write_pack.MISREADINGS}) == len(write_pack.MISREADINGS)


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ("return packed.reshape", "packed.reshape", 
         "pack returns NoneType, not an array. Did you forget to return?"),
        ("return packed.reshape(rb, kb, 2, 32, 8)", "return pieces.transpose(order)", "is a view"),
        (", w.dtype)", ")", "uint16 became float64"),
        ("padded = np.zeros((-(-n // 16) * 16, -(-k // 32) * 32), w.dtype)",
         "padded = np.zeros((n // 16 * 16, k // 32 * 32), w.dtype)",
         "pack failed in line 7: ValueError: could not broadcast"),
        ("    padded[:n, :k] = w", "    padded = w",
         "pack failed in line 10: ValueError: cannot reshape array of size 640"),
        ("padded[:n, :k] = w", "padded[-n:, -k:] = w", "On W[20, 32]: The first that differs is element 0 "
         "(row block 0, K block 0, step 0, lane 0, value 0): it should hold W[0, 0], and yours holds 0."),
        (".transpose(order)", ".permute(order)", "torch's permute is called transpose"),
        ("return packed", "w[:] = 0; return packed", "pack changed w."),
        ("return packed", "return w[:1]; packed", "On W[16, 32]: 32 values came out of 512."),
        ("return packed", "raise SystemExit(0); packed", "pack failed in line 13: SystemExit: 0"),
        ("return packed", "return np.full(padded.size, np.nan); packed", "yours holds"),
        ("return packed", "return np.random.permutation(w.ravel()); packed", "The first that differs"),
    ],
)  # fmt: skip
def test_other_mistakes_in_pack(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, old: str, new: str, hint: str
) -> None:
    assert old in SOLUTION
    code, text = judged(capsys, tmp_path, SOLUTION.replace(old, new))
    assert code == 1 and text.startswith("Not yet. ") and hint in text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "defines no function pack"),
        ("pack = 3", "defines no function pack"),
        ("def pack(w:\n", "does not run in line 1: SyntaxError"),
        ("\n1 / 0\n", "does not run in line 2: ZeroDivisionError"),
        ("raise SystemExit(0)", "does not run in line 1: SystemExit"),
    ],
)
def test_a_file_without_pack_is_bad_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, source: str, message: str
) -> None:
    code, text = judged(capsys, tmp_path, source)
    assert code == 2 and message in text


def test_a_template_is_written_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("mine.py")
    code, text = run(capsys, "7", "--template", str(path))
    assert code == 0 and "Fill it in" in text
    stub = path.read_text(encoding="utf-8")
    code, text = judged(capsys, tmp_path, stub)
    assert code == 1 and "nothing is reordered yet" in text and "lane 0, value 2" in text
    code, text = run(capsys, "7", "--template", str(path))
    assert code == 2 and "exists already" in text
    assert path.read_text(encoding="utf-8") == stub


# --- the command


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys)
    assert code == 0
    for number, each in enumerate(EXERCISES, 1):
        assert f"{number:3}  {each.title}" in text


@pytest.mark.parametrize("number", range(1, len(EXERCISES) + 1))
@pytest.mark.parametrize("lane", [0, 13, 31])
def test_questions_and_solutions(
    capsys: pytest.CaptureFixture[str], number: int, lane: int
) -> None:
    code, question = run(capsys, str(number), "--lane", str(lane))
    assert code == 0 and question.startswith(f"Exercise {number}. {EXERCISES[number - 1].title}\n")
    code, solution = run(capsys, str(number), "--solution", "--lane", str(lane))
    assert code == 0
    if number in ASKED:
        for each in ASKED[number].sheet(lane).parts:
            line = f"\n   {each.form.write(each.right)}\n"
            assert line in solution and line not in question


@pytest.mark.parametrize("number", ASKED)
def test_all_parts_at_once(capsys: pytest.CaptureFixture[str], number: int) -> None:
    sheet = ASKED[number].sheet(13)
    right = [each.form.write(each.right) for each in sheet.parts]
    code, text = run(capsys, str(number), *right)
    assert code == 0 and text.count("Right: ") == len(right)
    mistake = sheet.parts[0].mistakes[0]
    wrong = sheet.parts[0].form.write(mistake.answers[0])
    code, text = run(capsys, str(number), wrong, *right[1:])
    assert code == 1 and text.startswith("a) Not yet. ") and text.count("Right: ") == len(right) - 1
    assert mistake.hint in " ".join(text.split())


def test_hints_fit_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for name, each in parts(13):
        for mistake in filter(lambda mistake: mistake.answers, each.mistakes):
            assert run(capsys, name, each.form.write(mistake.answers[0]))[0] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("1a", "3 2 11 2 3 10 11 10"),
        ("1A)", "3,2", "11,2", "3,10", "11,10"),
        ("--lane", "0", "1a", "0 0 8 0 0 8 8 8"),
        ("1a", "--lane", "0", "0 0 8 0 0 8 8 8"),
    ],
)
def test_one_part(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert run(capsys, *arguments)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("0",), "there is no exercise '0'; they are 1 to 8"),
        (("9",), "there is no exercise '9'"),
        (("one",), "there is no exercise 'one'"),
        (("1z",), "exercise 1 has parts a to c, no z"),
        (("1", "3"), "3 parts, a to c, and 1 answer: quote each, or answer one part, as in 1a"),
        (("1", "3", "b", "c"), "1 number in '3'; each item is (row, k)"),
        (("1a", ""), "no number in ''"),
        (("2c", "f"), "'f' is not a letter from a to d"),
        (("1", "--lane", "32"), "argument --lane: '32' is not a lane, 0 to 31"),
        (("1", "--file", "x.py"), "exercise 1 is answered in words"),
        (("7", "--file", "/no/such.py"), "cannot read /no/such.py: No such file"),
        (("7", "--template", "/no/such.py"), "cannot write /no/such.py: No such file"),
        (("7", "pack"), "exercise 7 is answered with a file"),
        (("--solution",), "which exercise?"),
        (("1", "--hint"), "unrecognized arguments: --hint"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code, text = run(capsys, *arguments)
    assert code == 2 and message in text


class Terminal:
    """A reader who types lines, and then leaves."""

    def __init__(self, patch: pytest.MonkeyPatch, *lines: str) -> None:
        self._lines = iter(lines)
        patch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        patch.setattr("builtins.input", self._input)

    def _input(self, prompt: str) -> str:
        try:
            return next(self._lines)
        except StopIteration:
            raise EOFError from None


def test_a_dialogue(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Terminal(monkeypatch, "what", "3076 4100 3092 4116", "3076, 11268, 3092, 11284")
    code, text = run(capsys, "1b")
    assert code == 0
    assert "I cannot read that: no number in 'what'" in text
    assert text.index("not g and g+1") < text.index("Right: 3076, 11268, 3092, 11284")


def test_a_whole_dialogue(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Terminal(monkeypatch, *(each.form.write(each.right) for each in ASKED[6].sheet(13).parts))
    code, text = run(capsys, "6")
    assert code == 0 and text.count("Right: ") == 4 and text.endswith("labs.exercise 7\n")


@pytest.mark.parametrize("asked", ["?", "help", " HELP "])
def test_help_in_a_dialogue(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    Terminal(monkeypatch, "", asked, "", "1024")
    code, text = run(capsys, "3c")
    assert code == 0 and text.count("? shows how, solution tells it, q leaves") == 2
    assert "For instance:  " in text and "Not yet" not in text


def test_the_solution_in_a_dialogue(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sheet = ASKED[6].sheet(13).parts
    Terminal(monkeypatch, "solution", *(each.form.write(each.right) for each in sheet[1:]))
    code, text = run(capsys, "6")
    assert code == 1 and text.count("Right: ") == len(sheet) - 1
    assert f"\n   {sheet[0].form.write(sheet[0].right)}\n" in text and "Done." in text


@pytest.mark.parametrize(
    "lines", [(), ("",), ("q",), ("", "Quit"), ("1 1 1 1 1 1 1 1",), ("1 1 1 1", "q", "0 0")]
)
def test_leaving_a_dialogue(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...]
) -> None:
    Terminal(monkeypatch, *lines)
    code, text = run(capsys, "1", "--lane", "5")
    assert code == 1 and "Left at a." in text and "exercise 1a --lane 5 --solution" in text


def test_a_pack_that_changes_w_is_told_so_first() -> None:
    def packed(w: Any) -> Any:
        w += 1
        return w

    w = "On W[16, 32]: pack changed w."
    assert write_pack.check(packed).text.startswith(w)


def test_help_has_an_example_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "--help")
    found = re.search(r'labs\.exercise (\w+) "([^"]*)"', " ".join(text.split()))
    assert code == 0 and found
    assert run(capsys, *found.groups())[0] == 1


def test_it_runs_as_a_module_on_numpy_alone() -> None:
    home = Path(packed_gemv.__file__).parents[1]
    script = (
        "import runpy, sys\n"
        "try: runpy.run_module('packed_gemv.labs.exercise', run_name='__main__')\n"
        "except SystemExit as stopped: assert not stopped.code\n"
        "print(*{'lanecheck', 'torch', 'rich'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=home, capture_output=True, encoding="utf-8", check=True
    )
    assert done.stdout and done.stderr.strip() == ""


def test_pack_is_checked_on_padded_shapes_too() -> None:
    assert any(n % f.ROWS and k % f.K_BLOCK for n, k in write_pack.PADDED)
    assert all(n % f.ROWS == k % f.K_BLOCK == 0 for n, k in write_pack.WHOLE)
    assert not write_pack.check(lambda w: pack(w) if w.shape in write_pack.WHOLE else w).right
