"""The kernels of ``skinny``; importing them needs Triton.

Both compute ``y = x · Wᵀ``, all three contiguous and of one float type, for any N and K: each CTA owns
``ROWS`` rows of W [N, K] and walks all of K, ``COLUMNS`` at a time with ``STAGES`` steps in flight, summing
in FP32. W passes through the L2 once and is the first to leave it; x stays.

The parameters have no types: Triton would look them up inside the kernel.
"""

from __future__ import annotations

import triton  # type: ignore[import-not-found,import-untyped]
import triton.language as tl  # type: ignore[import-not-found,import-untyped]


@triton.jit
def one_token(  # type: ignore[no-untyped-def]
    x,
    w,
    y,
    n,
    k,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """x [1, K], y [1, N]: products lane by lane, added up across the CTA once at the end."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in tl.range(0, k, COLUMNS, num_stages=STAGES):
        columns = start + tl.arange(0, COLUMNS)
        values = tl.load(x + columns, mask=columns < k, other=0.0)
        weights = tl.load(
            w + rows[:, None].to(tl.int64) * k + columns[None, :],
            mask=(rows[:, None] < n) & (columns[None, :] < k),
            other=0.0,
            eviction_policy="evict_first",
        )
        total += weights.to(tl.float32) * values.to(tl.float32)[None, :]
    tl.store(y + rows, tl.sum(total, axis=1).to(y.dtype.element_ty), mask=rows < n)


@triton.jit
def more_tokens(  # type: ignore[no-untyped-def]
    x,
    w,
    y,
    m,
    n,
    k,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """x [M, K], y [M, N] with M ≤ TOKENS: yᵀ = W · xᵀ on the tensor cores, so that the long side of the
    product fills their rows."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tokens = tl.arange(0, TOKENS)
    total = tl.zeros((ROWS, TOKENS), tl.float32)
    for start in tl.range(0, k, COLUMNS, num_stages=STAGES):
        columns = start + tl.arange(0, COLUMNS)
        weights = tl.load(
            w + rows[:, None].to(tl.int64) * k + columns[None, :],
            mask=(rows[:, None] < n) & (columns[None, :] < k),
            other=0.0,
            eviction_policy="evict_first",
        )
        values = tl.load(
            x + tokens[None, :] * k + columns[:, None],
            mask=(tokens[None, :] < m) & (columns[:, None] < k),
            other=0.0,
        )
        total = tl.dot(weights, values, total)
    tl.store(
        y + tokens[None, :] * n + rows[:, None],
        total.to(y.dtype.element_ty),
        mask=(tokens[None, :] < m) & (rows[:, None] < n),
    )
