"""flashinfer's ``tinygemm_bf16``: bulk copies into shared memory, for few tokens on Hopper and newer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lanecheck.bench.peers.peer import installed, on_gpu
from lanecheck.bench.peers.product import Copies, Multiply, Operands, Unavailable

CAPABILITY = (9, 0)
N_MULTIPLE, K_MULTIPLE = 16, 64


def small(copies: Copies) -> Sequence[Multiply]:
    """It over each copy, with a bias of zeros made beforehand, which it would else make at each launch."""
    flashinfer = installed("flashinfer.gemm", "flashinfer", "flashinfer-python")
    on_gpu(copies)
    if copies.n % N_MULTIPLE or copies.k % K_MULTIPLE:
        raise Unavailable(
            f"it needs N to be a multiple of {N_MULTIPLE} and K of {K_MULTIPLE}, "
            f"not {copies.n} and {copies.k}"
        )
    import torch

    capability = torch.cuda.get_device_capability(copies.device)
    if capability < CAPABILITY:
        needed, found = (".".join(map(str, each)) for each in (CAPABILITY, capability))
        raise Unavailable(f"it needs compute capability {needed}, this GPU has {found}")

    def multiply(copy: Operands, bias: Any) -> Multiply:
        def call() -> Any:
            flashinfer.tinygemm_bf16(copy.x, copy.w, copy.out, bias)
            return copy.out

        return call

    zeros = torch.zeros(copies.n, dtype=torch.bfloat16, device=copies.device)
    return [multiply(copy, zeros) for copy in copies]
