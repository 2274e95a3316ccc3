"""Values: what each regime promises."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanecheck.values import (
    INTEGER_REGIMES,
    REGIMES,
    draw_values,
    real_values,
    rounded_bits,
    to_bf16,
)

INTEGERS = pytest.mark.parametrize("regime", INTEGER_REGIMES)
TERMS = (1, 2, 3, 17, 256, 257, 769, 4097, 14337, 73728)


def drawn(regime: str, terms: int, shape: tuple[int, ...] = (64, 64), seed: int = 0):
    return real_values(draw_values(regime, shape, terms, np.random.default_rng(seed)))


@pytest.mark.parametrize("regime", REGIMES)
def test_values_are_bits_of_the_shape_and_follow_from_the_seed(regime: str):
    one, same, other = (
        draw_values(regime, (3, 50), 50, np.random.default_rng(seed)) for seed in (5, 5, 6)
    )
    assert one.dtype == np.uint16
    assert one.shape == (3, 50)
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@INTEGERS
@pytest.mark.parametrize("terms", TERMS)
def test_integer_regimes_hold_integers_of_both_signs_and_never_zero(regime: str, terms: int):
    values = drawn(regime, terms)
    assert np.array_equal(values, np.rint(values))
    assert np.abs(values).min() >= 1
    assert values.min() < 0 < values.max()


@INTEGERS
@given(terms=st.integers(1, 73728))
def test_any_sum_of_products_of_integers_is_exact_in_fp32(regime: str, terms: int):
    largest = np.abs(drawn(regime, terms, (2000,))).max()
    assert terms * largest**2 <= 2**24  # as if every product were the largest, of one sign


@pytest.mark.parametrize("terms", [t for t in TERMS if t >= 256])
def test_wide_leaves_narrow_accumulators_behind(terms: int):
    x, w = (np.abs(drawn("wide", terms, (4, terms), seed)) for seed in (1, 2))
    assert (x * w).sum(axis=1).min() > 2**20  # BF16 is exact to 2^8, FP16 to 2^11


@pytest.mark.parametrize("terms", [t for t in TERMS if t <= 1000])
def test_small_sums_are_mostly_what_bf16_holds_exactly(terms: int):
    x, w = (drawn("small", terms, (64, terms), seed) for seed in (1, 2))
    sums = x @ w.T
    inside = np.abs(sums) <= 256
    assert inside.mean() > 0.99
    assert np.array_equal(real_values(to_bf16(sums[inside])), sums[inside])


def test_small_values_still_differ_where_that_is_possible():
    for terms in (1, 256, 769):
        assert len(np.unique(np.abs(drawn("small", terms)))) > 1


def test_real_regimes_cover_what_they_are_named_for():
    exponents = np.frexp(drawn("spread", 64))[1]
    assert exponents.max() - exponents.min() > 30
    tiny = np.abs(drawn("subnormal", 64))
    assert ((tiny > 0) & (tiny < 2.0**-126)).any()
    special = drawn("special", 64)
    assert np.isnan(special).any()
    assert np.isinf(special).any()
    assert np.isfinite(special).mean() > 0.9  # most outputs must stay informative
    assert np.isfinite(drawn("normal", 64)).all()


def test_an_unknown_regime_is_named():
    with pytest.raises(ValueError, match="unknown value regime 'uniform'; known: small, wide"):
        drawn("uniform", 4)


@given(st.integers(0, 0xFFFF))
def test_bf16_bits_survive_the_way_through_real_values(bits: int):
    array = np.array([bits], np.uint16)
    value = array.view(ml_dtypes.bfloat16).astype(np.float32)[0]
    if np.isnan(value):
        assert np.isnan(real_values(array)[0])
    else:
        assert to_bf16(real_values(array))[0] == bits


def test_stored_bits_are_rounded_once_to_fp32_and_once_more_to_bf16():
    # 1 + 2^-8 + 2^-33: in FP32 a tie between two BF16, which goes to the even one.
    value = np.array([1 + 2.0**-8 + 2.0**-33])
    assert rounded_bits(value, np.dtype(np.uint32))[0] == np.float32(1 + 2.0**-8).view(np.uint32)
    assert rounded_bits(value, np.dtype(np.uint16))[0] == 0x3F80


def test_special_values_raise_no_warning():
    with np.errstate(all="raise"):
        values = real_values(np.array([0x7FA1, 0xFF80, 0x7F7F], np.uint16))
        rounded_bits(np.append(values, 1e300), np.dtype(np.uint16))
