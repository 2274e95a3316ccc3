"""Cases: one generated input each, reproducible from one line.

``case(subject, seed, index)`` is deterministic. The same space is open to hypothesis through
:func:`strategy`, for targeting and for shrinking. A case's line holds every parameter, so that it
means the same whatever later becomes of the generator.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

import hypothesis.strategies as st

from lanecheck.errors import BadInput
from lanecheck.subject import Draw, Subject
from lanecheck.values import REGIMES

T = TypeVar("T")

SIDES = ("upper", "lower")
_SEEDS = 2**32


@dataclass(frozen=True)
class Case:
    """One input of one subject.

    Attributes:
        subject: the subject's name.
        params: the subject's axes, then ``regime`` of values, ``side`` of the inaccessible page that
            buffers lie against, and ``seed`` of values and schedule.
    """

    subject: str
    params: Mapping[str, int | str] = field(hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", MappingProxyType(dict(self.params)))

    @property
    def line(self) -> str:
        """The case as one line, the argument of ``lanecheck replay``."""
        return " ".join([self.subject, *(f"{k}={v}" for k, v in self.params.items())])

    @property
    def seed(self) -> int:
        return int(self.params["seed"])

    def __reduce__(self) -> tuple[object, ...]:
        return Case, (self.subject, dict(self.params))


class Seeded:
    """:class:`~lanecheck.subject.Draw` from a seeded generator."""

    def __init__(self, seed: int, index: int) -> None:
        self._random = random.Random(f"{seed}/{index}")

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def choice(self, options: Sequence[T]) -> T:
        return self._random.choice(options)


class _Hypothesis:
    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def choice(self, options: Sequence[T]) -> T:
        return self._draw(st.sampled_from(options))


def case(subject: Subject, seed: int, index: int) -> Case:
    """Case number ``index`` of campaign ``seed``; the same for ever for the same generator."""
    return _drawn(subject, Seeded(seed, index))


def strategy(subject: Subject) -> st.SearchStrategy[Case]:
    """The same space as a hypothesis strategy."""

    @st.composite
    def build(draw: st.DrawFn) -> Case:
        return _drawn(subject, _Hypothesis(draw))

    return build()


def parse(line: str, subject: Subject) -> Case:
    """Read a case's line.

    Raises:
        BadInput: if the line is not one of this subject's; the message names the word.
    """
    name, *words = line.split() or [""]
    if name != subject.name:
        raise BadInput(f"the line is of subject '{name}', not '{subject.name}'; give --subject")
    known = case(subject, 0, 0).params
    params: dict[str, int | str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise BadInput(f"'{word}' in the case line is not of the form name=value")
        if key not in known:
            raise BadInput(f"unknown '{key}' in the case line; known: {', '.join(known)}")
        if key in params:
            raise BadInput(f"the case line has {key}=… twice")
        params[key] = int(value) if re.fullmatch(r"-?[0-9]+", value) else value
        if isinstance(params[key], int) != isinstance(known[key], int):
            wanted = "a number" if isinstance(known[key], int) else "a word"
            raise BadInput(f"'{word}' in the case line: {key} is {wanted}")
    for key in known:
        if key not in params:
            raise BadInput(f"the case line lacks {key}=…")
    if params["regime"] not in REGIMES or params["side"] not in SIDES:
        raise BadInput(f"regime is one of {', '.join(REGIMES)}; side is one of {', '.join(SIDES)}")
    if not 0 <= int(params["seed"]) < _SEEDS:
        raise BadInput(f"seed={params['seed']} in the case line: seeds are 0 to {_SEEDS - 1}")
    subject.tensors(params)
    return Case(name, params)


def _drawn(subject: Subject, draw: Draw) -> Case:
    params = subject.draw(draw)
    params |= {
        "regime": draw.choice(REGIMES),
        "side": draw.choice(SIDES),
        "seed": draw.integer(0, _SEEDS - 1),
    }
    return Case(subject.name, params)
