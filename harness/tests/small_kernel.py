"""A kernel of two instantiations for the tests of the build and the inspection, and where they run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from lanecheck import matrix_file
from lanecheck.errors import CannotRun
from lanecheck.toolchain import Toolchain, cache_root

ARCHS = matrix_file.load(Path(__file__).parents[2] / "matrix.yaml").archs
MMA = r"^HMMA\.16816\.F32\.BF16"
LOAD = r"^LDG\.E.*\.128"


@dataclass(frozen=True)
class SmallRecipe:
    root: Path = Path(__file__).parent / "data" / "small"
    twins: tuple[Path, ...] = ()
    flags: tuple[str, ...] = ()

    def device(self, nvcc: Path, gencode: Sequence[str], source: Path, out: Path) -> list[str]:
        return [
            *(str(nvcc), "-O3", "-shared", "-Xcompiler=-fPIC", "-Xptxas=-v", *self.flags),
            *(f"-gencode={code}" for code in gencode),
            *(str(source / "small.cu"), "-o", str(out)),
        ]

    def host(
        self, cxx: Path, flags: Sequence[str], include: Sequence[Path], source: Path, out: Path
    ) -> list[str]:
        raise NotImplementedError


def cuda_toolchain(cache: Path) -> Toolchain:
    """This machine's toolchain with its own build cache, or a skip where nothing can compile CUDA."""
    installed = cache_root() / "toolchain"
    installed.mkdir(parents=True, exist_ok=True)
    (cache / "toolchain").symlink_to(installed)
    toolchain = Toolchain({**os.environ, "LANECHECK_CACHE": str(cache)})
    try:
        for program in ("nvcc", "cuobjdump", "nvdisasm", "cxx"):
            getattr(toolchain, program)
    except CannotRun as reason:
        pytest.skip(f"no CUDA toolchain and none to be had: {reason}")
    return toolchain
