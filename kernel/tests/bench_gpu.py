"""How fast one process sees the kernel run on a GPU. Never asserted: ``pytest kernel/tests/bench_gpu.py``.

Replays of a CUDA graph of launches over rotating buffers, by CUDA events; ``--benchmark-json FILE`` keeps
every one. Whether a number may be believed is the business of ``lanecheck bench``.
"""

from __future__ import annotations

import pytest
import torch
from on_gpu import BF16, reals

from lanecheck.bench.cuda_rig import METHODS
from lanecheck.bench.rig import COLD_CHAIN
from lanecheck.bench.timing import CudaGraphClock, copies, event_timer
from packed_gemv import ops

SHAPES = [(1, 1024, 1024), (8, 4096, 4096), (1, 28672, 4096)]  # small, medium, large of gate.yaml


@pytest.mark.benchmark(timer=event_timer)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_cold_chain(benchmark, cuda, m, n, k) -> None:
    """A replay of the graph, which every round waits for."""
    size, gpu = 2 * (n * k + m * k + m * n), torch.cuda.get_device_properties("cuda")

    def one_copy():
        x, weight = reals(m, k), ops.prepare(reals(n, k))
        y = torch.empty(m, n, dtype=BF16, device="cuda")
        return lambda stream: ops.gemv(x, weight, out=y)

    clock = CudaGraphClock()
    chain = clock.chain([one_copy() for _ in range(copies(size, gpu.L2_cache_size))])
    with torch.cuda.stream(clock.stream):  # where the timer's events are recorded
        benchmark.pedantic(chain.enqueue, rounds=30, warmup_rounds=3)
    benchmark.extra_info.update(
        gpu=gpu.name, method=METHODS[COLD_CHAIN], launches=chain.launches, bytes=size
    )
    if benchmark.enabled:
        seconds = benchmark.stats.stats.median / chain.launches
        benchmark.extra_info.update(us=round(1e6 * seconds, 3), gbps=round(size / seconds / 1e9))
