"""What torch itself offers. All of it runs on a CPU as well."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from lanecheck.bench.peers.product import Copies, Multiply


def linear(copies: Copies) -> Sequence[Multiply]:
    """``F.linear``: cuBLAS with its own heuristics, on the weights as models store them, [N, K]."""
    from torch.nn import functional

    return [partial(functional.linear, copy.x, copy.w) for copy in copies]


def pretransposed(copies: Copies) -> Sequence[Multiply]:
    """``torch.mm`` on weights stored [K, N]; each copy of W gives way to its transpose."""
    import torch

    def multiply(x: Any, w: Any, out: Any) -> Any:
        return torch.mm(x, w, out=out)

    return [partial(multiply, copy.x, copy.w.t().contiguous(), copy.out) for copy in copies]


def compiled(copies: Copies) -> Sequence[Multiply]:
    """``F.linear`` through ``torch.compile`` with ``max-autotune``, compiled for this one shape.

    The clock captures the graph, so that mode's own graphs are off. Its first call, which the check of the
    numbers makes, compiles and benchmarks the choices, flushing the L2 between launches: up to a minute a
    shape, less once Triton's cache on disk knows its kernels. What Inductor chose before, on a GPU that may
    have been busy, is not asked. What was compiled for earlier shapes is forgotten first: torch compiles a
    function for a few shapes only, and then quietly does without.
    """
    import torch
    from torch._inductor import list_mode_options
    from torch.nn import functional

    def product(x: Any, w: Any) -> Any:
        return functional.linear(x, w)

    torch.compiler.reset()
    chosen_anew = {"fx_graph_cache": False, "autotune_local_cache": False}
    options = list_mode_options("max-autotune-no-cudagraphs") | chosen_anew
    multiply = torch.compile(product, options=options, dynamic=False, fullgraph=True)
    return [partial(multiply, copy.x, copy.w) for copy in copies]
