"""The tensor core models against silicon, against each other and against a third judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator
from numpy.typing import NDArray

from lanecheck import native
from lanecheck.errors import CannotRun
from lanecheck.tensorcore import AMPERE, HOPPER, TensorCore, evidence, model_for

GOLDEN = Path(__file__).parent / "data" / "golden_mma_m16n8k16_bf16_sm90.npz"
MODELS = pytest.mark.parametrize("model", [AMPERE, HOPPER], ids=lambda model: model.name)
ONE, MINUS_ZERO, INF, NAN = 0x3F80, 0x8000, 0x7F80, 0x7FC0


class Fragments(NamedTuple):
    """A batch of operands; c as FP32 bits, so that no conversion can touch a NaN."""

    a: NDArray[np.uint16]
    b: NDArray[np.uint16]
    c: NDArray[np.uint32]

    @property
    def operands(self) -> tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.float32]]:
        return self.a, self.b, self.c.view(np.float32)


def python(model: TensorCore, x: Fragments) -> NDArray[np.uint32]:
    return model.mma(*x.operands).view(np.uint32)


def fast(model: TensorCore, x: Fragments) -> NDArray[np.uint32]:
    return native.mma_batch(model, *x.operands).view(np.uint32)


def plain(model: TensorCore, x: Fragments) -> NDArray[np.uint32]:
    return native.mma_batch(model, *x.operands, plain=True).view(np.uint32)


IMPLEMENTATIONS = pytest.mark.parametrize("implementation", [python, fast, plain])


def assert_same(actual: NDArray[np.uint32], expected: NDArray[np.uint32], x: Fragments) -> None:
    """Equal bits, or the first output that differs with everything that went into it."""
    wrong = np.argwhere(actual != expected)
    if len(wrong):
        n, i, j = wrong[0]
        pytest.fail(
            f"{len(wrong)} of {actual.size} outputs differ; first mma {n}, row {i}, column {j}: "
            f"{actual[n, i, j]:#010x}, expected {expected[n, i, j]:#010x}\n"
            f"a = {[hex(v) for v in x.a[n, i]]}\nb = {[hex(v) for v in x.b[n, :, j]]}\n"
            f"c = {x.c[n, i, j]:#010x}"
        )


# Measured on silicon


@pytest.fixture(scope="module")
def golden() -> tuple[Fragments, NDArray[np.uint32]]:
    with np.load(GOLDEN) as file:
        return Fragments(file["a"], file["b"], file["c"]), file["d"]


@IMPLEMENTATIONS
def test_hopper_is_what_an_h200_computed(golden, implementation) -> None:
    x, measured = golden
    assert measured.size == 307_200
    assert_same(implementation(HOPPER, x), measured, x)


@pytest.mark.parametrize(
    "wrong",
    [
        {"zero_exponent": -126},
        {"zero_exponent": -132},
        {"fraction_bits": 24},
        {"fraction_bits": 26},
        {"terms": 8},
    ],
    ids=str,
)
def test_silicon_contradicts_other_constants(golden, wrong) -> None:
    x, measured = golden
    assert (python(dataclasses.replace(HOPPER, **wrong), x) != measured).any()


def test_silicon_contradicts_ampere(golden) -> None:
    x, measured = golden
    assert (fast(AMPERE, x) != measured).any()


# Implementations against each other


def bf16(x: NDArray) -> NDArray[np.uint16]:
    with np.errstate(over="ignore"):
        return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def fp32(x: NDArray) -> NDArray[np.uint32]:
    with np.errstate(over="ignore"):
        return x.astype(np.float32).view(np.uint32)


def spread(rng: Generator, n: int, a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]):
    """Normal values, each times a power of two drawn from its operand's range."""

    def draw(*shape: int, exponents: tuple[int, int]) -> NDArray[np.float64]:
        return np.ldexp(rng.standard_normal(shape), rng.integers(*exponents, shape, endpoint=True))

    return Fragments(
        bf16(draw(n, 16, 16, exponents=a)),
        bf16(draw(n, 16, 8, exponents=b)),
        fp32(draw(n, 16, 8, exponents=c)),
    )


def ordinary(rng: Generator, n: int) -> Fragments:
    return spread(rng, n, a=(0, 0), b=(0, 0), c=(0, 0))


