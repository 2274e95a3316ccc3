"""The executable specification: the packed GEMV, lane by lane, with the arithmetic as a parameter.

Written from the layout's definition, not from the CUDA source. Every array below keeps the lane as an
axis until the tensor core takes its fragments, so what a lane loads, holds and stores can be read off.
With :class:`Float64` it shows that the walk is right; with a bit-exact model of a tensor core, for
which any object with the two methods of :class:`Arithmetic` serves, it predicts the kernel's output
bit for bit.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from packed_gemv import fragments as f
from packed_gemv.config import Config
from packed_gemv.layout import PackedWeight, blocks

_Array = npt.NDArray[Any]


class Arithmetic(Protocol):
    """How the tensor core and the adders after it compute."""

    def chains(self, a: _Array, b: _Array, slices: list[range]) -> _Array:
        """Run mma chains. ``a [RB, L, 16, 16]`` and ``b [NB, L, 16, 8]`` hold BF16 bits (uint16);
        chain p of tile (rb, nb) starts from +0 and accumulates mma ``l`` of ``slices[p]`` in order.

        Returns:
            ``[P, RB, NB, 16, 8]`` accumulators.
        """

    def exact(self) -> bool:
        """Whether results are real numbers (float64) rather than FP32 with the kernel's rounding."""


class Float64:
    """Real arithmetic, up to float64's rounding."""

    def chains(self, a: _Array, b: _Array, slices: list[range]) -> _Array:
        wide_a, wide_b = bf16_to_float64(a), bf16_to_float64(b)
        tiles = [
            np.einsum("rlis,clsj->rcij", wide_a[:, p.start : p.stop], wide_b[:, p.start : p.stop])
            for p in slices
        ]
        return np.stack(tiles)

    def exact(self) -> bool:
        return True


@dataclass(frozen=True)
class Problem:
    """One call: ``y = x · Wᵀ (+ bias)``, or two of them over the same x.

    Attributes:
        x: ``[M, K]`` BF16 bits (uint16), any strides.
        weights: one or two packed weights of BF16 bits.
        bias: one ``[N]`` array of BF16 bits, or None, per weight.
        fused: two weights: ``silu(x · W0ᵀ) · (x · W1ᵀ)`` as one output.
        out_fp32: FP32 output, otherwise BF16.

    Raises:
        ValueError: if the operands do not belong together.
    """

    x: _Array
    weights: tuple[PackedWeight, ...]
    bias: tuple[_Array | None, ...]
    fused: bool = False
    out_fp32: bool = False

    def __post_init__(self) -> None:
        if len(self.bias) != len(self.weights) or len(self.weights) not in (1, 2):
            raise ValueError(f"{len(self.weights)} weights and {len(self.bias)} biases")
        if any((w.n, w.k) != (self.weights[0].n, self.x.shape[1]) for w in self.weights):
            raise ValueError(
                f"x has K = {self.x.shape[1]}; the weights must have it too, and one N"
            )
        if self.fused and len(self.weights) != 2:
            raise ValueError("fused takes two weights")


def emulate(problem: Problem, config: Config, arithmetic: Arithmetic) -> list[_Array]:
    """What the kernel writes.

    Args:
        problem: the operands. config: how the kernel walks; ``config.nb`` must fit M.
        arithmetic: :class:`Float64` or a tensor-core model.

    Returns:
        One ``[M, N]`` array per output: float64 under :class:`Float64`; otherwise bits, uint32 for
        FP32 and uint16 for BF16 output.

    Raises:
        ValueError: if ``config`` does not fit the problem.
    """
    outputs = stages(problem, config, arithmetic).outputs
    return outputs if arithmetic.exact() else stored(outputs, problem.out_fp32)


@dataclass(frozen=True)
class Stages:
    """The way of every sum from the accumulators to the output, one array a weight.

    Attributes:
        warps: ``[S * NW, M, N]``, see :func:`warp_sums`. slices: ``[S, M, N]``, the warps of each added.
        totals: ``[M, N]``, the slices added. biased: with the bias, if there is one.
        outputs: ``[M, N]`` before they are rounded to the output's type; one if fused.
    """

    warps: list[_Array]
    slices: list[_Array]
    totals: list[_Array]
    biased: list[_Array]
    outputs: list[_Array]


