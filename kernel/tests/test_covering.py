"""The covering cases take every way through every compiled kernel."""

from __future__ import annotations

import itertools
from functools import cache

import pytest

pytest.importorskip("lanecheck")

from lanecheck import covering
from lanecheck.cases import Case, case
from packed_gemv import config
from packed_gemv.subject import SUBJECT


def ways() -> set[tuple[int | str, ...]]:
    """Every compiled kernel, entered or passed by in its main loop, with each hand-over and epilogue."""
    walks = set()
    for mats, nb in itertools.product((1, 2), range(1, 9)):
        trips = config.supported_trips(nb, mats)
        walks |= {(nb, mats, 1, u) for u in trips} | {(nb, mats, 0, 1)}
        if max(trips) > 1:
            walks.add((nb, mats, 1, 0))
    ends = itertools.product((0, 1), (0, 1), (0, 1), ("fp32", "bf16"))  # split, fused, bias, out
    return {(*walk, *end) for walk, end in itertools.product(walks, ends) if walk[1] > end[1]}


@cache
def chosen(seed: int) -> list[Case]:
    return covering.covering(SUBJECT, seed)


@pytest.mark.parametrize("seed", [0, 1])
def test_covering_cases_take_every_way(seed: int):
    taken = [SUBJECT.kernel_of(one.params) for one in chosen(seed)]
    assert set(taken) == ways()
    assert len(taken) <= len(ways()) + covering.FIRST


def test_covering_cases_run_each_of_the_60_kernels_in_its_main_loop():
    kernels = {SUBJECT.kernel_of(one.params)[:4] for one in chosen(0)}
    assert len({kernel for kernel in kernels if kernel[3]}) == 60


def test_a_way_says_whether_the_main_loop_is_entered():
    usual = dict(case(SUBJECT, 0, 0).params) | {"m": 9, "k": 256, "xoff": 0, "xpad": 0, "nw": 2}
    usual |= {"dual": 0, "fused": 0, "bias": 1, "s": 1, "u": 4, "out": "fp32"}
    assert SUBJECT.kernel_of(usual) == (2, 1, 1, 4, 0, 0, 1, "fp32")
    assert SUBJECT.kernel_of(usual | {"k": 248})[2:4] == (1, 4)
    assert SUBJECT.kernel_of(usual | {"s": 2})[3:5] == (0, 1)
    assert SUBJECT.kernel_of(usual | {"xoff": 4})[2:4] == (0, 1)
    assert SUBJECT.kernel_of(usual | {"xpad": 3})[2:4] == (0, 1)
    assert SUBJECT.kernel_of(usual | {"xpad": 3, "m": 1})[2:4] == (1, 4)
