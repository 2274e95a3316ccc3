"""Bit-exact models of the tensor core's ``mma.sync.m16n8k16``, BF16 inputs and FP32 accumulator.

A tensor core neither rounds each product nor adds in sequence. It lines up all terms of one *fused
sum* (some exact products and the accumulator) with the largest, drops what falls below a fixed
number of fraction bits, adds the rest exactly, and rounds once::

    E = max over terms of the term's exponent
    q = 2 ** (E - fraction_bits)
    d = RZ_fp32(q * sum(trunc(term / q) for term in terms))

* A product's exponent is the sum of its factors' exponents, so its significand lies in [1, 4).
* Subnormal factors and a subnormal accumulator keep exponent -126.
* A term that is zero takes part in the maximum with ``zero_exponent``.
* RZ keeps subnormals, an overflow gives infinity, and a zero is +0 whatever the signs.
* With an infinity or a NaN among the terms the result is IEEE's; every NaN is ``0x7FFFFFFF``.

Sources: MMA-Sim, arXiv 2511.10909; Khattak and Mikaitis, arXiv 2512.07004. :func:`evidence` tells
what silicon has confirmed here from what is only published; of Ampere and Ada everything is only
published, down to its NaN. This module is the one to read; ``lanecheck.native`` computes the same in
volume, written independently, and :func:`lanecheck.native.check` compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lanecheck.errors import CannotRun

Evidence = Literal["measured", "published"]

FP32_NAN = np.uint32(0x7FFFFFFF)
"""The only NaN a tensor core produces."""

_OPERANDS = {"a": ("uint16", (16, 16)), "b": ("uint16", (16, 8)), "c": ("float32", (16, 8))}


@dataclass(frozen=True, kw_only=True)
class TensorCore:
    """The arithmetic of one family of GPUs."""

    name: str
    fraction_bits: int
    """Bits kept below the largest term's exponent."""
    terms: int
    """Products in one fused sum; the accumulator is one term more."""
    zero_exponent: int
    """The exponent with which a zero term takes part in the maximum."""
    evidence: Mapping[str, Evidence] = field(compare=False)
    """The compute capabilities of the family, and how each is known to belong to it."""

    def mma(
        self, a: NDArray[np.uint16], b: NDArray[np.uint16], c: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """``a @ b + c`` as this tensor core computes it; leading batch dimensions broadcast.

        ``a`` [..., 16, 16] and ``b`` [..., 16, 8] hold BF16 bits, ``c`` and the result
        [..., 16, 8] FP32. The 16 slots of K are summed in slot order, ``terms`` at a time, each sum
        taking the one before it in the place of ``c``.
        """
        check_operand("a", a)
        check_operand("b", b)
        check_operand("c", c)
        x = _decode(_widen(a)[..., :, None, :])  # [..., row, -, k]
        y = _decode(_widen(b).swapaxes(-1, -2)[..., None, :, :])  # [..., -, column, k]
        products = _multiply(x, y)  # [..., row, column, k]
        acc = np.ascontiguousarray(c).view(np.uint32)
        for first in range(0, 16, self.terms):
            slots = slice(first, first + self.terms)
            acc = self._fused_sum(_concatenate(products.slots(slots), _decode(acc[..., None])))
        return acc.view(np.float32)

    def _fused_sum(self, terms: _Terms) -> NDArray[np.uint32]:
        """The formula at the top of this module, over the last axis."""
        exponent = np.where(terms.significand == 0, self.zero_exponent, terms.exponent)
        largest = exponent.max(axis=-1, keepdims=True)
        # The significand counts units of 2^(exponent - 23), the result units of the quantum.
        shift = terms.exponent - 23 - (largest - self.fraction_bits)
        magnitude = np.abs(terms.significand) << np.maximum(shift, 0)
        magnitude >>= np.minimum(np.maximum(-shift, 0), 63)
        total = (np.sign(terms.significand) * magnitude).sum(axis=-1)
        finite = _round_toward_zero(total, largest[..., 0] - self.fraction_bits)
        with np.errstate(invalid="ignore"):
            special = terms.special.sum(axis=-1)
        bits = np.where(special == 0, finite, special).astype(np.float32).view(np.uint32)
        return np.where(np.isnan(special), FP32_NAN, bits)


class _Terms(NamedTuple):
    """Numbers ``significand * 2 ** (exponent - 23)``; ``special`` is inf, nan or, for those, 0."""

    significand: NDArray[np.int64]
    exponent: NDArray[np.int64]
    special: NDArray[np.float64]

    def slots(self, which: slice) -> _Terms:
        significand, exponent, special = self
        return _Terms(significand[..., which], exponent[..., which], special[..., which])


def _widen(bf16: NDArray[np.uint16]) -> NDArray[np.uint32]:
    """BF16 is the upper half of FP32."""
    return bf16.astype(np.uint32) << np.uint32(16)


def _decode(bits: NDArray[np.uint32]) -> _Terms:
    """FP32, or BF16 in the upper half; subnormals and zeros with exponent -126."""
    biased = (bits >> 23 & 0xFF).astype(np.int64)
    fraction = (bits & 0x7FFFFF).astype(np.int64)
    magnitude = np.where(biased == 0, fraction, fraction + (1 << 23))
    with np.errstate(invalid="ignore"):  # a signalling NaN
        value = bits.view(np.float32).astype(np.float64)
    return _Terms(
        np.where(bits >> 31 == 1, -magnitude, magnitude),
        np.maximum(biased, 1) - 127,
        np.where(biased == 255, value, 0.0),
    )


def _multiply(x: _Terms, y: _Terms) -> _Terms:
    """Products, exact: the significand of a BF16 ends in 16 zeros, so that of a product in 9."""
    significand = (x.significand >> 16) * (y.significand >> 16) << 9
    # IEEE's product where a factor is special, with each finite factor standing for its sign.
    factor_x = np.where(x.special == 0, np.sign(x.significand), x.special)
    factor_y = np.where(y.special == 0, np.sign(y.significand), y.special)
    with np.errstate(invalid="ignore"):
        product = factor_x * factor_y
    special = np.where(np.isfinite(product), 0.0, product)
    return _Terms(significand, x.exponent + y.exponent, special)


def _concatenate(products: _Terms, acc: _Terms) -> _Terms:
    batch = np.broadcast_shapes(products.exponent.shape[:-1], acc.exponent.shape[:-1])

    def join(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([np.broadcast_to(z, (*batch, z.shape[-1])) for z in (x, y)], axis=-1)

    return _Terms(
        join(products.significand, acc.significand),
        join(products.exponent, acc.exponent),
        join(products.special, acc.special),
    )


def _round_toward_zero(total: NDArray[np.int64], quantum: NDArray[np.int64]) -> NDArray[np.float32]:
    """``total * 2 ** quantum`` to FP32, for totals that a float64 holds exactly (below 2**53)."""
    magnitude = np.abs(total)
    leading = np.frexp(magnitude.astype(np.float64))[1].astype(np.int64) - 1
    unit = np.maximum(quantum + leading - 23, -149)
    drop = unit - quantum
    kept = magnitude >> np.maximum(drop, 0) << np.maximum(-drop, 0)
    exact: NDArray[np.float64] = np.ldexp((np.sign(total) * kept).astype(np.float64), unit)
    with np.errstate(over="ignore"):
        return exact.astype(np.float32)


def check_operand(name: str, operand: NDArray[Any]) -> None:
    """Refuses a dtype or a fragment shape that ``mma`` would misread; ``name`` is a, b or c."""
    dtype, shape = _OPERANDS[name]
    if operand.dtype != dtype or operand.shape[-2:] != shape:
        raise ValueError(
            f"{name} should be {dtype} [..., {shape[0]}, {shape[1]}], "
            f"not {operand.dtype} {list(operand.shape)}"
        )


AMPERE = TensorCore(
    name="ampere",
    fraction_bits=24,
    terms=8,
    zero_exponent=-132,
    evidence=MappingProxyType({"8.0": "published", "8.6": "published", "8.9": "published"}),
)
HOPPER = TensorCore(
    name="hopper",
    fraction_bits=25,
    terms=16,
    zero_exponent=-133,
    evidence=MappingProxyType(
        {
            "9.0": "measured",
            "10.0": "published",
            "10.3": "published",
            "12.0": "published",
            "12.1": "published",
        }
    ),
)
_BY_CAPABILITY = {cc: model for model in (AMPERE, HOPPER) for cc in model.evidence}


def model_for(cc: str) -> TensorCore:
    """The tensor core of a compute capability such as ``"9.0"``.

    Raises:
        CannotRun: if there is no model of it, so that nothing can be predicted there.
    """
    try:
        return _BY_CAPABILITY[cc]
    except KeyError:
        known = ", ".join(_BY_CAPABILITY)
        raise CannotRun(
            f"no tensor core model for compute capability {cc!r}; known: {known}"
        ) from None


def evidence(cc: str) -> Evidence:
    """Whether silicon of this compute capability was measured here, or the model is published."""
    return model_for(cc).evidence[cc]
