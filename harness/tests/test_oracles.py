"""Oracles: each speaks where it must, names what is wrong, and is silent on everything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from second_subject import PREDICTING, SUBJECT, Matmul

from lanecheck import cases, oracles
from lanecheck.errors import BadInput
from lanecheck.observation import POISON, Observation, Problem
from lanecheck.oracles import bits, execution, integers, poison
from lanecheck.subject import Bits, Params
from lanecheck.tensorcore import HOPPER
from lanecheck.trial import draw_inputs
from lanecheck.values import REGIMES, draw_values, real_values
from lanecheck.verdict import Outcome, Verdict

LINE = "matmul m=3 n=4 k=9 out={out} xoff=0 ypad=0 regime={regime} side=upper seed=1"


def healthy(regime: str = "small", out: str = "fp32", subject: Matmul = SUBJECT) -> Observation:
    """What a right kernel shows."""
    case = cases.parse(LINE.format(regime=regime, out=out), subject)
    inputs = draw_inputs(subject, case)
    y = subject.product(inputs["x"], inputs["w"], out)
    return Observation(subject, case, HOPPER, inputs, {"y": y.copy()}, {"y": 0}, ())


def with_element(observation: Observation, at: tuple[int, int], value: int) -> Observation:
    y = observation.outputs["y"].copy()
    y[at] = value
    return replace(observation, outputs={"y": y})


def failed(verdict: Verdict | None) -> str:
    assert verdict is not None
    assert verdict.outcome is Outcome.FAIL
    assert "\n" not in verdict.evidence
    return verdict.evidence


def passed(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.outcome is Outcome.PASS


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("out", ["fp32", "bf16"])
def test_nothing_is_said_against_a_right_kernel(regime: str, out: str):
    verdicts = oracles.judge(healthy(regime, out, PREDICTING))
    assert not any(verdict.wrong for verdict in verdicts)
    expected = set(oracles.NAMES) - (set() if regime in ("small", "wide") else {"integers"})
    assert {verdict.oracle for verdict in verdicts} == expected


def test_outputs_of_a_failed_execution_are_not_judged():
    abandoned = {"y": np.full((3, 4), POISON["fp32"], np.uint32)}
    sick = replace(healthy(), outputs=abandoned, problems=(Problem("deadlock", "nobody moves"),))
    assert [verdict.oracle for verdict in oracles.judge(sick)] == ["execution"]


# execution


def test_execution_repeats_the_first_problem_and_counts_the_others():
    problems = (Problem("race", "warp 1 reads what warp 0 writes"), Problem("canary", "x"))
    sick = replace(healthy(), problems=problems)
    assert failed(execution.judge(sick)) == "race: warp 1 reads what warp 0 writes (and 1 more)"
    sick = replace(healthy(), problems=problems[:1])
    assert failed(execution.judge(sick)) == "race: warp 1 reads what warp 0 writes"


# poison


@pytest.mark.parametrize("out", ["fp32", "bf16"])
def test_poison_names_the_first_unwritten_element(out: str):
    sick = with_element(healthy(out=out), (2, 1), POISON[out])
    assert failed(poison.judge(sick)) == "y[2, 1] was never written (1 of 12 elements)"


def test_poison_notices_a_write_between_the_rows():
    sick = replace(healthy(), strays={"y": 3})
    assert failed(poison.judge(sick)) == "3 elements between the rows of y were overwritten"


@pytest.mark.parametrize(("out", "nans"), [
    ("fp32", (0x7FFFFFFF, 0x7FC00000, 0xFFC00000)),
    ("bf16", (0x7FFF, 0x7FC0, 0xFFC0)),
])  # fmt: skip
def test_poison_is_no_nan_that_a_kernel_computes(out: str, nans: tuple[int, ...]):
    for nan in nans:
        assert passed(poison.judge(with_element(healthy(out=out), (0, 0), nan)))


# integers


@pytest.mark.parametrize("regime", ["small", "wide"])
@pytest.mark.parametrize("out", ["fp32", "bf16"])
def test_integers_notice_a_single_bit_of_a_single_element(regime: str, out: str):
    right = healthy(regime, out)
    sick = with_element(right, (1, 3), int(right.outputs["y"][1, 3]) ^ 1)
    evidence = failed(integers.judge(sick))
    assert evidence.startswith("y[1, 3] is ")
    assert evidence.endswith("(1 of 12 elements differ)")


def test_integers_show_value_and_bits_of_both_sides():
    right = with_element(healthy(), (0, 0), int(np.float32(1000).view(np.uint32)))
    want = real_values(right.inputs["x"])[0] @ real_values(right.inputs["w"])[0]
    shown = f"expected {want:.9g} (0x{int(np.float32(want).view(np.uint32)):08X})"
    assert failed(integers.judge(right)).startswith(f"y[0, 0] is 1000 (0x447A0000), {shown}")


@pytest.mark.parametrize("regime", [r for r in REGIMES if r not in ("small", "wide")])
def test_integers_are_silent_on_real_values(regime: str):
    assert integers.judge(with_element(healthy(regime), (0, 0), 0)) is None


def test_integers_are_silent_where_the_output_is_no_sum():
    class Activated(Matmul):
        def sums(self, params: Params) -> bool:
            return False

    assert integers.judge(with_element(healthy(subject=Activated()), (0, 0), 0)) is None


@pytest.mark.parametrize("regime", ["small", "wide"])
def test_integers_have_one_sum_in_every_order(regime: str):
    rng = np.random.default_rng(0)
    for terms in (5, 300, 20000):
        x, w = (real_values(draw_values(regime, (terms,), terms, rng)) for _ in range(2))
        exact = np.float32(x @ w)
        for _ in range(10):
            products = rng.permutation((x * w).astype(np.float32))
            serial = np.cumsum(products, dtype=np.float32)[-1]  # one addition after another
            halves = products[: terms // 2].sum() + products[terms // 2 :].sum()
            assert serial.view(np.uint32) == halves.view(np.uint32) == exact.view(np.uint32)


def test_integers_need_no_knowledge_of_the_tensor_core():
    """The truncation of every modelled core loses nothing, as the oracle's derivation says."""
    from lanecheck.tensorcore import AMPERE

    rng = np.random.default_rng(0)
    a = draw_values("wide", (16, 16), 73728, rng)
    b = draw_values("wide", (16, 8), 73728, rng)
    c = rng.integers(-(2**23), 2**23, (16, 8)).astype(np.float32)
    exact = real_values(a) @ real_values(b) + c
    for core in (AMPERE, HOPPER):
        assert np.array_equal(core.mma(a, b, c), exact.astype(np.float32))


