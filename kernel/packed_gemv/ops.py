"""The torch front: :func:`prepare` a weight once, then :func:`gemv` or :func:`gemv_dual`.

Both call one operator, ``packed_gemv::gemv``, which writes into tensors it is given. On a GPU it is
the kernel; on a CPU it unpacks the weight and multiplies in FP32, which is right up to rounding:
bits are promised on a GPU alone. Under ``torch.compile`` it is opaque. There is no gradient.

The front explains what is wrong with an argument (:mod:`packed_gemv.checks`); the operator itself only
makes sure that no launch leaves the memory of its tensors. An ``x`` is never copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

from packed_gemv.build import LIBRARY_VARIABLE, default_library
from packed_gemv.checks import (
    as_rows,
    check_biases,
    check_outs,
    check_weights,
    count_tokens,
    refuse_grad,
    refuse_overlap,
    require_bf16,
)
from packed_gemv.config import MAX_TOKENS, Config, for_tokens, max_warps, select
from packed_gemv.fragments import TOKENS
from packed_gemv.layout import PackedWeight, unpack

_TOKEN_BLOCKS = range(1, MAX_TOKENS // TOKENS + 1)
# (NW, U, S), each after the most tokens that it is for.
_Walks = tuple[tuple[int, tuple[int, int, int]], ...]


def prepare(weight: Tensor) -> PackedWeight:
    """Pack a weight for :func:`gemv`, on the device where it lies.

    Args:
        weight: ``[N, K]`` BF16 with N, K >= 1, any strides. It is copied.

    Raises:
        TypeError: if ``weight`` is not a BF16 tensor.
        ValueError: if ``weight`` is not ``[N, K]`` or is empty.
    """
    require_bf16("weight", weight)
    return PackedWeight.of(weight.detach())


def gemv(
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None = None,
    *,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    config: Config | None = None,
) -> Tensor:
    """``x · Wᵀ + bias``, summed in FP32 and rounded once.

    Args:
        x: BF16 ``[..., K]`` of at most 64 tokens in all. Its last dimension is contiguous and its
            others make one row stride of at least K, so that it need not be copied.
        weight: what :func:`prepare` returned, on the device of ``x``.
        bias: BF16 ``[N]``, contiguous, on the device of ``x``.
        out: where to write, ``[..., N]`` BF16 or FP32, with a row stride of at least N. It must not
            overlap an input.
        out_dtype: ``torch.bfloat16`` or ``torch.float32``; by default that of ``out``, else BF16.
        config: how the kernel walks, instead of the table tuned on an H200; ``nb`` is that of ``x``,
            and U no more than is compiled for it (:func:`~packed_gemv.config.for_tokens`). On a CPU
            it is checked and otherwise ignored. For bits that do not depend on M, give
            :func:`select(…, batch_invariant=True) <packed_gemv.config.select>`, for whichever M.

    Returns:
        ``[..., N]``: ``out`` if given.

    Raises:
        TypeError: for a dtype, or an argument that is no tensor or packed weight.
        ValueError: for a shape, stride, device or overlap, or a ``config`` no kernel was built for.
        RuntimeError: if an input requires grad, or the CUDA library is missing or fails.
    """
    outs = {} if out is None else {"out": out}
    (y,) = _run(x, {"weight": weight}, {"bias": bias}, False, outs, out_dtype, config)
    return y


def gemv_dual(
    x: Tensor,
    gate: PackedWeight,
    up: PackedWeight,
    *,
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    fused: bool = True,
    out: Tensor | tuple[Tensor, Tensor] | None = None,
    out_dtype: torch.dtype | None = None,
    config: Config | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Two weights of one shape over the same ``x``, in one launch that reads ``x`` once.

    Args:
        gate, up: what :func:`prepare` returned; the same N and K.
        gate_bias, up_bias: BF16 ``[N]`` each.
        fused: return ``silu(x · gateᵀ + gate_bias) · (x · upᵀ + up_bias)``, rounded once;
            otherwise the two products.
        out: one tensor if ``fused``, otherwise a pair of the same dtype and row stride.

    Everything else is as for :func:`gemv`.

    Returns:
        ``[..., N]`` if ``fused``, otherwise a pair of them.
    """
    weights = {"gate": gate, "up": up}
    biases = {"gate_bias": gate_bias, "up_bias": up_bias}
    if out is None:
        outs = {}
    elif fused:
        outs = {"out": out}
    elif isinstance(out, (tuple, list)) and len(out) == 2:
        outs = {"out[0]": out[0], "out[1]": out[1]}
    else:
        raise TypeError("out must be a pair of tensors unless fused")
    ys = _run(x, weights, biases, fused, outs, out_dtype, config)
    return ys[0] if fused else ys


@torch.compiler.assume_constant_result
def load_library() -> None:
    """Load the CUDA kernel of the operator; the front does so at its first call on a GPU.

    Raises:
        RuntimeError: if it is not built or does not load; the message says how to build it.
    """
    global _loaded
    if _loaded:
        return
    path = default_library()
    if not path.is_file():
        raise RuntimeError(
            f"the CUDA library of packed_gemv is not at {path}; build it with "
            f"`python -m packed_gemv.build`, or name a built one in {LIBRARY_VARIABLE}"
        )
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise RuntimeError(
            f"{path} does not load under torch {torch.__version__}; it needs a torch with CUDA, "
            f"2.10 or later: {error.__cause__ or error}"
        ) from error
    _loaded = True