def wide(rng: Generator, n: int) -> Fragments:
    return spread(rng, n, a=(-30, 30), b=(-30, 30), c=(-60, 60))


def large_accumulator(rng: Generator, n: int) -> Fragments:
    return spread(rng, n, a=(-3, 3), b=(-3, 3), c=(0, 30))


def tiny(rng: Generator, n: int) -> Fragments:
    """Products around the smallest subnormal, where the zero exponent decides."""
    x = spread(rng, n, a=(-78, -66), b=(-78, -66), c=(-150, -130))
    return x._replace(c=x.c * (rng.random(x.c.shape) < 0.5).astype(np.uint32))


def subnormal(rng: Generator, n: int) -> Fragments:
    x = spread(rng, n, a=(0, 0), b=(-20, 120), c=(-149, -120))
    return x._replace(a=(x.a & 0x807F).astype(np.uint16))


def signed_zeros(rng: Generator, n: int) -> Fragments:
    x = spread(rng, n, a=(0, 0), b=(0, 0), c=(-149, -140))
    a = np.where(rng.random(x.a.shape) < 0.97, x.a & MINUS_ZERO, x.a).astype(np.uint16)
    return x._replace(a=a, c=np.where(rng.random(x.c.shape) < 0.7, x.c & (1 << 31), x.c))


def overflowing(rng: Generator, n: int) -> Fragments:
    return spread(rng, n, a=(58, 66), b=(58, 66), c=(120, 127))


def huge_products(rng: Generator, n: int) -> Fragments:
    """Products far beyond FP32, most of which cancel: rows of A repeat with opposite sign."""
    x = spread(rng, n, a=(100, 127), b=(-60, 127), c=(100, 127))
    x.a[..., 1::2], x.b[..., 1::2, :] = x.a[..., ::2] ^ MINUS_ZERO, x.b[..., ::2, :]
    return x


def largest_sums(rng: Generator, n: int) -> Fragments:
    """All significands full, all exponents and most signs alike: what the accumulator must hold."""
    a = np.full((n, 16, 16), 0x40FF, np.uint16) ^ (rng.random((n, 16, 16)) < 0.1) * MINUS_ZERO
    c = rng.integers(0x41FFFFF0, 0x42000010, (n, 16, 8), np.uint32) ^ (
        rng.random((n, 16, 8)) < 0.5
    ) * (1 << 31)
    return Fragments(
        a.astype(np.uint16), np.full((n, 16, 8), 0x40FF, np.uint16), c.astype(np.uint32)
    )


def nearly_carrying(rng: Generator, n: int) -> Fragments:
    """C of 24 ones and products that add more ones below, where rounding up would carry: near 2
    in one half, and in the other at the largest FP32, where it would overflow.
    """
    x = spread(rng, n, a=(0, 0), b=(0, 0), c=(0, 0))
    largest = np.arange(n)[:, None, None] < n // 2
    a = rng.choice(bf16(np.array([0, 0, 0, 0, 0, 2.0**-24, 2.0**-25])), x.a.shape)
    sign = rng.integers(0, 2, x.c.shape, np.uint32) << np.uint32(31)
    b = np.where(largest, 0x7F00, np.full_like(x.b, ONE))
    return Fragments(a, b, np.where(largest, np.uint32(0x7F7FFFFF), np.uint32(0x3FFFFFFF)) | sign)


def zeros_against_huge(rng: Generator, n: int) -> Fragments:
    """Zeros times the largest numbers beside tiny products: a zero's factor must not count."""
    x = tiny(rng, n)
    x.a[..., ::3], x.b[..., ::3, :] = MINUS_ZERO, 0x7F00 | x.b[..., ::3, :] & 0x807F
    return x


def cancelling(rng: Generator, n: int) -> Fragments:
    """Small integers whose products cancel C, exactly or to the last bit."""
    a, b = rng.integers(-8, 9, (n, 16, 16)), rng.integers(-8, 9, (n, 16, 8))
    c = fp32(-(a @ b)) + rng.integers(-1, 2, (n, 16, 8)).astype(np.uint32)
    return Fragments(bf16(a), bf16(b), c)


