"""The gate's verdicts and the laws of its statistics."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata, wilcoxon

from lanecheck.bench.paired.gate import (
    ALPHA,
    MARGIN,
    VERDICTS,
    Comparison,
    Pairs,
    SignedRank,
    Verdict,
    decide,
    differences,
    holm,
    judge,
    overall,
    pairs_needed,
)

#: Twelve differences that lie evenly about 0.
NOISE = np.array([-1.6, 1.6, 1.1, -1.1, 0.8, -0.8, 0.5, -0.5, 0.3, -0.3, 0.1, -0.1])

#: Differences that floats hold exactly, as their Walsh averages do.
exact = st.lists(st.integers(-50, 50).map(lambda ticks: ticks / 64), min_size=7, max_size=12)
p_values = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def pairs(change: float = 0.0, noise: float = 0.002, control: float = 0.0) -> Pairs:
    """Head takes ``1 + change`` times base's time, the control ``1 + control``."""
    quiet = noise * NOISE
    return Pairs((quiet + np.log1p(change)).tolist(), (quiet[::-1] + np.log1p(control)).tolist())


def one(config: Pairs, margin: float = MARGIN) -> Comparison:
    return judge({"m=1": config}, margin)["m=1"]


# Verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "verdict", "cause"),
    [
        (pairs(0.02), Verdict.SLOW, "head is 2.00% slower, at least 1.84% with 99% confidence"),
        (pairs(-0.02), Verdict.FAST, "head is 2.00% faster, at least 1.84% with 99% confidence"),
        (
            pairs(0.0),
            Verdict.SAME,
            "head equals base within 0.50%: 0.16% faster to 0.16% slower, each with 99% confidence",
        ),
        (
            pairs(0.005),
            Verdict.AMBIGUOUS,
            "12 pairs show neither a change beyond 0.50% nor equality within it: "
            "0.34% slower to 0.66% slower, p = 0.00024 over all configs",
        ),
    ],
)
def test_each_verdict_says_why(config: Pairs, verdict: Verdict, cause: str) -> None:
    found = one(config)
    assert (found.verdict, found.cause) == (verdict, cause)


def test_a_change_within_the_margin_is_none_however_sure() -> None:
    found = one(pairs(0.003, noise=0.0005))
    assert found.verdict is Verdict.SAME
    assert found.estimate is not None and found.estimate.p == 2**-12


def test_a_wide_margin_makes_a_slow_down_equal() -> None:
    assert one(pairs(0.02), margin=0.03).verdict is Verdict.SAME


def test_the_estimate_holds_what_the_verdict_rests_on() -> None:
    found = judge({name: pairs(0.02) for name in ("m=1", "m=8")})["m=1"].estimate
    assert found is not None and found.pairs == 12
    assert found.low < found.effect < found.high
    assert found.effect == pytest.approx(0.02, abs=1e-4)
    assert (found.p, found.p_holm) == (2**-12, 2**-11)


def test_among_forty_configs_only_twelve_of_one_sign_are_enough() -> None:
    others = {f"m={m}": pairs() for m in range(39)}
    slow = pairs(0.02)
    assert judge({**others, "slow": slow})["slow"].verdict is Verdict.SLOW
    but_one = Pairs([-1e-4, *slow.change[1:]], slow.control)
    assert one(but_one).verdict is Verdict.SLOW
    found = judge({**others, "slow": but_one})["slow"]
    assert found.verdict is Verdict.AMBIGUOUS
    expected = (
        "head at least 1.07% slower with 99% confidence, but over all configs p = 0.02, where 0.01"
    )
    assert expected in found.cause and found.cause.endswith("give more --pairs")
    fast = pairs(-0.02)
    but_one = Pairs([1e-4, *fast.change[1:]], fast.control)
    assert one(but_one).verdict is Verdict.FAST
    found = judge({**others, "fast": but_one})["fast"]
    assert found.verdict is Verdict.AMBIGUOUS and "head at least 1.0" in found.cause
    assert "% faster with 99% confidence, but over all configs p = 0.02" in found.cause


def test_the_margin_is_on_the_ratio_of_times() -> None:
    assert one(pairs(0.6), margin=0.5).verdict is Verdict.SLOW  # log(1.6) is less than 0.5


