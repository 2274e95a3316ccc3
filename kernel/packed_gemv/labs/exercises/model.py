"""What an exercise is: questions with their answers, and the wrong answers that a misreading gives.

A mistake is data, the answer to which one particular misreading leads; its hint names the misreading.
Whoever writes an exercise computes right and wrong answers alike, and never types a number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from packed_gemv.labs.exercises.forms import Answer, Form, Letter


@dataclass(frozen=True)
class Verdict:
    """Whether an attempt is right, and what to tell its author."""

    right: bool
    text: str


@dataclass(frozen=True)
class Mistake:
    """The answers that one misreading gives, and a hint for it."""

    hint: str
    answers: tuple[Answer, ...]


def mistake(hint: str, *answers: Answer) -> Mistake:
    """A :class:`Mistake` from a hint and the answers it is for; for some lane one may be empty."""
    return Mistake(hint, tuple(filter(None, answers)))


@dataclass(frozen=True)
class Part:
    """One question.

    Attributes:
        ask: the question. form: how it is answered. example: an answer, to show the form; not the right one.
        right: the answer. also: other ways to say it.
        why: told with the right answer. nudge: told with a wrong one that no mistake explains.
        mistakes: the first that fits is told. One that happens to be right, as for lane 0, never is.
    """

    ask: str
    form: Form
    right: Answer
    why: str
    nudge: str
    mistakes: tuple[Mistake, ...]
    example: str = ""
    also: tuple[Answer, ...] = ()

    def check(self, text: str) -> Verdict:
        """Judge an attempt.

        Raises:
            Unreadable: if ``text`` is no answer of this form.
        """
        answer = self.form.read(text)
        if self._says(answer, (self.right, *self.also)):
            return Verdict(True, self.solution())
        for each in self.mistakes:
            if self._says(answer, each.answers):
                return Verdict(False, each.hint)
        return Verdict(False, f"{self.form.difference(answer, self.right)} {self.nudge}".strip())

    def solution(self) -> str:
        """The right answer and why."""
        return f"{self.form.write(self.right)}\n{self.why}"

    def _says(self, answer: Answer, among: tuple[Answer, ...]) -> bool:
        return self.form.key(answer) in [self.form.key(each) for each in among]


def choice(ask: str, *options: tuple[str, str], why: str) -> Part:
    """A question with statements to choose from.

    Args:
        options: each a statement and the hint for whoever chooses it; the right one's hint is empty.
        why: told with the right one.
    """
    right = [hint for _, hint in options].index("")
    form = Letter(len(options))
    lines = [f"  {form.write((i,))}. {text}" for i, (text, _) in enumerate(options)]
    mistakes = tuple(mistake(hint, (i,)) for i, (_, hint) in enumerate(options) if hint)
    return Part("\n".join([ask, *lines]), form, (right,), why, "", mistakes)


@dataclass(frozen=True)
class Sheet:
    """An exercise for one lane: what is given, and the questions, a) first."""

    given: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Exercise:
    """Questions about any lane."""

    title: str
    line: str
    sheet: Callable[[int], Sheet]


@dataclass(frozen=True)
class Coding:
    """A function for the reader to write.

    Attributes:
        ask: what it shall do. name: what it is called. stub: a file to start from.
        solution: a file that is right. check: judges the reader's function.
    """

    title: str
    line: str
    ask: str
    name: str
    stub: str
    solution: str
    check: Callable[[Callable[..., Any]], Verdict]
