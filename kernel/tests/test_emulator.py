"""The emulator: in real arithmetic a matrix product, and its last steps round as declared."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packed_gemv import emulator as e
from packed_gemv.config import Config, max_warps, supported_trips
from packed_gemv.emulator import Float64, Problem, emulate
from packed_gemv.layout import PackedWeight, blocks, pack

EXACT = Float64()
NAN = 0x7FC0


def draw_bits(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """BF16 bits of values spread over 2^24, so that adding them in float64 has to round."""
    values = rng.standard_normal(shape) * np.exp2(rng.integers(-24, 1, shape))
    return e.bf16_bits(values.astype(np.float32))


def product(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    y = e.bf16_to_float64(x) @ e.bf16_to_float64(weight).T
    return y if bias is None else y + e.bf16_to_float64(bias)


def error(got: np.ndarray, expected: np.ndarray) -> float:
    """Relative Frobenius error."""
    assert got.shape == expected.shape
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


@st.composite
def configs(draw: st.DrawFn, m: int, dual: bool) -> Config:
    nb = blocks(m, 8)
    return Config(
        nw=draw(st.integers(1, max_warps(nb, 1 + dual))),
        u=draw(st.sampled_from(supported_trips(nb, 1 + dual))),
        s=draw(st.integers(1, 4)),
        nb=nb,
        dual=dual,
    )


sizes = {"n": st.integers(1, 50), "k": st.integers(1, 300), "seed": st.integers(0, 2**32 - 1)}

# --- the walk, in real arithmetic


@pytest.mark.parametrize("m", range(1, 65))
@settings(max_examples=4)
@given(data=st.data(), **sizes)
def test_any_number_of_tokens(m: int, n: int, k: int, seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    x, weight = draw_bits(rng, m, k), draw_bits(rng, n, k)
    problem = Problem(x, (PackedWeight.of(weight),), (None,))
    (y,) = emulate(problem, data.draw(configs(m, dual=False)), EXACT)
    assert error(y, product(x, weight)) < 1e-15


@given(m=st.integers(1, 64), biased=st.booleans(), fused=st.booleans(), data=st.data(), **sizes)
def test_two_weights_with_bias_and_fused(
    m: int, n: int, k: int, seed: int, biased: bool, fused: bool, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    x, weights = draw_bits(rng, m, k), [draw_bits(rng, n, k) for _ in range(2)]
    bias = [draw_bits(rng, n) if biased else None for _ in weights]
    problem = Problem(x, tuple(map(PackedWeight.of, weights)), tuple(bias), fused)
    got = emulate(problem, data.draw(configs(m, dual=True)), EXACT)
    gate, up = (product(x, w, b) for w, b in zip(weights, bias, strict=True))
    if fused:
        silu = gate * 0.5 * (1 + np.tanh(gate / 2))
        assert len(got) == 1 and np.allclose(got[0], silu * up, rtol=1e-12, atol=1e-14)
    else:
        assert error(got[0], gate) < 1e-15 and error(got[1], up) < 1e-15


@given(m=st.integers(1, 64), data=st.data(), **sizes)
def test_integers_are_exact_in_every_configuration(
    m: int, n: int, k: int, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    x, weight = (rng.integers(-99, 100, shape) for shape in ((m, k), (n, k)))
    bits = [e.bf16_bits(value.astype(np.float32)) for value in (x, weight)]
    problem = Problem(bits[0], (PackedWeight.of(bits[1]),), (None,))
    (y,) = emulate(problem, data.draw(configs(m, dual=False)), EXACT)
    assert np.array_equal(y, x @ weight.T)


@given(m=st.integers(1, 64), data=st.data(), **sizes)
def test_what_lies_beside_x_is_never_read(
    m: int, n: int, k: int, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    memory = np.full((m + 2, k + 40), NAN, np.uint16)
    memory[1:-1, 5 : 5 + k] = draw_bits(rng, m, k)
    x, weight = memory[1:-1, 5 : 5 + k], draw_bits(rng, n, k)
    config = data.draw(configs(m, dual=False))
    (y,) = emulate(Problem(x, (PackedWeight.of(weight),), (None,)), config, EXACT)
    assert error(y, product(x, weight)) < 1e-15


@given(m=st.integers(1, 64), data=st.data(), **sizes)
def test_x_counts_as_zero_beyond_k(m: int, n: int, k: int, seed: int, data: st.DataObject) -> None:
    """Whatever finite numbers fill the weight's padding, they are multiplied by 0."""
    rng = np.random.default_rng(seed)
    x, whole = draw_bits(rng, m, k), draw_bits(rng, 16 * blocks(n, 16), 32 * blocks(k, 32))
    packed = PackedWeight(pack(whole), n, k)
    config = data.draw(configs(m, dual=False))
    (y,) = emulate(Problem(x, (packed,), (None,)), config, EXACT)
    assert error(y, product(x, whole[:n, :k])) < 1e-15