def stages(problem: Problem, config: Config, arithmetic: Arithmetic) -> Stages:
    """What the kernel computes on its way to :func:`emulate`; see there for what it raises."""
    warps = warp_sums(problem, config, arithmetic)
    slices = [_over_warps(each, config) for each in warps]
    totals = [_in_order(each) for each in slices]
    biased = [_with_bias(each, bias, arithmetic) for each, bias in zip(totals, problem.bias)]
    outputs = fused(biased, arithmetic.exact()) if problem.fused else biased
    return Stages(warps, slices, totals, biased, outputs)


def fused(biased: list[_Array], exact: bool = False) -> list[_Array]:
    """``silu`` of the first sums times the second."""
    with np.errstate(all="ignore"):
        return [_silu(biased[0], exact) * biased[1]]


def stored(outputs: list[_Array], out_fp32: bool) -> list[_Array]:
    """The bits of FP32 outputs as they are written."""
    return [fp32_bits(y) if out_fp32 else bf16_bits(y) for y in outputs]


def warp_sums(problem: Problem, config: Config, arithmetic: Arithmetic) -> list[_Array]:
    """What each warp's accumulators hold when it has walked its K blocks, before any reduction.

    Returns:
        One ``[S * NW, M, N]`` array per weight, slices of K outermost, in the order of addition.

    Raises:
        ValueError: if ``config`` does not fit the problem.
    """
    _require_fit(problem, config)
    m, n = problem.x.shape[0], problem.weights[0].n
    b = f.gather_b(_token_lanes(problem.x, problem.weights[0], config.nb))
    steps = [range(2 * p.start, 2 * p.stop) for p in config.slices(problem.weights[0].k)]
    sums = []
    for weight in problem.weights:
        tiles = arithmetic.chains(f.gather_a(_weight_lanes(weight)), b, steps)  # [P, RB, NB, 16, 8]
        rows = tiles.transpose(0, 2, 4, 1, 3).reshape(len(steps), config.nb * f.TOKENS, -1)
        sums.append(rows[:, :m, :n])
    return sums


@dataclass(frozen=True)
class WarpWalk:
    """The L mma of one warp, lane by lane, in the order in which it issues them: K block by K block, in
    each token block by token block, in each weight by weight, in each step 0 and step 1.

    Attributes:
        place: ``[L, 4]``, the K block, token block, weight and step of each.
        a: ``[L, 32, 8]`` BF16 bits. b: ``[L, 32, 4]``, likewise.
        c: ``[L, 32, 4]`` accumulators before. d: and after.
    """

    place: npt.NDArray[np.int64]
    a: _Array
    b: _Array
    c: _Array
    d: _Array


def warp_walk(
    problem: Problem, config: Config, arithmetic: Arithmetic, row_block: int, part: int
) -> WarpWalk:
    """What the registers of one warp hold at each of its mma.

    Args:
        row_block: which 16 rows. part: which of the ``S * NW`` runs of K blocks, as in :func:`warp_sums`.

    Raises:
        ValueError: if ``config`` does not fit the problem.
    """
    _require_fit(problem, config)
    run = config.slices(problem.weights[0].k)[part]
    mats = range(config.mats)
    order = itertools.product(run, range(config.nb), mats, (0, 1))
    place = np.array(list(order), np.int64).reshape(-1, 4)
    kb, nb, mat, step = place.T
    a = np.stack([_weight_lanes(weight)[row_block] for weight in problem.weights])
    b = _token_lanes(problem.x, problem.weights[0], config.nb)
    first, last = 2 * run.start, 2 * run.stop
    so_far = [range(first, end) for end in range(first, last + 1)]
    tiles = [arithmetic.chains(f.gather_a(a[i])[None], f.gather_b(b), so_far) for i in mats]
    sums = np.stack(tiles)[:, :, 0][
        ..., f.D_ROW, f.D_COLUMN
    ]  # [MATS, 2 KB of the run + 1, NB, 32, 4]
    at = 2 * kb + step
    before, after = sums[mat, at - first, nb], sums[mat, at - first + 1, nb]
    return WarpWalk(place, a[mat, at], b[nb, at], before, after)


def _require_fit(problem: Problem, config: Config) -> None:
    m = problem.x.shape[0]
    if config.nb != blocks(m, f.TOKENS) or config.dual != (len(problem.weights) == 2):
        raise ValueError(f"{config} does not fit {m} tokens and {len(problem.weights)} weight(s)")


