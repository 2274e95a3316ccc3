"""Sight: a case whose output no misreading changes is no evidence."""

from __future__ import annotations

import numpy as np
import pytest
from second_subject import SUBJECT, Matmul

from lanecheck import cases, sight
from lanecheck.subject import Params, Product
from lanecheck.trial import draw_inputs
from lanecheck.values import to_bf16

PARAMS = cases.parse(
    "matmul m=3 n=12 k=40 out=fp32 xoff=0 ypad=0 regime=small side=upper seed=1", SUBJECT
).params


def inputs(x: float | None = None, w: float | None = None) -> dict[str, np.ndarray]:
    """Values drawn by the seed, or one value throughout."""
    drawn = draw_inputs(SUBJECT, cases.Case("matmul", PARAMS))
    for name, value in (("x", x), ("w", w)):
        if value is not None:
            drawn[name] = to_bf16(np.full(drawn[name].shape, value, np.float32))
    return drawn


def test_ordinary_values_see_everything():
    assert sight.unseen(SUBJECT, PARAMS, inputs()) is None


@pytest.mark.parametrize(
    ("changed", "unseen"),
    [
        ({"x": 1.0}, "halves of x exchanged"),
        ({"w": 1.0}, "halves of x exchanged"),
        ({"x": 0.0}, "halves of x exchanged"),
        ({"x": np.nan}, "halves of x exchanged"),
    ],
)
def test_a_uniform_fill_is_blind(changed: dict[str, float], unseen: str):
    assert sight.unseen(SUBJECT, PARAMS, inputs(**changed)) == unseen


def test_a_zero_at_the_end_hides_a_dropped_tail():
    values = inputs()
    values["w"][:, -1] = 0
    assert sight.unseen(SUBJECT, PARAMS, values) == "last k dropped"
    values["w"][:, 32:] = 0
    assert sight.unseen(SUBJECT, PARAMS, values) == "last K block dropped"


def test_equal_rows_hide_which_was_read():
    values = inputs()
    values["w"][-1] = values["w"][-2]
    assert sight.unseen(SUBJECT, PARAMS, values) == "a row read for its neighbour"
    values = inputs()
    values["x"][-1] = values["x"][-2]
    assert sight.unseen(SUBJECT, PARAMS, values) == "a token read for its neighbour"


def test_a_zero_bias_hides_that_it_is_dropped():
    class Biased(Matmul):
        def products(self, params: Params) -> list[Product]:
            return [Product("y", "x", "w", "bias")]

    values = {**inputs(), "bias": np.zeros(12, np.uint16)}
    assert sight.unseen(Biased(), PARAMS, values) == "bias dropped"


def test_what_bf16_rounds_away_is_not_seen():
    params = {**PARAMS, "m": 1, "n": 1, "out": "bf16"}
    values = {"x": np.full((1, 40), 0x3F80, np.uint16), "w": np.full((1, 40), 0x4040, np.uint16)}
    values["x"][0, :4] = to_bf16(np.float32([200, 50, 70, 90]))
    values["w"][0, :4] = to_bf16(np.float32([30, 50, 70, 90]))
    values["w"][0, 32:39] = 0x4270  # 60: the block shows, its last k does not
    assert sight.unseen(SUBJECT, params, values) == "last k dropped"
    params["out"] = "fp32"
    assert sight.unseen(SUBJECT, params, values) is None


def test_a_misreading_without_effect_on_these_sizes_is_not_asked_for():
    params = {**PARAMS, "m": 1, "n": 1, "k": 1}
    one = np.full((1, 1), 0x3F80, np.uint16)
    names = [name for name, _ in sight.misreadings(SUBJECT, params, {"x": one, "w": one})]
    assert names == ["last k dropped"]


def test_a_subject_that_names_no_products_is_taken_to_see():
    class Opaque(Matmul):
        def products(self, params: Params) -> list[Product]:
            return []

    assert sight.unseen(Opaque(), PARAMS, inputs(x=1.0)) is None
