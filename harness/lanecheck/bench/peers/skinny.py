"""A Triton product for few tokens, tuned over a handful of block sizes; its kernels are beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from lanecheck.bench.peers.peer import installed, on_gpu
from lanecheck.bench.peers.product import Copies, Multiply, Operands, Unavailable
from lanecheck.bench.peers.tuning import Variant, fastest

TOKENS = 64

Blocks = tuple[int, int, int, int]
"""Rows of W a CTA, their columns a step, warps, stages of the pipeline."""

ONE_TOKEN: tuple[Blocks, ...] = (
    *((1, 1024, 4, 1), (1, 1024, 8, 2), (1, 2048, 4, 2), (1, 2048, 8, 2)),
    *((2, 512, 8, 1), (2, 1024, 4, 4), (2, 2048, 4, 1), (2, 4096, 8, 1)),
    *((4, 256, 8, 2), (4, 512, 4, 1), (4, 512, 4, 3), (4, 1024, 4, 2), (4, 1024, 8, 3)),
    *((4, 4096, 4, 1), (8, 512, 4, 4), (8, 1024, 4, 2), (8, 1024, 8, 1)),
    *((16, 256, 4, 2), (16, 256, 4, 4), (16, 512, 8, 2)),
)
MORE_TOKENS: tuple[Blocks, ...] = (
    *((16, 256, 4, 4), (16, 512, 4, 3), (32, 128, 4, 5), (32, 256, 4, 4)),
    *((64, 64, 4, 6), (64, 128, 4, 4), (128, 64, 8, 4)),
)


def autotuned(copies: Copies) -> Sequence[Multiply]:
    """One token by a reduction, up to :data:`TOKENS` on the tensor cores; without split-K."""
    installed("triton", "Triton", "triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        on_gpu(copies)
    if copies.m > TOKENS:
        raise Unavailable(f"it is written for 1 to {TOKENS} tokens, not {copies.m}")
    blocks = ONE_TOKEN if copies.m == 1 else MORE_TOKENS
    return fastest([variant(each) for each in blocks], copies)


def variant(blocks: Blocks) -> Variant:
    """The product with these block sizes."""
    from lanecheck.bench.peers import skinny_kernels

    rows, columns, warps, stages = blocks
    tuned = {"ROWS": rows, "COLUMNS": columns, "STAGES": stages, "num_warps": warps}

    def multiply(copy: Operands) -> Any:
        (m, k), n = copy.x.shape, copy.w.shape[0]
        grid = (-(-n // rows),)
        if m == 1:
            skinny_kernels.one_token[grid](copy.x, copy.w, copy.out, n, k, **tuned)
        else:
            tokens = max(16, 1 << (m - 1).bit_length())
            skinny_kernels.more_tokens[grid](
                copy.x, copy.w, copy.out, m, n, k, TOKENS=tokens, **tuned
            )
        return copy.out

    return multiply