def any_bits(rng: Generator, n: int) -> Fragments:
    return Fragments(
        rng.integers(0, 1 << 16, (n, 16, 16), np.uint16),
        rng.integers(0, 1 << 16, (n, 16, 8), np.uint16),
        rng.integers(0, 1 << 32, (n, 16, 8), np.uint32),
    )


def special(rng: Generator, n: int) -> Fragments:
    """A few Inf, NaN and zeros, signalling NaN included, among ordinary values."""
    x = ordinary(rng, n)
    rare = np.array([INF, INF | MINUS_ZERO, NAN, 0x7F81, 0xFFFF, 0, MINUS_ZERO], np.uint16)
    for part in (x.a, x.b):
        at = rng.random(part.shape) < 0.02
        part[at] = rng.choice(rare, at.sum())
    at = rng.random(x.c.shape) < 0.05
    x.c[at] = rng.choice(
        rare.astype(np.uint32) << 16 | np.array([0, 0, 1, 1, 1, 0, 0], np.uint32), at.sum()
    )
    return x


CATEGORIES: list[Callable[[Generator, int], Fragments]] = [
    ordinary,
    wide,
    large_accumulator,
    tiny,
    subnormal,
    signed_zeros,
    overflowing,
    huge_products,
    largest_sums,
    nearly_carrying,
    zeros_against_huge,
    cancelling,
    any_bits,
    special,
]


@pytest.fixture(scope="module")
def adversarial() -> Fragments:
    rng = np.random.default_rng(20)
    x = Fragments(*map(np.concatenate, zip(*(make(rng, 70) for make in CATEGORIES), strict=True)))
    assert x.c.size >= 100_000
    return x


@MODELS
@pytest.mark.parametrize("implementation", [fast, plain])
def test_native_equals_python(adversarial, model, implementation) -> None:
    assert_same(implementation(model, adversarial), python(model, adversarial), adversarial)


VARIANTS = {
    "unoptimised": ["-O1"],  # what a simulated kernel is built with
    "baseline": ["-O2", "-DLANECHECK_MMA_AVX2_DISPATCH=0"],
    "sanitized": ["-O1", "-fsanitize=undefined", "-DLANECHECK_MMA_UNCHECKED="],
}


@pytest.mark.parametrize("flags", VARIANTS.values(), ids=VARIANTS)
def test_flags_change_no_bit(adversarial, flags, monkeypatch, capfd) -> None:
    expected = {model.name: fast(model, adversarial) for model in (AMPERE, HOPPER)}
    variant = native.build(*flags)
    monkeypatch.setattr(native, "build", lambda: variant)
    for model in (AMPERE, HOPPER):
        assert_same(fast(model, adversarial), expected[model.name], adversarial)
    assert "runtime error" not in capfd.readouterr().err


@st.composite
def one_mma(draw: st.DrawFn) -> Fragments:
    """Few distinct values, so that ties, cancellation and equal exponents are common."""
    sign, fraction = st.sampled_from([0, MINUS_ZERO]), st.integers(0, 127)
    around = draw(st.sampled_from([0, 1, 50, 60, 64, 127, 190, 250]))
    field = st.integers(max(around - 3, 0), around + 4) | st.sampled_from([0, 1, 254, 255])
    value = st.builds(lambda s, e, f: s | e << 7 | f, sign, field, fraction)
    pool = draw(st.lists(value, min_size=1, max_size=6))
    wide_pool = draw(st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=4))
    wide_pool += [v << 16 for v in pool]
    rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    return Fragments(
        rng.choice(np.array(pool, np.uint16), (1, 16, 16)),
        rng.choice(np.array(pool, np.uint16), (1, 16, 8)),
        rng.choice(np.array(wide_pool, np.uint32), (1, 16, 8)),
    )


@settings(max_examples=200, deadline=None)
@given(one_mma(), st.sampled_from([AMPERE, HOPPER]))
def test_native_equals_python_on_few_values(x: Fragments, model: TensorCore) -> None:
    expected = python(model, x)
    assert_same(fast(model, x), expected, x)
    assert_same(plain(model, x), expected, x)


# A third judge


