"""Shrinking: the smallest case that still fails, and never one that does not."""

from __future__ import annotations

import math

import pytest
import second_subject

from lanecheck import cases
from lanecheck.campaign import Budget, fuzz
from lanecheck.shrink import smallest
from lanecheck.trial import Result, Target, Trial, run

SIZES = ("m", "n", "k")


def failing(variant: str) -> Result:
    class Inline:
        def run(self, target, work):
            yield from map(run, work)

    return fuzz(
        Target(f"second_subject:{variant}"),
        Budget(60),
        0,
        Inline(),
        batch=20,
    )


def volume(line: str) -> int:
    params = cases.parse(line, second_subject.SUBJECT).params
    return math.prod(int(params[axis]) for axis in SIZES)


@pytest.mark.parametrize(
    ("variant", "sizes"),
    [
        ("DROPS_LAST_K", (1, 1, 1)),
        ("SWAPS_TWO_ROWS", (2, 1, 1)),
        ("LEAVES_AN_ELEMENT", (1, 1, 1)),
        ("WRITES_INTO_GAP", (2, 1, 1)),
    ],
)
def test_the_smallest_failing_case_is_found(variant: str, sizes: tuple[int, int, int]):
    target = Target(f"second_subject:{variant}")
    start = max((failure.line for failure in failing(variant).failures), key=volume)
    found = smallest(target, start)
    params = cases.parse(found, second_subject.SUBJECT).params
    assert tuple(params[axis] for axis in SIZES) == sizes
    assert volume(found) < volume(start)
    assert run(Trial(target, (found,))).failures


def test_the_start_comes_back_if_nothing_else_fails():
    start = cases.case(second_subject.SUBJECT, 0, 0).line
    assert smallest(Target("second_subject:SUBJECT"), start, examples=20) == start


def test_shrinking_is_reproducible():
    target = Target("second_subject:SWAPS_TWO_ROWS")
    start = failing("SWAPS_TWO_ROWS").failures[0].line
    assert smallest(target, start) == smallest(target, start)
