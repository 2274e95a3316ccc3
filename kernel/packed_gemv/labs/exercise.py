"""Exercises with checked answers: what each lane reads, why one load suffices, and how it is stored.

Run ``python -m packed_gemv.labs.exercise`` for the list, and with a number for one exercise. In a
terminal it asks, where ``?`` tells how to answer, ``solution`` the answer, and ``q`` leaves; elsewhere,
or with answers on the command line, it checks once. Exit code 0 is right, 1 is wrong, told or left, 2 is
an answer that cannot be read.
"""

from __future__ import annotations

import re
import sys
import textwrap
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from packed_gemv.fragments import LANES
from packed_gemv.labs import WIDTH, Parser, counted, show
from packed_gemv.labs.exercises import EXERCISES
from packed_gemv.labs.exercises.attempt import Unusable, attempt
from packed_gemv.labs.exercises.forms import Unreadable, letter
from packed_gemv.labs.exercises.model import Coding, Part, Sheet, Verdict

_COMMAND = "python -m packed_gemv.labs.exercise"
_PROMPT = "Answer at the prompt. ? shows how, solution tells it, q leaves."


def main(argv: Sequence[str] | None = None) -> int:
    """List, ask or check; see the module's docstring."""
    parser = Parser(
        "packed_gemv.labs.exercise",
        "Exercises on the packed layout; without a number, the list.",
        '1b "0, 64, 128, 192"',
    )
    parser.add_argument(
        "number", nargs="?", metavar="N", help="an exercise, or a part of it: 1, 1b"
    )
    parser.add_argument("answers", nargs="*", metavar="ANSWER", help="quoted, one for each part")
    parser.add_argument("--lane", type=_lane, default=13, help="the lane that is asked about (13)")
    parser.add_argument("--solution", action="store_true", help="tell the answers, and why")
    parser.add_argument("--file", metavar="FILE", help="a Python file that answers")
    parser.add_argument("--template", metavar="FILE", help="write a file to start from")
    args = parser.parse_intermixed_args(argv)
    try:
        return _run(args)
    except (Unreadable, Unusable) as mistake:
        parser.error(str(mistake))


def _run(args: Namespace) -> int:
    if args.number is None:
        if args.file or args.template or args.solution:
            raise Unreadable("which exercise? Give its number first")
        show(_list())
        return 0
    number, part = _chosen(args.number)
    exercise = EXERCISES[number - 1]
    title = f"Exercise {number}. {exercise.title}"
    if isinstance(exercise, Coding):
        return _code(number, title, exercise, part, args)
    if args.file or args.template:
        raise Unreadable(f"exercise {number} is answered in words, not with a file")
    desk = _Desk(number, title, exercise.sheet(args.lane), args.lane)
    chosen = desk.chosen(part)
    if args.solution:
        show(desk.solution(chosen))
        return 0
    if args.answers:
        return desk.check(chosen, args.answers)
    if sys.stdin.isatty():
        return desk.ask(chosen)
    show([*desk.questions(chosen), "", *desk.how(chosen)])
    return 0


def _lane(text: str) -> int:
    if not text.isdecimal() or int(text) >= LANES:
        raise ArgumentTypeError(f"{text!r} is not a lane, 0 to {LANES - 1}")
    return int(text)


def _chosen(text: str) -> tuple[int, str]:
    """``1b`` as (1, "b")."""
    found = re.fullmatch(r"([0-9]{1,3})([a-z]?)\)?", text.strip().lower())
    if not found or not 1 <= int(found[1]) <= len(EXERCISES):
        raise Unreadable(f"there is no exercise {text!r}; they are 1 to {len(EXERCISES)}")
    return int(found[1]), found[2]


def _list() -> Iterator[str]:
    yield "Exercises on the packed layout, from easy to hard"
    yield ""
    for number, exercise in enumerate(EXERCISES, 1):
        yield f"{number:3}  {exercise.title:16}  {exercise.line}"
    yield ""
    yield f"Begin with:  {_COMMAND} 1"
    yield "They ask about lane 13; --lane asks about another, and --solution tells."


