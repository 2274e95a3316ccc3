"""How answers are written and read: numbers, tuples of numbers, or one letter.

An answer is a flat tuple of integers. Reading forgives spaces, commas, brackets and words, so that
``(3, 8) (3, 9)``, ``3,8;3,9`` and ``row 3 k 8, row 3 k 9`` are one answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from packed_gemv.labs import counted, runs

Answer = tuple[int, ...]

_MOST = 4096  # values in one answer
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+")
_RANGE = re.compile(r"(?<![0-9])([0-9]{1,6})\s*(?:-|–|\.\.+|…|\bto\b)\s*([0-9]{1,6})(?![0-9])")
_THOUSANDS = re.compile(r"(?<![0-9,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_MINUS = re.compile(r"(?:^|[\s,;:=(\[])[-−–][0-9]|(?:^|[,;:=(\[])\s*[-−–]\s*[0-9]")
_FORMULA = re.compile(r"\w\s*[*+×·]\s*[\w(]|\)\s*[*+×·]\s*\w|[0-9]\.[0-9]")
_LETTER = re.compile(r"[\W_]*([a-z])[\W_]*")


class Unreadable(ValueError):
    """An answer that is none, whatever the question; the message says what was expected."""


class Form(Protocol):
    """What an answer looks like."""

    def read(self, text: str) -> Answer:
        """The answer in ``text``; raises :class:`Unreadable`."""

    def write(self, answer: Answer) -> str:
        """The answer as this package writes it; ``read`` reads it back."""

    def key(self, answer: Answer) -> object:
        """Equal for answers that say the same."""

    def difference(self, answer: Answer, right: Answer) -> str:
        """Where a wrong answer departs from the right one, without telling the right one."""


@dataclass(frozen=True)
class Tuples:
    """Items of equally many numbers, such as (row, k).

    Attributes:
        names: of the numbers of one item.
        ordered: whether the order of the items matters.
        one: whether a single number is due, which may then have commas, as 1,024.
    """

    names: tuple[str, ...]
    ordered: bool = True
    one: bool = False

    def read(self, text: str) -> Answer:
        asked = text
        if _FORMULA.search(text):
            raise Unreadable(f"{_quoted(asked)}: give each number itself, worked out, and whole")
        if self.one:
            text = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text)
        if len(self.names) == 1:
            text = _RANGE.sub(_spelt_out, text)
        if _MINUS.search(text):
            raise Unreadable(
                f"{_quoted(asked)}: no answer here is negative, so leave out the minus"
            )
        found = _NUMBER.findall(text)
        if not found:
            raise Unreadable(f"no number in {_quoted(asked)}; expected {self._item}")
        if len(found) > _MOST or any(len(number) > 12 for number in found):
            raise Unreadable("that is more than any answer here is long")
        if len(found) % len(self.names):
            raise Unreadable(
                f"{counted(len(found), 'number')} in {_quoted(asked)}; each item is {self._item}"
            )
        return tuple(int(number, 0) if number[1:2] in "xX" else int(number) for number in found)

    def write(self, answer: Answer) -> str:
        if len(self.names) > 1:
            return " ".join(map(self._written, self._items(answer)))
        return runs(list(answer)) if len(answer) > 4 else ", ".join(map(str, answer))

    def key(self, answer: Answer) -> object:
        items = self._items(answer)
        return items if self.ordered else sorted(items)

    def difference(self, answer: Answer, right: Answer) -> str:
        given, expected = self._items(answer), self._items(right)
        if len(given) != len(expected):
            return f"There should be {len(expected)}; yours has {len(given)}."
        if len(expected) == 1:
            return f"Not {self._written(given[0])}."
        if not self.ordered:
            good = [item for item in given if item in expected]
            hits = " ".join(map(self._written, dict.fromkeys(good)))
            return f"Of yours, only {hits} belong." if good else "None of these."
        first = next(i for i, item in enumerate(given) if item != expected[i])
        before = "" if first == 0 else f"Right up to the {_ordinal(first)}. "
        return f"{before}The {_ordinal(first + 1)} is not {self._written(given[first])}."

    @property
    def _item(self) -> str:
        name = ", ".join(self.names)
        return f"({name})" if len(self.names) > 1 else f"a number: {name}"

    def _items(self, answer: Answer) -> list[Answer]:
        size = len(self.names)
        return [answer[i : i + size] for i in range(0, len(answer), size)]

    def _written(self, item: Answer) -> str:
        return f"({', '.join(map(str, item))})" if len(item) > 1 else str(item[0])


@dataclass(frozen=True)
class Letter:
    """One of several statements, as a letter: (0,) is a."""

    count: int

    def read(self, text: str) -> Answer:
        found = _LETTER.fullmatch(text.lower())
        if not found and re.search(r"\w", text):
            raise Unreadable(
                f"answer with the letter alone, a to {letter(self.count - 1)}, not {_quoted(text)}"
            )
        index = ord(found[1]) - ord("a") if found else self.count
        if index >= self.count:
            raise Unreadable(f"{_quoted(text)} is not a letter from a to {letter(self.count - 1)}")
        return (index,)

    def write(self, answer: Answer) -> str:
        return letter(answer[0])

    def key(self, answer: Answer) -> object:
        return answer

    def difference(self, answer: Answer, right: Answer) -> str:
        return f"Not {self.write(answer)}."


def letter(index: int) -> str:
    """0 is ``a``."""
    return chr(ord("a") + index)


def _spelt_out(found: re.Match[str]) -> str:
    first, last = int(found[1]), int(found[2])
    if last - first >= _MOST:
        raise Unreadable("that is more than any answer here is long")
    return " ".join(map(str, range(first, last + 1))) if first <= last else found[0]


def _ordinal(number: int) -> str:
    names = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
    return names[number - 1] if number <= len(names) else f"{number}th"


def _quoted(text: str) -> str:
    short = " ".join(text.split())
    return repr(short if len(short) <= 30 else short[:29] + "…")
