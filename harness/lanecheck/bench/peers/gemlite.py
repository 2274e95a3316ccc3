"""gemlite's Triton kernels with 16-bit weights: the fastest of its families, each as it tunes itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

from lanecheck.bench.peers.peer import installed, on_gpu
from lanecheck.bench.peers.product import Copies, Multiply, Operands, Unavailable
from lanecheck.bench.peers.tuning import Variant, fastest

K_MULTIPLE = 32
GEMV_TOKENS = 4
"""Up to which its rules pick a GEMV for packed weights; for 16-bit ones they stop at 2."""
SAMPLING_MS = 10.0
"""Milliseconds in which a choice is timed. In Triton's own 125 its 28 choices took 3.7 s a shape."""


def linear(copies: Copies) -> Sequence[Multiply]:
    """The kernels that ``GemLiteLinear`` chooses from for 16-bit weights, on W [N, K] as it is."""
    core = installed("gemlite.core", "gemlite", "gemlite")
    on_gpu(copies)
    if copies.k % K_MULTIPLE:
        raise Unavailable(f"it needs K to be a multiple of {K_MULTIPLE}, not {copies.k}")
    bf16 = core.DType.BF16
    layer = core.GemLiteLinear(
        W_nbits=16,
        # Its tiles are no deeper than a group. Without a size, that is one element, and its GEMV walks K
        # one by one. A power of two, as tiles must be, that is no less than K leaves them as they are.
        group_size=1 << (copies.k - 1).bit_length(),
        in_features=copies.k,
        out_features=copies.n,
        input_dtype=bf16,
        output_dtype=bf16,
    )
    layer.pack(copies.product.w, scales=None, zeros=None)
    # Its other two GEMVs are for packed weights: they add up parts of K by atomics, on zeros that another
    # kernel writes first. Tuning each would cost seconds more.
    one = "GEMV_SPLITK" if copies.m <= GEMV_TOKENS else "GEMM"
    variants = [_variant(core, layer, family) for family in (one, "GEMM_SPLITK")]
    triton = installed("triton.testing", "Triton", "triton")
    briefly = partial(triton.do_bench, warmup=SAMPLING_MS / 10, rep=SAMPLING_MS)
    with patch.object(triton.runtime.driver.active, "get_benchmarker", lambda: briefly):
        return fastest(variants, copies)


def _variant(core: Any, layer: Any, family: str) -> Variant:
    """``layer.forward_manual`` of that family, with a copy's W in place of the layer's: each layer holds
    tensors of metadata on the device, too many for thousands of copies."""
    _, *others = layer.get_tensor_args()
    meta = layer.get_meta_args()

    def multiply(copy: Operands) -> Any:
        index = core.GEMLITE_MATMUL_TYPES_MAPPING[family]
        return core.forward_functional(copy.x, None, [copy.w.t(), *others], meta, index)

    return multiply