def _weight_lanes(weight: PackedWeight) -> _Array:
    """A ``[RB, 2 KB, 32, 8]``: what the warp's 16-byte loads put into its registers, mma by mma."""
    return np.asarray(weight.data).reshape(weight.row_blocks, 2 * weight.k_blocks, f.LANES, 8)


def _token_lanes(x: _Array, weight: PackedWeight, nb: int) -> _Array:
    """B ``[NB, 2 KB, 32, 4]``: lane (g, t) loads x[8 nb + g][32 kb + 8t … + 7], clamped to the last
    token and 0 beyond K; mma step s takes four of the eight values."""
    m, k = x.shape
    padded = np.zeros((m, weight.k_blocks * f.K_BLOCK), x.dtype)
    padded[:, :k] = x
    tokens = np.minimum(np.arange(nb)[:, None] * f.TOKENS + f.G, m - 1)  # [NB, lane]
    octets = padded.reshape(m, weight.k_blocks, 4, 8)
    loads = octets[tokens[:, None, :], np.arange(weight.k_blocks)[None, :, None], f.T]
    halves = loads.reshape(nb, weight.k_blocks, f.LANES, 2, 4).swapaxes(2, 3)
    return halves.reshape(nb, 2 * weight.k_blocks, f.LANES, 4)


def _over_warps(tiles: _Array, config: Config) -> _Array:
    """Shared-memory reduction: ``[S * NW, …]`` to ``[S, …]``, warps added in order."""
    by_warp = tiles.reshape(config.s, config.nw, *tiles.shape[1:])
    return np.stack([_in_order(by_warp[s]) for s in range(config.s)])


def _in_order(terms: _Array) -> _Array:
    with np.errstate(all="ignore"):
        total = terms[0]
        for term in terms[1:]:
            total = total + term
    return total


def _with_bias(y: _Array, bias: _Array | None, arithmetic: Arithmetic) -> _Array:
    if bias is None:
        return y
    with np.errstate(all="ignore"):
        return y + (bf16_to_float64(bias) if arithmetic.exact() else bf16_to_fp32(bias))


def _silu(v: _Array, exact: bool) -> _Array:
    with np.errstate(all="ignore"):
        if exact:
            return v / (1.0 + np.exp(-v))
        return v / (np.float32(1) + exp_reproducible(-v))


def exp_reproducible(x: _Array) -> _Array:
    """exp(x) in FP32 from correctly rounded additions and multiplications, as the kernel defines it.

    x = n ln 2 + r, a degree-7 Taylor polynomial of r by Horner's rule, times 2^n in two steps.
    """
    one = np.float32(1)
    with np.errstate(all="ignore"):
        inside = np.where((x <= 128) & (x >= -160), x, np.float32(0))
        shift = np.float32(1.5 * 2**23)
        n = (inside * np.float32(1.44269504) + shift) - shift
        r = (inside - n * np.float32(0.693145751953125)) - n * np.float32(1.42860677e-6)
        total = np.full_like(r, one / np.float32(5040))
        for divisor in (720, 120, 24, 6, 2, 1, 1):
            total = total * r + one / np.float32(divisor)
        exponent = n.astype(np.int32)
        half = np.trunc(exponent / 2).astype(np.int32)
        y = total * np.ldexp(one, half) * np.ldexp(one, exponent - half)
        y = np.where(x > 128, np.float32(np.inf), np.where(x < -160, np.float32(0), y))
        return np.where(np.isnan(x), x, y).astype(np.float32)


def bf16_to_fp32(bits: _Array) -> npt.NDArray[np.float32]:
    """The value of BF16 bits (uint16), exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bf16_to_float64(bits: _Array) -> npt.NDArray[np.float64]:
    """The value of BF16 bits (uint16), exactly."""
    with np.errstate(invalid="ignore"):  # a signalling NaN turns quiet
        return bf16_to_fp32(bits).astype(np.float64)


def fp32_bits(y: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    """Bits of FP32 values, every NaN as 0x7FFFFFFF."""
    y = np.ascontiguousarray(y)
    return np.where(np.isnan(y), np.uint32(0x7FFFFFFF), y.view(np.uint32))


def bf16_bits(y: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """FP32 rounded to BF16 bits, to nearest with ties to even, every NaN as 0x7FFF."""
    bits = np.ascontiguousarray(y).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(y), 0x7FFF, rounded).astype(np.uint16)
