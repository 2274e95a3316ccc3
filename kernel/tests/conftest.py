"""Settings of the kernel's own tests: the same examples everywhere, and a GPU for those that ask for one."""

from __future__ import annotations

import fcntl
import sys
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile(
    "packed_gemv", derandomize=True, database=None, deadline=None, max_examples=60
)
settings.load_profile("packed_gemv")


def pytest_runtest_setup(item: pytest.Item) -> None:
    # Not in the fixture, where each skip would be reported on a line of its own.
    if "cuda" in getattr(item, "fixturenames", ()) and not _has_gpu():
        pytest.skip("no CUDA GPU that torch can use")


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The walk of every call of the torch front, [NW, U, S], in order."""
    from packed_gemv import ops

    walks: list[list[int]] = []
    choose = ops._walk

    def kept(*call: Any) -> list[int]:
        walks.append(choose(*call))
        return walks[-1]

    monkeypatch.setattr(ops, "_walk", kept)
    return walks


@pytest.fixture
def cuda(request: pytest.FixtureRequest, cuda_operator: None):
    """The operator on this machine's GPU, and a seed that follows from the test's name alone."""
    import torch

    torch.cuda.synchronize()
    seed = zlib.crc32(request.node.name.encode())
    print(f"torch.manual_seed({seed})")
    torch.manual_seed(seed)
    yield
    torch.cuda.synchronize()  # so that what fails late fails here


@pytest.fixture(scope="session")
def cuda_operator() -> None:
    """The operator's library, built if these sources have none yet."""
    from packed_gemv import build, ops

    library = build.default_library()
    if not library.is_file():
        library.parent.mkdir(parents=True, exist_ok=True)
        with library.with_suffix(".lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one of several workers builds it
            if not library.is_file():
                for name, value in _compilers().items():
                    patch.setenv(name, value)
                build.build(["native"])
    ops.load_library()


@cache
def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _compilers() -> dict[str, str]:
    """The environment with the compilers that lanecheck finds or installs; without it, as it is."""
    try:
        from lanecheck.errors import CannotRun
        from lanecheck.toolchain import Toolchain
    except ModuleNotFoundError:
        return {}
    tools = Toolchain()
    try:
        return {**tools.compile_environment, "CUDA_HOME": str(tools.root)}
    except CannotRun as missing:
        pytest.skip(str(missing))
