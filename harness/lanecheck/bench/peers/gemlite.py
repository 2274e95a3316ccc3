"""gemlite's Triton kernels with 16-bit weights, which tune themselves at their first call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from lanecheck.bench.peers.peer import Multiply, installed, on_gpu
from lanecheck.bench.peers.product import Copies, Operands, Unavailable

K_MULTIPLE = 32


def linear(copies: Copies) -> Sequence[Multiply]:
    """``GemLiteLinear`` over each copy; it takes W [N, K] as it is and keeps no other."""
    gemlite = installed("gemlite", "gemlite", "gemlite")
    on_gpu(copies)
    if copies.k % K_MULTIPLE:
        raise Unavailable(f"it needs K to be a multiple of {K_MULTIPLE}, not {copies.k}")
    bf16 = gemlite.DType.BF16

    def layer(copy: Operands) -> Multiply:
        layer = gemlite.GemLiteLinear(
            W_nbits=16,
            group_size=None,
            in_features=copies.k,
            out_features=copies.n,
            input_dtype=bf16,
            output_dtype=bf16,
        )
        layer.pack(copy.w, scales=None, zeros=None)
        return partial(layer.forward, copy.x)

    return [layer(copy) for copy in copies]