def test_one_pair_far_off_does_not_move_the_effect() -> None:
    assert SignedRank.of([0.01] * 11 + [5.0]).effect == pytest.approx(0.01)


@given(exact, st.integers(-3, 3))
def test_exchanging_base_and_head_mirrors_the_verdict(noise: list[float], percent: int) -> None:
    mirror = {Verdict.SLOW: Verdict.FAST, Verdict.FAST: Verdict.SLOW}
    base = [10.0] * len(noise)
    head = [10 * (1 + percent / 100) * math.exp(d / 100) for d in noise]
    control = [d / 100 for d in noise]
    there = one(Pairs(differences(base, head), control))
    back = one(Pairs(differences(head, base), control))
    assert back.verdict is mirror.get(there.verdict, there.verdict)


@given(exact, st.floats(1e-3, 1e3))
def test_the_unit_of_the_medians_changes_nothing(noise: list[float], unit: float) -> None:
    base, head = [10 + d for d in noise], [10.1 + d * d for d in noise]
    control = [d / 100 for d in noise]
    scaled = differences([unit * t for t in base], [unit * t for t in head])
    found = one(Pairs(differences(base, head), control))
    again = one(Pairs(scaled, control))
    assert (again.verdict, again.cause) == (found.verdict, found.cause)


def test_many_runs_at_once_are_judged_as_each_alone() -> None:
    rng = np.random.default_rng(0)
    change = rng.normal(rng.choice([-0.01, 0, 0.004, 0.01], (200, 3, 1)), 0.004, (200, 3, 12))
    control = rng.normal(0, 0.004, (200, 3, 12))
    control[::50] += 0.01
    found = decide(SignedRank.of(change), SignedRank.of(control), 3, MARGIN)
    for run, positions in enumerate(found):
        alone = judge({str(c): Pairs(change[run, c], control[run, c]) for c in range(3)})
        assert [each.verdict for each in alone.values()] == [VERDICTS[i] for i in positions]
    assert set(found.flat) == set(range(len(VERDICTS)))


# What is insufficient -------------------------------------------------------------------------


@pytest.mark.parametrize(("configs", "needed"), [(1, 7), (10, 10), (40, 12), (41, 13)])
def test_pairs_needed_are_those_whose_best_p_survives_holm(configs: int, needed: int) -> None:
    assert pairs_needed(configs) == needed
    assert configs * 0.5**needed <= ALPHA < configs * 0.5 ** (needed - 1)


def test_what_is_missing_in_either_arm_is_named_and_costs_only_its_config() -> None:
    complete = pairs(0.02)
    found = judge(
        {
            "few": Pairs(complete.change[:8], complete.control),
            "no control": Pairs(complete.change, ()),
            "not finite": Pairs([math.nan, *complete.change[1:]], complete.control),
            "infinite": Pairs(complete.change, [math.inf, *complete.control[1:]]),
            "complete": complete,
        }
    )
    assert {name: each.cause for name, each in found.items() if each.estimate is None} == {
        "few": "8 pairs, but 5 gated configs need 9",
        "no control": "0 control pairs, but 5 gated configs need 9",
        "not finite": "a median of the pairs is not a positive number",
        "infinite": "a median of the control pairs is not a positive number",
    }
    assert list(found) == ["few", "no control", "not finite", "infinite", "complete"]
    assert found["complete"].verdict is Verdict.SLOW
    # The configs that are missing still belong to the family.
    assert found["complete"].estimate is not None
    assert found["complete"].estimate.p_holm == 5 * 2**-12


@pytest.mark.parametrize(("bias", "word"), [(0.002, "slower"), (-0.002, "faster")])
def test_a_control_that_alarms_leaves_no_verdict_anywhere(bias: float, word: str) -> None:
    biased = pairs(control=bias, noise=0.0005)
    found = judge({"m=1": pairs(0.05), "m=8": biased})
    assert {each.verdict for each in found.values()} == {Verdict.INSUFFICIENT}
    assert {each.cause for each in found.values()} == {
        f"m=8: base is 0.20% {word} than itself (p = 0.00049 over all configs), "
        "so the two arms are not measured alike"
    }