@given(m=st.integers(2, 64), data=st.data(), **sizes)
def test_tokens_and_rows_keep_to_themselves(
    m: int, n: int, k: int, seed: int, data: st.DataObject
) -> None:
    """A NaN token spoils its own row of y and a NaN weight row its own column, nothing else."""
    rng = np.random.default_rng(seed)
    x, weight = draw_bits(rng, m, k), draw_bits(rng, n, k)
    token, row = data.draw(st.integers(0, m - 1)), data.draw(st.integers(0, n - 1))
    x[token, data.draw(st.integers(0, k - 1))] = NAN
    weight[row, data.draw(st.integers(0, k - 1))] = NAN
    config = data.draw(configs(m, dual=False))
    (y,) = emulate(Problem(x, (PackedWeight.of(weight),), (None,)), config, EXACT)
    spoilt = np.zeros((m, n), bool)
    spoilt[token], spoilt[:, row] = True, True
    assert np.array_equal(np.isnan(y), spoilt)


@pytest.mark.parametrize("config", [Config(1, 1, nb=2), Config(1, 1, nb=1, dual=True)])
def test_a_configuration_for_another_problem_is_refused(config: Config) -> None:
    weight = PackedWeight.of(np.zeros((16, 32), np.uint16))
    problem = Problem(np.zeros((8, 32), np.uint16), (weight,), (None,))
    with pytest.raises(ValueError, match=r"does not fit 8 tokens and 1 weight\(s\)"):
        emulate(problem, config, EXACT)


# --- what follows the last mma, in FP32


@dataclass(frozen=True)
class Given:
    """An arithmetic whose accumulators the test decides: one array a weight, used in turn."""

    tiles: list[np.ndarray]  # each [P, RB, NB, 16, 8]

    def chains(self, a: np.ndarray, b: np.ndarray, slices: list[range]) -> np.ndarray:
        tiles = self.tiles.pop(0)
        assert len(slices) == len(tiles)
        return tiles

    def exact(self) -> bool:
        return False


def finished(
    config: Config, *tiles: np.ndarray, bias: np.ndarray | None = None, **options: bool
) -> list[np.ndarray]:
    """What ``emulate`` makes of these accumulators, one array a weight, for full tiles."""
    n, m = 16 * tiles[0].shape[1], 8 * tiles[0].shape[2]
    weight = PackedWeight.of(np.zeros((n, 32), np.uint16))
    problem = Problem(
        np.zeros((m, 32), np.uint16),
        (weight,) * config.mats,
        (bias,) * config.mats,
        **{"out_fp32": True, **options},
    )
    return emulate(problem, config, Given(list(tiles)))