@pytest.mark.parametrize(
    ("architecture", "model"),
    [
        ("Ampere", AMPERE),
        ("Ada Lovelace", AMPERE),
        ("Hopper", HOPPER),
        ("Blackwell", HOPPER),
        ("RTX Blackwell", HOPPER),
    ],
)
def test_mmasim_agrees(architecture: str, model: TensorCore) -> None:
    torch = pytest.importorskip("torch")
    nv_ptx = pytest.importorskip("mmasim.nv_ptx")
    judge = nv_ptx.MMA(architecture, "m16n8k16.f32.bf16.bf16.f32")
    rng = np.random.default_rng(30)
    x = Fragments(*map(np.concatenate, zip(*(make(rng, 20) for make in CATEGORIES), strict=True)))
    a, b, c = map(torch.from_numpy, (x.a.view(np.int16), x.b.view(np.int16), x.c.view(np.int32)))
    judged = judge.dpa(
        a.view(torch.bfloat16)[:, :, None, :].expand(-1, -1, 8, -1),
        b.view(torch.bfloat16).transpose(1, 2)[:, None, :, :].expand(-1, 16, -1, -1),
        c.view(torch.float32),
    )
    assert_same(fast(model, x), judged.numpy().view(np.uint32), x)


# What the models promise


def single(products: list[tuple[float, float]], c: float = 0.0, first: int = 0) -> Fragments:
    """One output, at [0, 0, 0], from the given products in consecutive slots from ``first``."""
    a, b, acc = np.zeros((1, 16, 16)), np.zeros((1, 16, 8)), np.zeros((1, 16, 8))
    for slot, (p, q) in enumerate(products, first):
        a[0, 0, slot], b[0, slot, 0] = p, q
    acc[0, 0, 0] = c
    return Fragments(bf16(a), bf16(b), fp32(acc))


def value(implementation, model: TensorCore, x: Fragments) -> float:
    return float(implementation(model, x).view(np.float32)[0, 0, 0])


@MODELS
@IMPLEMENTATIONS
def test_terms_are_truncated_toward_zero_below_the_largest(model, implementation) -> None:
    bits = model.fraction_bits
    kept, lost = 2.0**-bits, 2.0 ** -(bits + 1)
    # 1 - 1 cancels, so that what was kept of the small term shows.
    for small, result in ((kept, kept), (-kept, -kept), (lost, 0.0), (-lost, 0.0)):
        x = single([(1, 1), (-1, 1), (small, 1)])
        assert value(implementation, model, x) == result


@MODELS
@IMPLEMENTATIONS
def test_a_product_aligns_by_the_sum_of_its_factors_exponents(model, implementation) -> None:
    kept = 2.0**-model.fraction_bits
    # 1.5 * 1.5 = 2.25 has exponent 0 here, and 2.25 * 1 has exponent 1.
    assert value(implementation, model, single([(1.5, 1.5), (-1.5, 1.5), (kept, 1)])) == kept
    assert value(implementation, model, single([(2.25, 1), (-2.25, 1), (kept, 1)])) == 0


@IMPLEMENTATIONS
def test_ampere_adds_slots_0_to_7_first_and_hopper_all_at_once(implementation) -> None:
    small = 2.0**-24
    early = single([(1, 1), (small, 1), (small, 1)])
    late = single([(1, 1)] + [(0, 0)] * 7 + [(small, 1), (small, 1)])
    assert value(implementation, HOPPER, early) == value(implementation, HOPPER, late) == 1 + 2**-23
    assert value(implementation, AMPERE, early) == value(implementation, AMPERE, late) == 1 + 2**-23
    apart = single([(1, 1), (small, 1)] + [(0, 0)] * 6 + [(small, 1)])
    assert value(implementation, HOPPER, apart) == 1 + 2**-23
    assert value(implementation, AMPERE, apart) == 1


@MODELS
@IMPLEMENTATIONS
def test_the_zero_exponent_bounds_what_a_sum_of_tiny_products_keeps(model, implementation) -> None:
    """Two products whose sum is exactly 2^-149, of which the smaller is one bit below the quantum.

    With a zero exponent one lower, or none, the result would be 2^-149. An H200 gave +0 for
    hopper's operands, through the packed GEMV; ampere's wait for such a GPU.
    """
    below = model.zero_exponent - model.fraction_bits - 1  # -159 or -157
    ones = {-159: (33.0, 31.0), -157: (15.0, 17.0)}[below]  # 2^10 - 1, 2^8 - 1
    half = below // 2
    scaled = (np.ldexp(ones[0], half), np.ldexp(ones[1], below - half))
    x = single([scaled, (2.0**half, 2.0 ** (below - half))])
    assert implementation(model, x)[0, 0, 0] == 0
    lower = dataclasses.replace(model, zero_exponent=model.zero_exponent - 1)
    assert python(lower, x)[0, 0, 0] == 1


