"""The error bound: its arithmetic against exact fractions, right sums inside it, wrong ones outside."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import pytest
from second_subject import SUBJECT, Matmul

from lanecheck import cases, oracles
from lanecheck.native import mma_bounds, mma_chains
from lanecheck.observation import Observation, Run
from lanecheck.oracles import bits, bound, tightness
from lanecheck.order import Order
from lanecheck.subject import Bits, Params, Product
from lanecheck.tensorcore import AMPERE, HOPPER, TensorCore
from lanecheck.trial import draw_inputs
from lanecheck.values import real_values, rounded_bits, to_bf16
from lanecheck.verdict import Outcome, Verdict

MODELS = pytest.mark.parametrize("model", [AMPERE, HOPPER], ids=lambda model: model.name)
CATEGORIES = pytest.mark.parametrize("category", tightness.CATEGORIES)
LINE = "matmul m=3 n=5 k=90 out={out} xoff=0 ypad=0 regime={regime} side=upper seed={seed}"


# Exact fractions, from the definition in lanecheck.tensorcore


def power(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


def exponent_of(value: float) -> int:
    return max(math.frexp(value)[1] - 1, -126)


def fused_sum(
    core: TensorCore, products: list[tuple[float, float]], acc: float, lowest: int
) -> tuple[float, Fraction]:
    """What a fused sum gives, and the most it may lose; ``lowest`` is the least exponent of an ulp."""
    terms = [(Fraction(x) * Fraction(y), exponent_of(x) + exponent_of(y)) for x, y in products]
    terms.append((Fraction(acc), exponent_of(acc)))
    largest = max(e if term else core.zero_exponent for term, e in terms)
    q = power(largest - core.fraction_bits)
    total = sum(int(term / q) for term, _ in terms) * q  # int() is toward zero
    unit = power(-149) if abs(total) < power(-126) else power(exponent_of(float(total)) - 23)
    result = int(total / unit) * unit
    ulp = power(max(math.frexp(float(result))[1] - 24, lowest))
    rounding = Fraction(0) if result == total else ulp - q
    return float(result), sum((q for term, _ in terms if term % q), rounding)


def chain(
    core: TensorCore, x: list[float], w: list[float], lowest: int = -149
) -> tuple[float, Fraction, Fraction]:
    """The computed sum, the exact one, and the slack between them."""
    acc, exact, slack = 0.0, Fraction(0), Fraction(0)
    for start in range(0, len(x), core.terms):
        products = list(zip(x[start : start + core.terms], w[start : start + core.terms]))
        acc, lost = fused_sum(core, products, acc, lowest)
        exact += sum(Fraction(p) * Fraction(q) for p, q in products)
        slack += lost
    return acc, exact, slack


def chains(core: TensorCore, category: str, steps: int = 3, outputs: int = 4):
    """Of some chains, as fractions and as the native function gives them."""
    rng = np.random.default_rng(steps)
    x, w = (each[:outputs] for each in tightness.CATEGORIES[category](16 * steps, rng))
    order = Order(np.arange(16 * steps).reshape(steps, 16), (range(steps),), ((0,),))
    a, b = bound.fragments(order, x, w)
    computed = bound.by_element(mma_chains(core, a, b, order.chains), outputs, outputs)[0]
    hi, lo, slack = (
        bound.by_element(each, outputs, outputs)[0] for each in mma_bounds(core, a, b, order.chains)
    )
    for m, n in np.ndindex(outputs, outputs):
        slow = functools.partial(
            chain, core, real_values(x[m]).tolist(), real_values(w[n]).tolist()
        )
        exact = Fraction(float(hi[m, n])) + Fraction(float(lo[m, n]))
        yield slow, float(computed[m, n]), exact, Fraction(float(slack[m, n]))


@MODELS
@CATEGORIES
def test_native_sums_and_slack_are_those_of_the_definition(model: TensorCore, category: str):
    for slow, computed, exact, slack in chains(model, category):
        acc, total, allowed = slow()
        assert computed == acc
        assert abs(exact - total) <= allowed * power(-48) * 3
        assert allowed <= slack <= allowed * (1 + power(-48) * 4)
        assert abs(total - Fraction(acc)) <= allowed


@MODELS
def test_a_bound_that_forgot_subnormals_would_be_exceeded(model: TensorCore):
    """The sum is its only product, of which RZ to a subnormal drops the bit of 2^-154."""
    alone = [(1 + 2.0**-7) * 2.0**-70] + [0.0] * 15
    acc, exact, slack = chain(model, alone, alone)
    forgetful = chain(model, alone, alone, lowest=-1074)
    assert forgetful[:2] == (acc, exact)
    assert forgetful[2] < abs(Fraction(acc) - exact) == power(-154) < slack


@pytest.mark.parametrize("overflow", [np.inf, np.nan, 2.0**100])
def test_a_chain_that_is_not_finite_at_some_step_has_no_slack(overflow: float):
    a, b = np.zeros((1, 2, 16, 16), np.uint16), np.zeros((1, 2, 16, 8), np.uint16)
    a[0, 0, 3, 5] = b[0, 0, 5, 2] = to_bf16(np.array(overflow))
    slack = mma_bounds(HOPPER, a, b, [range(2), range(1, 2)]).slack
    infinite = {(0, 0, 0, 3, 2)}
    if not overflow < np.inf:  # then its products with zero are NaN
        infinite = {(0, 0, 0, i, j) for i in range(16) for j in range(8) if i == 3 or j == 2}
    assert set(map(tuple, np.argwhere(~np.isfinite(slack)).tolist())) == infinite
    assert (slack[np.isfinite(slack)] == 0).all()


def test_bounds_refuse_what_chains_refuse():
    a, b = np.zeros((1, 2, 16, 16), np.uint16), np.zeros((1, 3, 16, 8), np.uint16)
    with pytest.raises(ValueError, match="a's chains have 2 steps and b's 3"):
        mma_bounds(HOPPER, a, b, [])
    with pytest.raises(ValueError, match=r"range\(0, 3\) is not a slice of 2 steps"):
        mma_bounds(HOPPER, a, b[:, :2], [range(3)])


# Right sums


@MODELS
@CATEGORIES
def test_right_sums_in_any_order_are_inside(model: TensorCore, category: str):
    judged, outside, worst = tightness.measure(model, category, outputs=16_384, seed=1)
    assert (judged, outside) == (16_384, 0)
    assert 0.05 < worst <= 1


@MODELS
def test_the_bound_is_attained(model: TensorCore):
    """1 and a product that adds all of the quanta between it and the next FP32, but one quantum."""
    x = to_bf16(np.array([[1, 2 - 2.0 ** (24 - model.fraction_bits)]]))
    w = to_bf16(np.array([[1, 2.0**-24]]))
    order = Order(np.arange(16)[None], (range(1),), ((0,),))
    each = tightness.Sum(order, x, w)
    ratio = each.limits(model).ratio(each.computed(model, np.random.default_rng(0)))
    assert 1 - 2.0**-40 < ratio[0, 0] <= 1


@pytest.mark.parametrize("bf16", [False, True])
def test_limits_follow_order_sizes_and_bias(bf16: bool):
    """Exact sums of odd sizes and permuted k; a bound of few terms that can be said by hand."""
    rng = np.random.default_rng(0)
    x, w, b = (tightness._patterns(70, rng)[0][:rows] for rows in (9, 17, 1))
    bias = b[0, :17]
    order = Order(
        rng.permutation(96).reshape(6, 16), (range(0), range(4), range(4, 6)), ((2, 0, 1),)
    )
    got = bound.limits(AMPERE, order, x, w, bias, bf16=bf16)
    for m, n in np.ndindex(9, 17):
        products = map(Fraction, real_values(x[m]) * real_values(w[n]))
        exact = sum(products, Fraction(float(real_values(bias)[n])))
        near = Fraction(float(got.hi[m, n])) + Fraction(float(got.lo[m, n]))
        assert abs(near - exact) <= Fraction(float(got.bound[m, n])) * power(-48)

    one = to_bf16(np.ones((1, 1)))
    alone = Order(np.arange(16)[None], (range(1), range(0)), ((0, 1),))
    half = 2.0**-8 if bf16 else 0
    for bias, want in ((None, half), (one[0], 2 * 2.0**-24 + (2 * half if bf16 else 0))):
        got = bound.limits(HOPPER, alone, one, one, bias, bf16=bf16)
        assert want <= got.bound[0, 0] <= want * (1 + 2.0**-40)


# The oracle


class Ordered(Matmul):
    """Chains of two mma, added from left to right."""

    def order(self, params: Params) -> Order:
        steps = -(-int(params["k"]) // 32) * 2
        chains = tuple(range(first, first + 2) for first in range(0, steps, 2))
        return Order(np.arange(16 * steps).reshape(steps, 16), chains, (tuple(range(len(chains))),))

    def predict(
        self, params: Params, inputs: Mapping[str, Bits], core: TensorCore
    ) -> dict[str, Bits]:
        return {"y": self.stored(params, self.sums(params, inputs, core))}

    def sums(self, params: Params, inputs: Mapping[str, Bits], core: TensorCore):
        """Of every chain, ``[P, M, N]``."""
        x, w, order = inputs["x"], inputs["w"], self.order(params)
        tiles = mma_chains(core, *bound.fragments(order, x, w), order.chains)
        return bound.by_element(tiles, len(x), len(w))

    def stored(self, params: Params, sums) -> Bits:
        """The sums, added in the order given."""
        with np.errstate(all="ignore"):
            y = functools.reduce(np.add, sums)
        return rounded_bits(y, np.dtype(np.uint16 if params["out"] == "bf16" else np.uint32))


ORDERED = Ordered()


def observed(
    regime: str = "normal", out: str = "fp32", seed: int = 0, subject=ORDERED
) -> Observation:
    """What a right kernel shows, and would show of other operands."""
    case = cases.parse(LINE.format(regime=regime, out=out, seed=seed), subject)
    inputs = draw_inputs(subject, case)
    outputs = ORDERED.predict(case.params, inputs, HOPPER)

    def launch(params: Params, inputs: Mapping[str, Bits]) -> Run:
        return Run(ORDERED.predict(params, inputs, HOPPER), {"y": 0}, ())

    return Observation(subject, case, HOPPER, inputs, (Run(outputs, {"y": 0}, ()),), launch)


def showing(observation: Observation, y: Bits) -> Observation:
    (run,) = observation.runs
    return dataclasses.replace(observation, runs=(dataclasses.replace(run, outputs={"y": y}),))


def outcome(verdict: Verdict | None) -> Outcome | None:
    return verdict.outcome if verdict else None


@pytest.mark.parametrize("regime", ["small", "wide", "normal", "spread", "subnormal", "special"])
@pytest.mark.parametrize("out", ["fp32", "bf16"])
def test_a_right_kernel_passes(regime: str, out: str):
    for seed in range(20):
        right = observed(regime, out, seed)
        assert outcome(bits.judge(right)) is outcome(bound.judge(right)) is Outcome.PASS
        assert bound.ratios(right)["y"] <= 1


@pytest.mark.parametrize("sign", [-1, 1])
def test_an_output_is_judged_to_the_last_bit(sign: int):
    right = observed()
    order, (x, w) = ORDERED.order(right.params), right.inputs.values()
    may = bound.limits(HOPPER, order, x, w, None, bf16=False)
    end = Fraction(float(may.hi[2, 1])) + Fraction(float(may.lo[2, 1]))
    end += sign * Fraction(float(may.bound[2, 1]))
    last = np.float32(float(end))
    if (Fraction(float(last)) - end) * sign > 0:
        last = np.nextafter(last, np.float32(-sign * np.inf))
    for value, wanted in (
        (last, Outcome.PASS),
        (np.nextafter(last, np.float32(sign * np.inf)), Outcome.FAIL),
    ):
        y = right.outputs["y"].copy()
        y[2, 1] = value.view(np.uint32)
        assert outcome(bound.judge(showing(right, y))) is wanted


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0, 1e30])
def test_the_evidence_names_the_element_and_how_far_it_is(value: float):
    right = observed()
    y = right.outputs["y"].copy()
    y[1, 4] = np.float32(value).view(np.uint32)
    verdict = bound.judge(showing(right, y))
    assert outcome(verdict) is Outcome.FAIL
    assert verdict.evidence.startswith(f"y[1, 4] is {np.float32(value):.9g}, the exact sum ")
    assert " times the bound of its order, " in verdict.evidence
    assert verdict.evidence.endswith("(1 of 15 elements)")


def test_chains_added_in_another_order_are_inside():
    differs = 0
    for seed in range(20):
        right = observed(seed=seed)
        sums = ORDERED.sums(right.params, right.inputs, HOPPER)
        commuted = ORDERED.stored(right.params, sums[::-1])
        differs += (commuted != right.outputs["y"]).sum()
        assert outcome(bound.judge(showing(right, commuted))) is Outcome.PASS
    assert differs


def test_a_partial_sum_in_bf16_fails():
    for seed in range(20):
        right = observed(seed=seed)
        sums = ORDERED.sums(right.params, right.inputs, HOPPER)
        sums[1] = real_values(to_bf16(sums[1]))
        wrong = showing(right, ORDERED.stored(right.params, sums))
        assert outcome(bits.judge(wrong)) is outcome(bound.judge(wrong)) is Outcome.FAIL


def test_a_store_that_truncates_fails():
    for seed in range(20):
        right = observed(out="bf16", seed=seed)
        exact = ORDERED.stored({"out": "fp32"}, ORDERED.sums(right.params, right.inputs, HOPPER))
        wrong = showing(right, (exact >> 16).astype(np.uint16))
        assert outcome(bits.judge(wrong)) is outcome(bound.judge(wrong)) is Outcome.FAIL


def test_elements_that_are_not_finite_are_left_to_others():
    right = observed()
    x = right.inputs["x"].copy()
    x[1, 3] = 0x7F80
    some = dataclasses.replace(right, inputs={**right.inputs, "x": x})
    y = ORDERED.predict(some.params, some.inputs, HOPPER)["y"]
    assert outcome(bound.judge(showing(some, y))) is Outcome.PASS
    other = y.copy()
    other[1] = 0
    assert outcome(bound.judge(showing(some, other))) is Outcome.PASS
    assert outcome(bits.judge(showing(some, other))) is Outcome.FAIL

    x[:, 0] = 0x7FC0
    none = dataclasses.replace(right, inputs={**right.inputs, "x": x})
    assert bound.judge(none) is None
    assert bound.ratios(none) == {"y": 0}


def test_sums_that_an_order_may_overflow_have_no_bound():
    large = to_bf16(np.full((1, 32), 2.0**61.5))
    order = Order(np.arange(32).reshape(2, 16), (range(1), range(1, 2)), ((0, 1),))
    opposite = np.concatenate([large[:, :16], large[:, 16:] ^ 0x8000], axis=1)
    assert not bound.limits(HOPPER, order, large, opposite, None, bf16=False).known.any()
    assert bound.limits(
        HOPPER, order, large, opposite[:, :16].repeat(2, 1) * 0, None, bf16=False
    ).known.all()


def test_without_an_order_or_with_an_epilogue_nothing_is_said():
    class Activated(Ordered):
        def products(self, params: Params) -> list[Product]:
            return [Product("y", "x", "w", plain=False)]

    for subject in (SUBJECT, Activated()):
        silent = observed(subject=subject)
        assert bound.judge(silent) is None
        assert bound.ratios(silent) == {}


def test_the_bound_is_an_oracle_of_some_cases():
    assert oracles.NAMES.index("bits") + 1 == oracles.NAMES.index("bound")
    turns = []
    for seed in range(4 * bound.EVERY):
        right = observed(seed=seed)
        verdicts = oracles.judge(right, [bits, bound])
        turns.append(oracles._turn(bound, right.case))
        assert [verdict.oracle for verdict in verdicts] == ["bits", "bound"][: 1 + turns[-1]]
    assert set(turns) == {False, True}


def test_the_measurement_prints_what_it_found(monkeypatch, capsys):
    monkeypatch.setattr(tightness, "_STARTS", 1)
    monkeypatch.setattr(tightness, "_GENERATIONS", 2)
    with pytest.raises(tightness.typer.Exit) as stop:
        tightness.main(outputs=1, seed=0)
    assert stop.value.exit_code == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * (len(tightness.CATEGORIES) + len(tightness._LENGTHS))
    assert all("worst ratio" in line for line in lines)