def test_nothing_gated_is_nothing_judged() -> None:
    assert judge({}) == {}
    with pytest.raises(ValueError):
        overall([])


@pytest.mark.parametrize(
    ("verdicts", "verdict"),
    [
        ("SLOW INSUFFICIENT FAST", "SLOW"),
        ("FAST INSUFFICIENT AMBIGUOUS", "INSUFFICIENT"),
        ("SAME AMBIGUOUS FAST", "AMBIGUOUS"),
        ("SAME FAST SAME", "FAST"),
        ("SAME SAME", "SAME"),
    ],
)
def test_the_overall_verdict_is_the_gravest(verdicts: str, verdict: str) -> None:
    assert overall(map(Verdict, verdicts.split())) is Verdict(verdict)


# Statistics -----------------------------------------------------------------------------------


def test_differences_are_log_ratios_whose_ties_stay_ties() -> None:
    there, back = differences([3.0, 4.7], [3.3, 4.7 * 1.1])
    assert there == back == pytest.approx(math.log(1.1))
    assert differences([3.3], [3.0]) == (-there,)
    assert not np.isfinite(
        differences([0.0, 1.0, 0.0, math.inf, 1.0], [1.0, -1.0, 0, 1, math.nan])
    ).any()
    with pytest.raises(ValueError):
        differences([1.0], [1.0, 2.0])


@given(st.lists(st.integers(1, 1000), min_size=7, max_size=9, unique=True), st.data())
def test_p_is_the_share_of_all_sign_assignments_as_extreme(
    sizes: list[int], data: st.DataObject
) -> None:
    signs = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    ranks = rankdata(sizes)
    sums = np.array([*product([0, 1], repeat=len(sizes))]) @ ranks
    found = SignedRank.of(np.where(signs, sizes, np.negative(sizes)))
    assert found.slower == np.mean(sums >= signs @ ranks)
    assert found.faster == np.mean(sums >= np.logical_not(signs) @ ranks)


@pytest.mark.parametrize("n", [7, 12, 30])
def test_p_agrees_with_scipy_where_nothing_is_tied(n: int) -> None:
    samples = np.random.default_rng(n).normal(0.3, 1, (20, n))
    found = SignedRank.of(samples)
    for side, p in (("greater", found.slower), ("less", found.faster)):
        expected = wilcoxon(samples, axis=1, alternative=side, method="exact").pvalue
        np.testing.assert_allclose(p, expected, rtol=1e-12)


@given(st.lists(st.integers(0, 3), min_size=7, max_size=9))
def test_p_is_never_too_small_whatever_is_tied_or_zero(sizes: list[int]) -> None:
    signs = np.array([*product([-1, 1], repeat=len(sizes))])
    p = SignedRank.of(signs * sizes).slower
    assert all(np.mean(p <= level) <= level for level in np.unique(p))


@given(exact)
def test_the_bounds_are_the_changes_that_the_test_just_does_not_reject(d: list[float]) -> None:
    changes, found = np.array(d), SignedRank.of(d)
    assert SignedRank.of(changes - found.low).slower > ALPHA
    assert SignedRank.of(changes - found.low + 1 / 256).slower <= ALPHA
    assert SignedRank.of(changes - found.high).faster > ALPHA
    assert SignedRank.of(changes - found.high - 1 / 256).faster <= ALPHA


def test_holm_multiplies_by_the_tests_not_yet_rejected() -> None:
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03]), 3), [0.03, 0.06, 0.06])
    np.testing.assert_allclose(holm(np.array([[0.3, 0.1], [0.1, 0.5]]), 4), [[0.9, 0.4], [0.4, 1]])


@given(p_values, p_values)
def test_another_config_never_makes_an_adjusted_p_smaller(
    some: list[float], more: list[float]
) -> None:
    alone = holm(np.array(some), len(some))
    together = holm(np.array(some + more), len(some + more))
    absent = holm(np.array(some), len(some + more))
    assert (alone >= some).all() and (together[: len(some)] >= alone).all()
    with_ones = holm(np.array(some + [1.0] * len(more)), len(some + more))
    assert (absent == with_ones[: len(some)]).all()