@MODELS
@IMPLEMENTATIONS
@pytest.mark.parametrize(
    ("a", "b", "c", "d"),
    [
        (MINUS_ZERO, ONE, 0x80000000, 0x00000000),  # a zero is +0
        (0, ONE, 0x80000001, 0x80000001),  # subnormal C is kept
        (0x0001, 0x8001, 0, 0x00000000),  # an underflow is +0 too
        (0x7F7F, 0x4000, 0, INF << 16),  # overflow is Inf, though toward zero
        (0xFF7F, 0x7F7F, 0, 0xFF800000),
        (INF, MINUS_ZERO, 0, 0x7FFFFFFF),
        (INF, 0xBF80, 0x7F7FFFFF, 0xFF800000),
        (INF, ONE, 0xFF800000, 0x7FFFFFFF),
        (ONE, ONE, 0xFF800001, 0x7FFFFFFF),  # payload and sign of a NaN are lost
        (0xFFC1, ONE, 0, 0x7FFFFFFF),
    ],
    ids=lambda bits: f"{bits:x}",
)
def test_zeros_overflow_and_special_values(model, implementation, a, b, c, d) -> None:
    x = single([])
    x.a[0, 0, 3], x.b[0, 3, 0], x.c[0, 0, 0] = a, b, c
    assert f"{implementation(model, x)[0, 0, 0]:#010x}" == f"{d:#010x}"


@MODELS
@IMPLEMENTATIONS
def test_integers_are_exact_in_any_slot_order(model, implementation) -> None:
    """With Σ|products| + |c| ≤ 2^24 nothing is dropped: the law behind the exact-integer oracle."""
    rng = np.random.default_rng(40)
    limit = np.array([4, 16, 128, 256])[np.arange(200) % 4, None, None]
    a, b = (
        rng.integers(-limit, limit + 1, (200, 16, 16)),
        rng.integers(-limit, limit + 1, (200, 16, 8)),
    )
    room = 2**24 - np.abs(a) @ np.abs(b)
    assert room.min() >= 0
    c = np.rint(rng.uniform(-1, 1, room.shape) * room).astype(np.int64)
    exact = (a @ b + c).astype(np.float32).view(np.uint32)
    for order in (np.arange(16), rng.permutation(16)):
        x = Fragments(bf16(a[..., order]), bf16(b[:, order]), fp32(c))
        assert_same(implementation(model, x), exact, x)


# Chains


def chain_operands(rng: Generator, rows: int, columns: int, length: int):
    x = special(rng, max(rows, columns) * length)
    a = x.a[: rows * length].reshape(rows, length, 16, 16)
    return a, x.b[: columns * length].reshape(columns, length, 16, 8)


@MODELS
@pytest.mark.parametrize("threads", [1, 3])
def test_a_chain_is_mma_after_mma(model: TensorCore, threads: int) -> None:
    a, b = chain_operands(np.random.default_rng(50), rows=5, columns=9, length=4)
    acc = np.zeros((5, 9, 16, 8), np.float32)
    for step in range(4):
        acc = model.mma(a[:, None, step], b[None, :, step], acc)
    (chained,) = native.mma_chains(model, a, b, [range(4)], threads=threads)
    assert np.isfinite(acc).any()
    np.testing.assert_array_equal(chained.view(np.uint32), acc.view(np.uint32))


@MODELS
def test_each_slice_is_a_chain_of_its_own(model: TensorCore) -> None:
    a, b = chain_operands(np.random.default_rng(53), rows=3, columns=9, length=7)
    slices = [range(0, 3), range(3, 3), range(3, 7), range(1, 6)]
    chained = native.mma_chains(model, a, b, slices, threads=2)
    for part, steps in zip(chained, slices):
        cut = slice(steps.start, steps.stop)
        (alone,) = native.mma_chains(model, a[:, cut], b[:, cut], [range(len(steps))])
        np.testing.assert_array_equal(part.view(np.uint32), alone.view(np.uint32))