def filled(value: float) -> np.ndarray:
    """One accumulator tile of one value."""
    return np.full((1, 1, 1, 16, 8), value, np.float32)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_warps_are_added_in_order_and_then_slices(nw: int, s: int, nb: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tiles = rng.standard_normal((s * nw, 2, nb, 16, 8)).astype(np.float32)
    config = Config(nw, 1, s, nb)
    (bits,) = finished(config, tiles)
    y = bits.view(np.float32)
    for row, token in ((0, 0), (7, 8 * nb - 1), (31, 3), (18, 5)):
        place = (row // 16, token // 8, row % 16, token % 8)
        total = None
        for i in range(s):
            part = tiles[i * nw][place]
            for w in range(1, nw):
                part = np.float32(part + tiles[i * nw + w][place])
            total = part if total is None else np.float32(total + part)
        assert y[token, row] == total


def test_the_order_shows_where_rounding_does() -> None:
    tiles = np.zeros((4, 1, 1, 16, 8), np.float32)
    for tile, value in zip(tiles, (2.0**24, 1, 1, 1), strict=True):
        tile[:] = value
    (in_one,) = finished(Config(4, 1, 1), tiles)
    (in_two,) = finished(Config(2, 1, 2), tiles)
    assert in_one.view(np.float32)[0, 0] == 2.0**24  # every 1 is lost to a tie
    assert in_two.view(np.float32)[0, 0] == 2.0**24 + 2  # 1 + 1 is made first


def test_the_bias_is_added_in_fp32_after_everything_else() -> None:
    bias = e.bf16_bits(np.arange(16, dtype=np.float32))
    (bits,) = finished(Config(1, 1), filled(2.0**24), bias=bias)
    expected = np.float32(2.0**24) + np.arange(16, dtype=np.float32)
    assert np.array_equal(bits.view(np.float32), np.broadcast_to(expected, (8, 16)))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("up", [0.0, 1.0, -3.5, 3e38, np.inf, np.nan])
@pytest.mark.parametrize("gate", [0.0, 1.0, -5.25, -87.0, -200.0, 200.0, 3e38, np.inf, -np.inf])
def test_fused_output_is_silu_in_fp32(gate: float, up: float) -> None:
    (bits,) = finished(Config(1, 1, dual=True), filled(gate), filled(up), fused=True)
    with np.errstate(all="ignore"):
        # -200 / (1 + exp(200)): exp overflows in FP32, so this is -0 there, not merely small.
        exp = np.float64(np.float32(np.exp(np.float64(-gate))))
        expected = np.float32(np.float32(gate / (1 + exp)) * np.float64(up))
    if np.isnan(expected):
        assert (bits == 0x7FFFFFFF).all()
    else:
        assert np.allclose(bits.view(np.float32), expected, rtol=4e-7, atol=0)


@pytest.mark.parametrize("outputs", [1, 2])
def test_each_weight_has_its_own_output(outputs: int) -> None:
    tiles = [filled(value) for value in (3.0, 5.0)[:outputs]]
    got = finished(Config(1, 1, dual=outputs == 2), *tiles)
    assert [y.view(np.float32).max() for y in got] == [3.0, 5.0][:outputs]


def test_every_nan_is_stored_as_one() -> None:
    tiles = filled(np.nan)
    tiles.view(np.uint32)[..., ::2] = 0xFFC12345
    (fp32,) = finished(Config(1, 1), tiles)
    (bf16,) = finished(Config(1, 1), tiles, out_fp32=False)
    assert fp32.dtype == np.uint32 and (fp32 == 0x7FFFFFFF).all()
    assert bf16.dtype == np.uint16 and (bf16 == 0x7FFF).all()


# --- exp

# Every 997th float from 2^-30 to where exp overflows or vanishes, and all about the worst ones.
FLOATS = np.concatenate(
    [
        np.arange(0x30800000, 0x42B17218, 997, dtype=np.uint32),
        np.arange(0xB0800000, 0xC2CFF1B5, 997, dtype=np.uint32),
        *(
            np.float32(worst).view(np.uint32) + np.arange(-500, 500).astype(np.uint32)
            for worst in (59.265224, 4.5056252, -5.89104, -0.343589)
        ),
    ]
).view(np.float32)


def ulp(value: np.ndarray) -> np.ndarray:
    """Distance between the FP32 numbers about ``value``, subnormal ones included."""
    return np.ldexp(1.0, np.maximum(np.frexp(value)[1] - 1, -126) - 23)


def test_exp_is_within_one_and_a_quarter_ulp() -> None:
    """The largest error over every FP32 number is 1.2206 ULP, at 59.265224 (an exhaustive run)."""
    truth = np.exp(FLOATS.astype(np.float64))
    errors = np.abs(e.exp_reproducible(FLOATS).astype(np.float64) - truth) / ulp(truth)
    assert 1.2 < errors.max() < 1.221


def test_exp_keeps_its_bits() -> None:
    """Every constant and the order of every operation show in the bits; the kernel has the same."""
    assert zlib.crc32(e.exp_reproducible(FLOATS).tobytes()) == 0xD4645B99


def test_exp_never_steps_down_by_more_than_an_ulp() -> None:
    y = e.exp_reproducible(np.sort(FLOATS)).astype(np.float64)
    assert (np.diff(y) >= -ulp(y[:-1])).all()


def test_exp_at_the_ends() -> None:
    x = np.array([np.inf, 128.5, 88.7229, 0, -0.0, -104, -160, -160.5, -np.inf], np.float32)
    expected = [np.inf, np.inf, np.inf, 1, 1, 0, 0, 0, 0]
    assert e.exp_reproducible(x).tolist() == expected
    assert np.isnan(e.exp_reproducible(np.array([np.nan, -np.nan], np.float32))).all()
    assert np.isfinite(e.exp_reproducible(np.array([88.7228], np.float32))).all()


def test_exp_rounds_a_subnormal_result_once() -> None:
    x = np.linspace(-103.9, -87.4, 50_001).astype(np.float32)
    truth = np.exp(x.astype(np.float64))
    y = e.exp_reproducible(x).astype(np.float64)
    assert (truth < 2.0**-126).all() and (y > 0).all()
    assert (np.abs(y - truth) <= (0.5 + 1.25 * truth / 2.0**-126) * 2.0**-149).all()


# --- bits


def test_bf16_rounding_is_the_one_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    values = (high[:, None] | low).view(np.float32).ravel()
    values = values[~np.isnan(values)]
    with np.errstate(over="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert np.array_equal(e.bf16_bits(values), expected)


@pytest.mark.filterwarnings("error")
def test_bf16_bits_are_values_and_back() -> None:
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    values = e.bf16_to_fp32(bits)
    nan = np.isnan(values)
    assert np.array_equal(e.bf16_bits(values)[~nan], bits[~nan])
    assert (e.bf16_bits(values)[nan] == 0x7FFF).all() and nan.sum() == 2 * 127
    assert np.array_equal(e.bf16_to_float64(bits)[~nan], values[~nan].astype(np.float64))


def test_fp32_bits_change_nothing_but_nan() -> None:
    bits = np.array([0, 0x80000000, 1, 0x7F800000, 0x7F800001, 0xFFC00000], np.uint32)
    expected = [0, 0x80000000, 1, 0x7F800000, 0x7FFFFFFF, 0x7FFFFFFF]
    assert e.fp32_bits(bits.view(np.float32)).tolist() == expected
    assert e.fp32_bits(np.zeros((3, 4), np.float32).T).shape == (4, 3)
