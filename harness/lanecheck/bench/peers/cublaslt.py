"""cuBLASLt through nvmath-python: the fastest of the algorithms that its heuristics propose."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from lanecheck.bench.peers.peer import installed, on_gpu
from lanecheck.bench.peers.product import Copies, Multiply, Operands
from lanecheck.bench.peers.tuning import Variant, fastest

ALGORITHMS = 16
WORKSPACE = 256 << 20
"""Bytes that a launch may use to split K."""


def autotuned(copies: Copies) -> Sequence[Multiply]:
    """``yᵀ = W · xᵀ`` in place, so that all of the matrices are column-major, as cuBLASLt likes them."""
    nvmath = installed("nvmath.linalg.advanced", "nvmath-python", "'nvmath-python[cu13]'")
    on_gpu(copies)
    plan = _Plan(nvmath, next(iter(copies)))
    return fastest([plan.variant(algorithm) for algorithm in plan.algorithms], copies)


class _Plan:
    """One planned product, launched on operands of the same shape; freed with the last variant."""

    def __init__(self, nvmath: Any, copy: Operands) -> None:
        w, x, out = copy.w, copy.x.t(), copy.out.t()
        options = {"inplace": True, "memory_limit": WORKSPACE}
        self._matmul = nvmath.Matmul(w, x, out, beta=0.0, options=options)
        weakref.finalize(self, self._matmul.free)
        self.algorithms: Sequence[Any] = self._matmul.plan(preferences={"limit": ALGORITHMS})

    def variant(self, algorithm: Any) -> Variant:
        def multiply(copy: Operands) -> Any:
            # All copies are alike: they need no check at each of thousands of launches.
            self._matmul.reset_operands_unchecked(a=copy.w, b=copy.x.t(), c=copy.out.t())
            # A workspace kept between calls would carry an event of one capture into the next.
            self._matmul.execute(algorithm=algorithm, release_workspace=True)
            return copy.out

        return multiply