@MODELS
def test_an_empty_chain_is_plus_zero(model: TensorCore) -> None:
    a, b = chain_operands(np.random.default_rng(51), rows=2, columns=3, length=0)
    assert not native.mma_chains(model, a, b, [range(0)], threads=4).view(np.uint32).any()


def test_no_chains_at_all() -> None:
    a, b = chain_operands(np.random.default_rng(52), rows=2, columns=0, length=3)
    assert native.mma_chains(HOPPER, a, b, [range(3)]).shape == (1, 2, 0, 16, 8)


# The interface


@MODELS
def test_strides_and_batch_dimensions_do_not_matter(model: TensorCore) -> None:
    x = ordinary(np.random.default_rng(60), 6)
    expected = python(model, x)
    a, b, c = (np.asfortranarray(part) for part in x.operands)
    np.testing.assert_array_equal(model.mma(a, b, c).view(np.uint32), expected)
    np.testing.assert_array_equal(native.mma_batch(model, a, b, c).view(np.uint32), expected)
    stacked = model.mma(a.reshape(2, 3, 16, 16), b.reshape(2, 3, 16, 8), c.reshape(2, 3, 16, 8))
    np.testing.assert_array_equal(stacked.view(np.uint32), expected.reshape(2, 3, 16, 8))
    one = model.mma(a[0], b[0], c[0])
    np.testing.assert_array_equal(one.view(np.uint32), expected[0])


def test_misread_operands_are_refused() -> None:
    a, b, c = ordinary(np.random.default_rng(61), 2).operands
    with pytest.raises(ValueError, match=r"a should be uint16 \[..., 16, 16\], not int16"):
        HOPPER.mma(a.view(np.int16), b, c)
    with pytest.raises(ValueError, match="b should be"):
        native.mma_batch(HOPPER, a, a, c)
    with pytest.raises(ValueError, match="c should be float32"):
        native.mma_batch(HOPPER, a, b, c.astype(np.float64))
    with pytest.raises(ValueError, match="hold 2, 1 and 2 fragments"):
        native.mma_batch(HOPPER, a, b[:1], c)
    with pytest.raises(ValueError, match="2 leading dimensions"):
        native.mma_chains(HOPPER, a, b, [])
    with pytest.raises(ValueError, match="have 2 steps and b's 1"):
        native.mma_chains(HOPPER, a[None], b[None, :1], [])
    with pytest.raises(ValueError, match="threads"):
        native.mma_chains(HOPPER, a[None], b[None], [], threads=0)
    with pytest.raises(ValueError, match="not a slice of 2 steps"):
        native.mma_chains(HOPPER, a[None], b[None], [range(1, 3)])
    with pytest.raises(ValueError, match="no native implementation"):
        native.mma_batch(dataclasses.replace(HOPPER, fraction_bits=24), a, b, c)


def test_every_capability_says_how_it_is_known() -> None:
    assert {cc: model_for(cc).name for cc in ("8.0", "8.6", "8.9")} == dict.fromkeys(
        ("8.0", "8.6", "8.9"), "ampere"
    )
    for cc in ("9.0", "10.0", "10.3", "12.0", "12.1"):
        assert model_for(cc) is HOPPER
        assert evidence(cc) == ("measured" if cc == "9.0" else "published")
    with pytest.raises(CannotRun, match=r"'7.5'; known: 8.0, .*9.0"):
        model_for("7.5")


def test_without_a_compiler_the_error_says_what_to_do(monkeypatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    native.build.cache_clear()
    with pytest.raises(CannotRun, match="no C\\+\\+ compiler here"):
        native.build()


def test_the_library_is_compiled_once_per_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LANECHECK_CACHE", str(tmp_path / "cache"))
    native.build.cache_clear()
    native.build("-O0")
    native.build.cache_clear()
    monkeypatch.setattr(native, "_compile", lambda *_: pytest.fail("compiled again"))
    native.build("-O0")
    native.build.cache_clear()
    assert [path.suffix for path in (tmp_path / "cache" / "native").iterdir()] == [".so"]


def test_a_failed_compilation_shows_the_compilers_words(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LANECHECK_CACHE", str(tmp_path))
    with pytest.raises(CannotRun, match="-fno-such-flag"):
        native.build("-fno-such-flag")
    assert not list((tmp_path / "native").iterdir())
