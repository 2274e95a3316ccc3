"""How fast the tensor core models are: ``pytest harness/tests/bench_tensorcore.py``. No verdicts.

Every round of a native benchmark computes 2,048 mma; the time of one is in the extra info.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from lanecheck import native
from lanecheck.tensorcore import AMPERE, HOPPER

pytest.importorskip("pytest_benchmark")
MODELS = pytest.mark.parametrize("model", [AMPERE, HOPPER], ids=lambda model: model.name)
COUNT = 2048


def bf16(*shape: int) -> NDArray[np.uint16]:
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def report(benchmark, count: int) -> None:
    benchmark.extra_info["us_per_mma"] = benchmark.stats.stats.min / count * 1e6


@MODELS
@pytest.mark.parametrize("plain", [False, True], ids=["fast", "plain"])
def test_batch(benchmark, model, plain) -> None:
    c = np.ones((COUNT, 16, 8), np.float32)
    a, b = bf16(COUNT, 16, 16), bf16(COUNT, 16, 8)
    benchmark(native.mma_batch, model, a, b, c, plain=plain)
    report(benchmark, COUNT)


@MODELS
@pytest.mark.parametrize("threads", [1, 2])
def test_chain(benchmark, model, threads) -> None:
    a, b = bf16(16, COUNT // 128, 16, 16), bf16(8, COUNT // 128, 16, 8)
    benchmark(native.mma_chains, model, a, b, [range(a.shape[1])], threads=threads)
    report(benchmark, COUNT)


@MODELS
def test_python(benchmark, model) -> None:
    c = np.ones((64, 16, 8), np.float32)
    benchmark(model.mma, bf16(64, 16, 16), bf16(64, 16, 8), c)
    report(benchmark, 64)
