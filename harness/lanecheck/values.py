"""Values for a case's inputs, by regime.

Integer regimes make every sum exact in FP32 whatever the order, so outputs can be compared bitwise;
no value is zero, so no term is invisible. ``small`` keeps most sums within ±256, where the store to
BF16 rounds nothing away; ``wide`` lets the sum of magnitudes reach 2^24, far past where a BF16 (2^8) or
FP16 (2^11) accumulator would stay exact. The real-valued regimes are for bits and special values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]

#: Simplest first: hypothesis shrinks towards the front.
REGIMES = ("small", "wide", "normal", "spread", "subnormal", "overflow", "special")
INTEGER_REGIMES = ("small", "wide")

_FP32_EXACT = 2.0**24

# Exponents of whole rows, by regime, and how likely: tokens and weights of one row each meet at the
# edge of the range in about half of the pairs, as products of two of them or as one with 2^0. A vector
# (a bias) has the last of each: it lies where those products do.
_SCALES = {
    "subnormal": ((0, -68, -130), (0.3, 0.5, 0.2)),
    "overflow": ((0, 60, 120), (0.3, 0.5, 0.2)),
}
_SPECIALS = np.array(
    [0x0000, 0x8000, 0x0001, 0x807F, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0xFFA1], np.uint16
)


def draw_values(regime: str, shape: tuple[int, ...], terms: int, rng: np.random.Generator) -> Bits:
    """BF16 bits for one input.

    Args:
        regime: one of :data:`REGIMES`.
        shape: shape of the input.
        terms: how many products one output element sums, addends counted as products.
        rng: the case's generator.

    Returns:
        uint16 array of ``shape``.

    Raises:
        ValueError: if the regime is unknown.
    """
    if regime in INTEGER_REGIMES:
        return to_bf16(_integers(largest_integer(regime, terms), shape, rng))
    if regime == "normal":
        return _normal(shape, rng)
    normal = rng.standard_normal(shape, np.float32)
    if regime == "spread":
        return to_bf16(np.ldexp(normal, rng.integers(-20, 21, shape)))
    if regime in _SCALES:
        return to_bf16(np.ldexp(normal, _row_exponents(regime, shape, rng)))
    if regime == "special":
        chosen = rng.random(shape) < 0.25 / max(terms, 8)
        return np.where(chosen, rng.choice(_SPECIALS, shape), to_bf16(normal))
    raise ValueError(f"unknown value regime '{regime}'; known: {', '.join(REGIMES)}")


def to_bf16(values: npt.NDArray[Any]) -> Bits:
    """Bits of ``values`` rounded to nearest BF16."""
    return values.astype(ml_dtypes.bfloat16).view(np.uint16)


def rounded_bits(values: npt.NDArray[np.float64], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Bits of ``values`` as stored: FP32 for uint32, rounded once more to BF16 for uint16."""
    with np.errstate(over="ignore", invalid="ignore"):  # infinities and signalling NaN are meant
        fp32 = values.astype(np.float32)
    return to_bf16(fp32) if dtype == np.uint16 else fp32.view(np.uint32)


def real_values(bits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The values of BF16 (uint16) or FP32 (uint32) bits, exactly."""
    kind = ml_dtypes.bfloat16 if bits.dtype == np.uint16 else np.float32
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return np.ascontiguousarray(bits).view(kind).astype(np.float64)


def finite_magnitudes(inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """The inputs without their signs, and 0 for an Inf or a NaN: the reference of these is Σ|terms| of a
    plain sum."""
    sizes = {}
    for name, bits in inputs.items():
        kept = np.where(np.isfinite(real_values(bits)), bits, 0).astype(bits.dtype)
        sizes[name] = kept & np.array(2 ** (8 * bits.itemsize - 1) - 1, bits.dtype)
    return sizes


def _normal(shape: tuple[int, ...], rng: np.random.Generator) -> Bits:
    """Piece by piece: gigabytes of weights need no second copy in FP32."""
    bits = np.empty(shape, np.uint16)
    for piece in np.array_split(bits.reshape(-1), max(1, bits.size >> 22)):
        piece[:] = to_bf16(rng.standard_normal(piece.size, np.float32))
    return bits


def _row_exponents(
    regime: str, shape: tuple[int, ...], rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    scales, likely = _SCALES[regime]
    near = rng.integers(-4, 5, shape)
    if len(shape) < 2:
        return near + scales[-1]
    return near + rng.choice(scales, (shape[0], *(1 for _ in shape[1:])), p=likely)


def largest_integer(regime: str, terms: int) -> int:
    """The largest magnitude that an integer regime draws, the smallest being 1; ``terms`` as above."""
    # small: the sum is a random walk of deviation (a + 1)(2a + 1) / 6 · √terms: 60 for large a, at
    # most 112 for a = 2, and √terms for a = 1, below which there is nothing but zero.
    # wide: terms · a² ≤ 2^24, and BF16 holds every integer up to 256.
    if regime == "small":
        return max(1, int((60 * 3 / terms**0.5) ** 0.5))
    return max(1, min(255, int((_FP32_EXACT / terms) ** 0.5)))


def _integers(
    largest: int, shape: tuple[int, ...], rng: np.random.Generator
) -> npt.NDArray[np.float32]:
    magnitude = rng.integers(1, largest + 1, shape).astype(np.float32)
    return np.where(rng.random(shape) < 0.5, -magnitude, magnitude)