# bits


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("out", ["fp32", "bf16"])
def test_bits_notice_the_last_bit_in_every_regime(regime: str, out: str):
    right = healthy(regime, out, PREDICTING)
    assert passed(bits.judge(right))
    sick = with_element(right, (2, 3), int(right.outputs["y"][2, 3]) ^ 1)
    evidence = failed(bits.judge(sick))
    assert evidence.startswith("y[2, 3] is ")
    assert evidence.endswith("on the hopper model")


def test_bits_are_silent_where_no_order_is_declared():
    assert bits.judge(with_element(healthy("normal"), (0, 0), 0)) is None


def test_bits_tell_minus_zero_from_zero():
    class Zero(Matmul):
        def predict(self, params: Params, inputs: Mapping[str, Bits], core: object):
            return {"y": np.zeros((3, 4), np.uint32)}

    zero = replace(healthy(subject=Zero()), outputs={"y": np.zeros((3, 4), np.uint32)})
    assert passed(bits.judge(zero))
    assert "is -0 (0x80000000), expected 0" in failed(
        bits.judge(with_element(zero, (0, 0), 0x80000000))
    )


# A comparison of nothing is no pass


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({}, "the subject writes y, but expects nothing"),
        ({"z": np.zeros((3, 4))}, "the subject writes y, but expects z"),
        ({"y": np.zeros((4,))}, r"writes y as uint32\[3, 4\], but expects uint32\[4\]"),
    ],
)
def test_a_reference_that_is_not_of_the_outputs_is_refused(expected, message: str):
    class Careless(Matmul):
        def reference(self, params: Params, inputs: Mapping[str, Bits]):
            return expected

    with pytest.raises(BadInput, match=message):
        integers.judge(healthy(subject=Careless()))


def test_oracle_names_are_distinct_and_the_ladder_is_in_order():
    assert oracles.NAMES == ("execution", "poison", "integers", "bits")
