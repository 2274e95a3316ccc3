"""flashinfer's ``tinygemm_bf16``: bulk copies into shared memory, for few tokens on Hopper and newer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from lanecheck.bench.peers.peer import installed, on_gpu
from lanecheck.bench.peers.product import Copies, Multiply, Operands, Unavailable
from lanecheck.bench.peers.tuning import fastest

CAPABILITY = (9, 0)
SOUND = (0, 6, 14)
"""Before this version its spinning warps may wait for a barrier of an earlier stage, where K > 4096:
https://github.com/flashinfer-ai/flashinfer/pull/3630. On an H200, 0.6.7 did so over N = 2048, K = 8192."""


def small(copies: Copies) -> Sequence[Multiply]:
    """It over each copy, without a bias or with one of zeros that is made beforehand: which of them has a
    kernel of its own for a shape, depends on the GPU and on flashinfer's version."""
    flashinfer = installed("flashinfer.gemm", "flashinfer", "flashinfer-python")
    on_gpu(copies)
    import torch

    version = installed("flashinfer", "flashinfer", "flashinfer-python").__version__
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < SOUND:
        least = ".".join(map(str, SOUND))
        raise Unavailable(
            f"of flashinfer {version}, it may wait for ever: pip install 'flashinfer-python>={least}'"
        )
    capability = torch.cuda.get_device_capability(copies.device)
    if capability < CAPABILITY:
        needed, found = (".".join(map(str, each)) for each in (CAPABILITY, capability))
        raise Unavailable(f"it needs compute capability {needed}, this GPU has {found}")

    def multiply(copy: Operands, bias: Any) -> Any:
        flashinfer.tinygemm_bf16(copy.x, copy.w, copy.out, bias)
        return copy.out

    zeros = torch.zeros(copies.n, dtype=torch.bfloat16, device=copies.device)
    return fastest([partial(multiply, bias=bias) for bias in (zeros, None)], copies)