# The operator.

_loaded = False
_library = torch.library.Library("packed_gemv", "DEF")
_library.define(
    # w, w2: packed, for the K of x and the N of y. walk: nw, u, s. y2 only for two weights unfused.
    "gemv(Tensor x, Tensor w, Tensor? w2, Tensor? bias, Tensor? bias2, int[3] walk, bool fused, "
    "Tensor(a!) y, Tensor(b!)? y2) -> ()",
    tags=(torch.Tag.needs_exact_strides,),
)


@torch.library.impl(_library, "gemv", "CPU")
def _gemv_cpu(
    x: Tensor,
    w: Tensor,
    w2: Tensor | None,
    bias: Tensor | None,
    bias2: Tensor | None,
    walk: list[int],
    fused: bool,
    y: Tensor,
    y2: Tensor | None,
) -> None:
    k, n = x.shape[1], y.shape[1]
    sums = []
    # Autocast would take the product back to BF16.
    with torch.autocast("cpu", enabled=False):
        for packed, b in ((w, bias), (w2, bias2)):
            if packed is not None:
                total = x.float() @ unpack(packed, n, k).float().T
                sums.append(total if b is None else total + b.float())
    if fused:
        gate, up = sums
        sums = [gate / (1.0 + torch.exp(-gate)) * up]
    y.copy_(sums[0])
    if y2 is not None:
        y2.copy_(sums[1])


@torch.library.register_fake("packed_gemv::gemv", lib=_library)
def _gemv_fake(
    x: Tensor,
    w: Tensor,
    w2: Tensor | None,
    bias: Tensor | None,
    bias2: Tensor | None,
    walk: list[int],
    fused: bool,
    y: Tensor,
    y2: Tensor | None,
) -> None:
    return None


# What the front does.


def _run(
    x: Tensor,
    weights: dict[str, PackedWeight],
    biases: dict[str, Tensor | None],
    fused: bool,
    outs: dict[str, Tensor],
    out_dtype: torch.dtype | None,
    config: Config | None,
) -> tuple[Tensor, ...]:
    """Check everything, allocate outputs unless given, call the operator. Keys: names to blame."""
    require_bf16("x", x)
    check_weights(weights, x)
    n, k = next((weight.n, weight.k) for weight in weights.values())
    check_biases(biases, n, x)
    m = count_tokens(x, k)
    rows = as_rows("x", x, m, k)
    packed = {name: weight.data for name, weight in weights.items()}
    inputs = {"x": rows, **packed, **{name: b for name, b in biases.items() if b is not None}}
    refuse_grad(inputs)
    walk = _walk(m, n, k, len(weights) == 2, config)

    shape = (*x.shape[:-1], n)
    check_outs(outs, shape, out_dtype, x)
    count = 1 if fused else len(weights)
    ys = tuple(outs.values()) or tuple(
        x.new_empty(shape, dtype=out_dtype or torch.bfloat16) for _ in range(count)
    )
    targets = [as_rows(name, y, m, n) for name, y in zip(outs or weights, ys)]
    if m == 0:
        return ys
    if outs:
        refuse_overlap(dict(zip(outs, targets)), inputs)
    if x.is_cuda:
        load_library()
    torch.ops.packed_gemv.gemv(
        rows, *_pair(packed.values()), *_pair(biases.values()), walk, fused, *_pair(targets)
    )
    if outs and not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(ys)  # for tensors that autograd has saved
    return ys


def _walk(m: int, n: int, k: int, dual: bool, config: Config | None) -> list[int]:
    # Comparisons alone, and only where the walk changes: a compiled graph then serves a range of M,
    # and torch.compile's limit of 8 graphs holds all of 1 to 64.
    if config is None:
        walks = _tuned(n, k, dual)
    elif config.dual != dual:
        raise ValueError(f"config.dual is {config.dual}, but this call has {1 + dual} weight(s)")
    else:
        walks = _given(config.nw, config.u, config.s, dual)
        if m > walks[-1][0]:
            for_tokens(config, m)  # raises, and says why
    return next(list(walk) for most, walk in walks if m <= most)


@torch.compiler.assume_constant_result
def _tuned(n: int, k: int, dual: bool) -> _Walks:
    return _tuned_walks(n, k, dual)


@torch.compiler.assume_constant_result
def _given(nw: int, u: int, s: int, dual: bool) -> _Walks:
    return _given_walks(nw, u, s, dual)


@lru_cache(maxsize=4096)
def _tuned_walks(n: int, k: int, dual: bool) -> _Walks:
    return _by_tokens(select(nb * TOKENS, n, k, dual) for nb in _TOKEN_BLOCKS)


@lru_cache(maxsize=4096)
def _given_walks(nw: int, u: int, s: int, dual: bool) -> _Walks:
    config = Config(nw, u, s, dual=dual)
    fitting = [nb for nb in _TOKEN_BLOCKS if nw <= max_warps(nb, config.mats)]
    return _by_tokens(for_tokens(config, nb * TOKENS) for nb in fitting)


def _by_tokens(configs: Iterable[Config]) -> _Walks:
    most = {(config.nw, config.u, config.s): config.nb * TOKENS for config in configs}
    return tuple((tokens, walk) for walk, tokens in most.items())


def _pair(values: Iterable[Tensor | None]) -> tuple[Tensor | None, Tensor | None]:
    first, second, *_ = (*values, None)
    return first, second
