"""Oracles: each speaks where it must, names what is wrong, and is silent on everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from second_subject import PREDICTING, SUBJECT, ByNumpy, Matmul

from lanecheck import cases, oracles, trial
from lanecheck.errors import BadInput
from lanecheck.observation import POISON, Observation, Problem
from lanecheck.oracles import bits, execution, integers, poison, specials, stability
from lanecheck.subject import Bits, Params, Product
from lanecheck.tensorcore import HOPPER
from lanecheck.values import REGIMES, draw_values, real_values, rounded_bits
from lanecheck.verdict import Outcome, Verdict

LINE = "matmul m=3 n=4 k=9 out={out} xoff=0 ypad=0 regime={regime} side=upper seed=8"


def healthy(regime: str = "small", out: str = "fp32", subject: Matmul = SUBJECT) -> Observation:
    """What a right kernel shows."""
    case = cases.parse(LINE.format(regime=regime, out=out), subject)
    ((_, observation),) = trial.observe(subject, case, trial.Target(""))
    return replace(observation, core=HOPPER)


def each_run(observation: Observation, **changed: Any) -> Observation:
    runs = tuple(replace(run, **changed) for run in observation.runs)
    return replace(observation, runs=runs)


def with_element(observation: Observation, at: tuple[int, int], value: int) -> Observation:
    y = observation.outputs["y"].copy()
    y[at] = value
    return each_run(observation, outputs={"y": y})


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
    assert all(verdict.outcome is Outcome.PASS for verdict in verdicts)
    expected = {"execution", "poison", "bits", "specials", "stability"}
    expected |= {"integers"} if regime in ("small", "wide") else set()
    assert expected <= {verdict.oracle for verdict in verdicts}


def test_outputs_of_a_failed_execution_are_not_judged():
    abandoned = {"y": np.full((3, 4), POISON[0]["fp32"], np.uint32)}
    problems = (Problem("deadlock", "nobody moves"),)
    sick = each_run(healthy(), outputs=abandoned, problems=problems)
    assert [verdict.oracle for verdict in oracles.judge(sick)] == ["execution"]


# execution


def test_execution_repeats_the_first_problem_and_counts_the_others():
    problems = (Problem("race", "warp 1 reads what warp 0 writes"), Problem("canary", "x"))
    once = healthy().runs[0]
    sick = replace(healthy(), runs=(replace(once, problems=problems),))
    assert failed(execution.judge(sick)) == "race: warp 1 reads what warp 0 writes (and 1 more)"
    sick = replace(healthy(), runs=(replace(once, problems=problems[:1]),))
    assert failed(execution.judge(sick)) == "race: warp 1 reads what warp 0 writes"


# poison


def painted(out: str, colours: Sequence[int]) -> Observation:
    """An observation whose element [2, 1] holds this colour of poison in each run."""
    right = healthy(out=out)
    runs = []
    for run, colour in zip(right.runs, colours):
        y = run.outputs["y"].copy()
        y[2, 1] = POISON[colour][out]
        runs.append(replace(run, outputs={"y": y}))
    return replace(right, runs=tuple(runs))


@pytest.mark.parametrize("out", ["fp32", "bf16"])
def test_poison_names_the_first_unwritten_element(out: str):
    evidence = failed(poison.judge(painted(out, (0, 1))))
    assert evidence == "y[2, 1] was never written (1 of 12 elements)"


@pytest.mark.parametrize("out", ["fp32", "bf16"])
@pytest.mark.parametrize("colour", [0, 1])
def test_a_kernel_may_compute_what_is_one_colour_of_poison(out: str, colour: int):
    assert passed(poison.judge(painted(out, (colour, colour))))


def test_no_value_is_both_colours():
    assert all(POISON[0][dtype] != POISON[1][dtype] for dtype in POISON[0])


def test_poison_notices_a_write_between_the_rows():
    sick = each_run(healthy(), strays={"y": 3})
    assert failed(poison.judge(sick)) == "3 elements between the rows of y were overwritten"


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


def test_integers_are_silent_where_sums_could_be_inexact():
    right = healthy("wide")
    large = {name: np.full_like(bits, 0x4580) for name, bits in right.inputs.items()}  # 2^12
    assert integers.judge(with_element(replace(right, inputs=large), (0, 0), 0)) is None


def test_integers_are_silent_where_the_output_is_no_sum():
    class Activated(Matmul):
        def products(self, params: Params) -> list[Product]:
            return [Product("y", "x", "w", plain=False)]

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

    zero = each_run(healthy(subject=Zero()), outputs={"y": np.zeros((3, 4), np.uint32)})
    assert passed(bits.judge(zero))
    assert "is -0 (0x80000000), expected 0" in failed(
        bits.judge(with_element(zero, (0, 0), 0x80000000))
    )


# specials


SPECIAL = "matmul m=2 n=2 k=3 out=fp32 xoff=0 ypad=0 regime=normal side=upper seed=8"
INF, NINF, NAN, MAX = 0x7F80, 0xFF80, 0x7FC0, 0x7F7F


def with_x(*row: int) -> Observation:
    """Token 0 holds ``row``, every weight is 1, and the kernel is numpy."""
    case = cases.parse(SPECIAL, SUBJECT)
    x = np.array([row, [0x3F80] * 3], np.uint16)
    inputs = {"x": x, "w": np.full((2, 3), 0x3F80, np.uint16)}
    ((_, observation),) = trial.observe(ByNumpy(), case, trial.Target(""), inputs)
    return observation


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ((INF, 0, 0x3F80), "+Inf"),
        ((0x3F80, NINF, 0x3F80), "-Inf"),
        ((INF, NINF, 0), "NaN"),
        ((0, 0, NAN), "NaN"),
        ((0x3F80, 0x4000, 0x4040), "finite"),
    ],
)
def test_specials_know_what_the_terms_make_of_a_sum(row: tuple[int, ...], kind: str):
    right = with_x(*row)
    assert passed(specials.judge(right))
    other = np.float32(1.0 if kind != "finite" else np.inf).view(np.uint32)
    evidence = failed(specials.judge(with_element(right, (0, 1), int(other))))
    assert evidence.startswith("y[0, 1] is ")
    assert evidence.endswith(f"its terms make it {kind} (1 of 4 elements)")


def test_specials_are_silent_where_the_order_decides_whether_a_sum_overflows():
    right = with_x(MAX, MAX, MAX | 0x8000)
    assert passed(specials.judge(with_element(right, (0, 1), 0x7F800000)))
    right = with_x(MAX, MAX, NINF)  # +Inf if the finite ones come first
    assert passed(specials.judge(with_element(right, (0, 1), 0x7FC00000)))


# stability


def test_stability_names_the_first_element_that_changes():
    right = healthy("normal")
    assert passed(stability.judge(right))
    y = right.outputs["y"].copy()
    y[1, 2] ^= 1
    sick = replace(right, runs=(right.runs[0], replace(right.runs[1], outputs={"y": y})))
    assert "other poison: y[1, 2] is " in failed(stability.judge(sick))
    assert stability.judge(replace(right, runs=right.runs[:1])) is None


def test_stability_sees_what_is_added_to_what_was_there():
    class Adds(Matmul):
        def store(self, y: Bits, bits: Bits) -> None:
            before = np.where(np.isnan(real_values(y)), 0, real_values(y))
            y[...] = rounded_bits(real_values(bits) + before, y.dtype)

    assert "y[0, 0]" in failed(stability.judge(healthy(subject=Adds())))


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


def test_oracle_names_are_distinct_and_the_ladder_begins_with_what_needs_no_numbers():
    assert len(set(oracles.NAMES)) == len(oracles.NAMES)
    assert oracles.NAMES[:3] == ("execution", "poison", "integers")


@pytest.mark.parametrize("module", oracles.LADDER, ids=oracles.NAMES)
def test_every_oracle_says_what_it_is(module: ModuleType):
    assert module.__doc__
    assert ": " in module.__doc__.splitlines()[0]


def test_an_oracle_that_takes_turns_judges_one_case_in_so_many():
    right = healthy()
    turns = 0
    for seed in range(80):
        case = cases.Case(right.case.subject, {**right.case.params, "seed": seed})
        spoke = {verdict.oracle for verdict in oracles.judge(replace(right, case=case))}
        assert "execution" in spoke
        turns += "relations" in spoke
    assert 10 < turns < 30