class _Desk:
    """One exercise on the table: asks its parts, takes answers, tells verdicts."""

    def __init__(self, number: int, title: str, sheet: Sheet, lane: int) -> None:
        self._sheet, self._title, self._number = sheet, title, number
        self._option = "" if lane == 13 else f" --lane {lane}"

    def chosen(self, part: str) -> dict[str, Part]:
        """All parts, or the one that is named, by letter."""
        parts = {letter(i): each for i, each in enumerate(self._sheet.parts)}
        if part and part not in parts:
            raise Unreadable(f"exercise {self._number} has parts a to {max(parts)}, no {part}")
        return {part: parts[part]} if part else parts

    def questions(self, chosen: dict[str, Part]) -> Iterator[str]:
        yield from self._given()
        for name, part in chosen.items():
            yield ""
            yield from _question(name, part)

    def how(self, chosen: dict[str, Part]) -> Iterator[str]:
        """How to answer, and what if one cannot."""
        first, part = next(iter(chosen.items()))
        example = _example(part)
        command = f"{_COMMAND} {self._number}"
        yield "To answer, for instance (in quotes):"
        yield f'  {command}{first} "{example}"{self._option}'
        if len(chosen) > 1:
            several = " ".join(['"…"'] * len(chosen))
            yield "or all parts at once:"
            yield f"  {command} {several}{self._option}"
        yield "Given up?"
        yield f"  {command} --solution{self._option}"

    def solution(self, chosen: dict[str, Part]) -> Iterator[str]:
        yield from self._given()
        for name, part in chosen.items():
            yield ""
            yield from _question(name, part)
            yield ""
            yield from _wrapped(part.solution(), "   ")

    def check(self, chosen: dict[str, Part], answers: list[str]) -> int:
        """One answer a part; for a single part, its words need no quotes."""
        if len(chosen) == 1:
            answers = [" ".join(answers)]
        if len(answers) != len(chosen):
            raise Unreadable(
                f"{counted(len(chosen), 'part')}, a to {max(chosen)}, and "
                f"{counted(len(answers), 'answer')}: quote each, or answer one part, "
                f"as in {self._number}a"
            )
        verdicts = [part.check(text) for part, text in zip(chosen.values(), answers)]
        lines: list[str] = []
        for name, verdict in zip(chosen, verdicts):
            lines += [*([""] if lines else []), *_told(f"{name}) ", verdict)]
        show(lines)
        return 0 if all(verdict.right for verdict in verdicts) else 1

    def ask(self, chosen: dict[str, Part]) -> int:
        """Ask part by part, again after each mistake, until it is right, told or left."""
        show([*self._given(), "", _PROMPT])
        told = False
        for name, part in chosen.items():
            show(["", *_question(name, part)])
            try:
                told |= not _answered(name, part)
            except (EOFError, KeyboardInterrupt):
                left = f"{_COMMAND} {self._number}{name}{self._option}"
                show(
                    ["", f"Left at {name}. Go on, or give up:", f"  {left}", f"  {left} --solution"]
                )
                return 1
        if self._number < len(EXERCISES) and len(chosen) > 1:
            show(["", f"Done. The next one:  {_COMMAND} {self._number + 1}"])
        return 1 if told else 0

    def _given(self) -> list[str]:
        return [self._title, "", *_wrapped(self._sheet.given)]


def _example(part: Part) -> str:
    """An answer that shows the form."""
    return part.example or part.form.write((0,))


def _question(name: str, part: Part) -> Iterator[str]:
    ask, *options = part.ask.splitlines()
    yield from textwrap.wrap(ask, WIDTH - 1, initial_indent=f"{name}) ", subsequent_indent="   ")
    for option in options:
        yield from textwrap.wrap(
            option.strip(), WIDTH - 1, initial_indent="   ", subsequent_indent="      "
        )


def _answered(name: str, part: Part) -> bool:
    """Ask until the answer is right; false if it had to be told.

    Raises:
        EOFError: if the reader leaves.
    """
    while True:
        text = input(f"{name}> ").strip()
        match text.lower():
            case "":
                continue
            case "q" | "quit":
                raise EOFError
            case "?" | "help":
                show([f"For instance:  {_example(part)}", _PROMPT])
                continue
            case "solution":
                show(_wrapped(part.solution(), "   "))
                return False
        try:
            verdict = part.check(text)
        except Unreadable as mistake:
            verdict = Verdict(False, f"I cannot read that: {mistake}.")
        show(_told("", verdict))
        if verdict.right:
            return True


def _told(label: str, verdict: Verdict) -> list[str]:
    text = f"Right: {verdict.text}" if verdict.right else f"Not yet. {verdict.text}"
    first, *rest = _wrapped(text, " " * len(label))
    return [label + first.lstrip(), *rest]


def _wrapped(text: str, indent: str = "") -> list[str]:
    """Paragraphs to the terminal's width; lines that are indented already stay as they are."""
    lines: list[str] = []
    for paragraph in text.splitlines():
        kept = paragraph.startswith("  ")
        width = WIDTH - 1 - len(indent)
        lines += [
            indent + line for line in ([paragraph] if kept else textwrap.wrap(paragraph, width))
        ]
    return lines


# --- a function to write


def _code(number: int, title: str, exercise: Coding, part: str, args: Namespace) -> int:
    if part or args.answers:
        raise Unreadable(f"exercise {number} is answered with a file: --file FILE")
    if args.template:
        return _write(Path(args.template), exercise.stub, f"{_COMMAND} {number} --file")
    if args.file:
        verdict = attempt(exercise, args.file)
        show(_told("", verdict))
        return 0 if verdict.right else 1
    lines = [title, "", *_wrapped(exercise.ask), ""]
    if args.solution:
        lines += exercise.solution.splitlines()
    else:
        file = f"my_{exercise.name}.py"
        lines += [
            "A file to start from, the check, and the answer if you give up:",
            f"  {_COMMAND} {number} --template {file}",
            f"  {_COMMAND} {number} --file {file}",
            f"  {_COMMAND} {number} --solution",
        ]
    show(lines)
    return 0


def _write(path: Path, stub: str, then: str) -> int:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(stub)
    except FileExistsError:
        raise Unusable(f"{path} exists already, and may hold your work") from None
    except OSError as error:
        raise Unusable(f"cannot write {path}: {error.strerror}") from None
    show([f"Wrote {path}. Fill it in, then:", f"  {then} {path}"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
