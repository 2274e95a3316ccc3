"""The current CUDA device, as torch and the driver describe it."""

from __future__ import annotations

from functools import cache
from typing import Any

from lanecheck.bench import telemetry
from lanecheck.bench.machine import Environment
from lanecheck.errors import CannotRun

_PIECE = 2**24
"""Elements of W that are widened at a time."""


def cuda_torch() -> Any:
    """Torch, with a CUDA device.

    Raises:
        CannotRun: if this machine lacks either.
    """
    try:
        import torch
    except ImportError:
        raise CannotRun("timing a GPU needs torch with CUDA: pip install torch") from None
    if not torch.cuda.is_available():
        raise CannotRun("timing a GPU needs torch with CUDA, and this torch sees no GPU")
    return torch


def float64_product(x: Any, w: Any) -> Any:
    """``x[M, K] · w[N, K]ᵀ`` of torch tensors in float64 on their device, piece by piece: W is never all
    widened at once."""
    import torch

    wide, pieces = x.double(), w.split(max(1, _PIECE // w.shape[1]))
    return torch.cat([wide @ piece.double().t() for piece in pieces], dim=1)


@cache
def described() -> tuple[Environment, str]:
    """The current device and its UUID.

    Raises:
        CannotRun: as :func:`cuda_torch`.
    """
    torch = cuda_torch()
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    driver, memory_clock = telemetry.driver_and_memory_clock(str(gpu.uuid))
    environment = Environment(
        gpu=gpu.name,
        capability=f"{gpu.major}.{gpu.minor}",
        sms=gpu.multi_processor_count,
        l2_bytes=gpu.L2_cache_size,
        memory_bytes=gpu.total_memory,
        memory_clock_mhz=memory_clock,
        driver=driver,
        torch=str(torch.__version__),
        cuda=str(torch.version.cuda),
    )
    return environment, str(gpu.uuid)
