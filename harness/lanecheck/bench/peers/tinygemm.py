"""flashinfer's ``tinygemm_bf16``: bulk copies into shared memory, for few tokens on Hopper and newer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from lanecheck.bench.peers.peer import installed, on_gpu
from lanecheck.bench.peers.product import Copies, Multiply, Operands, Unavailable
from lanecheck.bench.peers.tuning import fastest

CAPABILITY = (9, 0)


def small(copies: Copies) -> Sequence[Multiply]:
    """It over each copy, without a bias or with one of zeros that is made beforehand: until 0.7 it has no
    kernel without, and makes zeros at each launch; since then each has kernels that the other lacks."""
    flashinfer = installed("flashinfer.gemm", "flashinfer", "flashinfer-python")
    on_gpu(copies)
    import torch

    capability = torch.cuda.get_device_capability(copies.device)
    if capability < CAPABILITY:
        needed, found = (".".join(map(str, each)) for each in (CAPABILITY, capability))
        raise Unavailable(f"it needs compute capability {needed}, this GPU has {found}")

    def multiply(copy: Operands, bias: Any) -> Any:
        flashinfer.tinygemm_bf16(copy.x, copy.w, copy.out, bias)
        return copy.out

    zeros = torch.zeros(copies.n, dtype=torch.bfloat16, device=copies.device)
    return fastest([partial(multiply, bias=bias) for bias in (zeros, None)], copies)
