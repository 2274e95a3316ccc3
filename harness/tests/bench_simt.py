"""Launches a second of the host execution: `pytest bench_simt.py --benchmark-only`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import simt_build
from pytest_benchmark.fixture import BenchmarkFixture
from simt_build import SplitK

from lanecheck.simt import HostLibrary

SHAPES = {  # row blocks, slices, steps: 4 warps a CTA
    "1 CTA, 4 mma": (1, 1, 1),
    "4 CTAs, 128 mma": (2, 2, 8),
    "64 CTAs, 2048 mma": (16, 4, 8),
}


@pytest.fixture(scope="session")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return simt_build.build_all(tmp_path_factory.mktemp("simt"))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("variant", ["plain", "ucontext", "hooks"])
def test_launches(
    benchmark: BenchmarkFixture, paths: Mapping[str, Path], variant: str, shape: str
) -> None:
    library = HostLibrary(paths[f"split_k-{variant}"])
    row_blocks, slices, steps = SHAPES[shape]
    problem = SplitK(library, row_blocks, slices, steps)
    params = problem.prepare()
    assert benchmark(problem.launch, params) == 0
    switches = library.switches
    problem.launch(params)
    benchmark.extra_info["switches a launch"] = library.switches - switches
