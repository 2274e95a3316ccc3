"""Guarded GPU memory, on a driver whose device memory is the host's (``data/fake_cuda.cpp``)."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lanecheck import cuda_memory
from lanecheck.cuda_driver import CudaError, Driver
from lanecheck.cuda_memory import KEPT, MARGIN, CudaMemory, place, room
from lanecheck.errors import CannotRun
from lanecheck.memory import STICKY
from lanecheck.toolchain import find_cxx

GRANULE = 2 * 1024 * 1024
SOURCE = Path(__file__).parent / "data" / "fake_cuda.cpp"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The fake driver's shared library."""
    path = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    command = [str(find_cxx(os.environ)), "-shared", "-fPIC", "-O1", str(SOURCE), "-o", str(path)]
    subprocess.run(command, check=True)
    return str(path)


@pytest.fixture
def fake(library: str) -> ctypes.CDLL:
    return ctypes.CDLL(library)


@pytest.fixture
def memory(library: str) -> CudaMemory:
    return CudaMemory(Driver(library=library))


def accessible(address: int) -> bool:
    """Whether a byte can be read: the kernel refuses to write from an address that cannot."""
    reading, writing = os.pipe()
    try:
        written = ctypes.CDLL(None).write(writing, ctypes.c_void_p(address), ctypes.c_size_t(1))
        return written == 1
    finally:
        os.close(reading)
        os.close(writing)


# Where a buffer goes


@pytest.mark.parametrize("size", [0, 1, 15, 16, 4096, GRANULE - 1, GRANULE])
@pytest.mark.parametrize("align", [1, 2, 16, 256])
def test_a_buffer_is_flush_against_the_end_of_its_side(size: int, align: int):
    lower, upper = (place(GRANULE, size, align, side) for side in ("lower", "upper"))
    assert lower.start == 0
    assert upper.start % align == 0
    assert 0 <= GRANULE - (upper.start + size) < align


def test_what_is_looked_after_is_the_buffer_and_a_margin_as_far_as_the_region_goes():
    at = place(GRANULE, 100, 16, "lower")
    assert (at.low, at.high) == (0, 100 + MARGIN)
    at = place(GRANULE, 100, 16, "upper")
    assert (at.low, at.high) == (GRANULE - 112 - MARGIN, GRANULE)
    assert (at.inside.start, at.inside.stop) == (MARGIN, MARGIN + 100)
    at = place(GRANULE, GRANULE - 8, 1, "upper")
    assert (at.low, at.high) == (0, GRANULE)


def test_regions_are_exact_when_small_and_an_eighth_too_large_at_most():
    assert room(0, GRANULE) == room(1, GRANULE) == room(GRANULE, GRANULE) == GRANULE
    assert room(GRANULE + 1, GRANULE) == 2 * GRANULE
    for size in range(1, 400 * GRANULE, 1_234_567):
        space = room(size, GRANULE)
        assert space % GRANULE == 0
        assert size <= space
        assert space < size + GRANULE or space <= size + size / 8 + GRANULE
    assert len({room(size, GRANULE) for size in range(1, 1024 * GRANULE, GRANULE)}) < 70


# What a launch is given


@pytest.mark.parametrize("side", ["upper", "lower"])
def test_nothing_is_mapped_beyond_the_region(side: str, memory: CudaMemory):
    address, _ = memory.allocate("t", 48, 16, side, readonly=False)
    end = address + 48 if side == "upper" else address - 1
    inside = address + 47 if side == "upper" else address
    assert accessible(inside)
    assert not accessible(end)
    opposite = address - GRANULE if side == "upper" else address + GRANULE
    assert not accessible(opposite)


def test_a_launch_sees_the_mirror_and_the_mirror_sees_the_launch(memory: CudaMemory):
    x, given = memory.allocate("x", 5, 1, "upper", readonly=True)
    y, result = memory.allocate("y", 5, 1, "lower", readonly=False)
    given[:] = range(5)

    def double(stream: int) -> None:
        assert stream
        ctypes.memmove(y, bytes(2 * byte for byte in ctypes.string_at(x, 5)), 5)

    assert memory.run(double) == []
    assert result.tolist() == [0, 2, 4, 6, 8]
    given[:] = 7
    assert memory.run(double) == []
    assert result.tolist() == [14] * 5


def test_a_failed_launch_is_a_problem(memory: CudaMemory):
    (problem,) = memory.run(lambda stream: "returned CUDA error 9")
    assert (problem.kind, problem.message) == ("launch", "returned CUDA error 9")


# Damage


@pytest.mark.parametrize(
    ("side", "at"), [("upper", -1), ("upper", -MARGIN), ("lower", 40), ("lower", 39 + MARGIN)]
)
def test_a_damaged_canary_is_a_problem_that_names_the_byte(side: str, at: int, memory: CudaMemory):
    address, _ = memory.allocate("t", 40, 1, side, readonly=False)
    (problem,) = memory.run(lambda stream: spoil(address + at))
    assert problem.message == f"byte t{at:+d} (size 40) was overwritten"


def test_the_gap_that_alignment_leaves_holds_canaries(memory: CudaMemory):
    address, _ = memory.allocate("t", 41, 16, "upper", readonly=False)
    (problem,) = memory.run(lambda stream: spoil(address + 41))
    assert problem.message == "byte t+41 (size 41) was overwritten"


def test_an_overwritten_input_is_a_problem(memory: CudaMemory):
    address, view = memory.allocate("x", 40, 16, "upper", readonly=True)
    view[:] = 1
    (problem,) = memory.run(lambda stream: spoil(address + 39))
    assert problem.message == "input x was overwritten"


def test_a_second_run_begins_with_whole_canaries_of_a_new_buffer(memory: CudaMemory):
    address, _ = memory.allocate("t", 40, 1, "upper", readonly=False)
    assert memory.run(lambda stream: spoil(address - 1))
    memory.release()
    memory.allocate("u", 80, 1, "upper", readonly=False)
    assert memory.run(lambda stream: None) == []


@pytest.mark.parametrize("where", ["launch", "before"])
def test_an_error_that_stays_ends_the_process(
    where: str,
    memory: CudaMemory,
    fake: ctypes.CDLL,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    class Ended(BaseException):
        pass

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(cuda_memory.os, "_exit", end)
    memory.allocate("t", 40, 1, "upper", readonly=False)
    fake.fake_heal()
    if where == "before":
        fake.fake_fault()
    with pytest.raises(Ended, match=str(STICKY)):
        memory.run(lambda stream: fake.fake_fault())
    fake.fake_heal()
    assert "CUDA: cu" in capsys.readouterr().err


def spoil(address: int) -> None:
    byte = ctypes.string_at(address, 1)[0]
    ctypes.memset(address, byte ^ 0xFF, 1)


def test_what_is_read_beyond_a_buffer_is_a_nan(memory: CudaMemory):
    address, _ = memory.allocate("t", 40, 4, "lower", readonly=True)
    read: list[np.ndarray] = []
    memory.run(lambda stream: read.append(np.frombuffer(ctypes.string_at(address + 40, 64), "<u2")))
    assert np.isnan((read[0].astype(np.uint32) << 16).view(np.float32)).all()
    assert np.isnan(read[0].view(np.float32)).all()


# Regions


def test_regions_are_used_again_by_buffers_of_their_size(memory: CudaMemory, mapped: Callable):
    first, _ = memory.allocate("a", 100, 16, "lower", readonly=False)
    memory.allocate("b", 100, 16, "lower", readonly=False)
    before = mapped()
    memory.release()
    again = {memory.allocate(name, 200, 16, "lower", readonly=False)[0] for name in "cd"}
    assert first in again
    assert mapped() == before
    memory.allocate("e", 100, 16, "lower", readonly=False)
    assert mapped() == before + GRANULE


def test_a_large_region_is_given_back(memory: CudaMemory, mapped: Callable, fake: ctypes.CDLL):
    before, reserved = mapped(), ctypes.c_size_t.in_dll(fake, "fake_reserved").value
    address, _ = memory.allocate("a", KEPT + 1, 16, "upper", readonly=False)
    assert mapped() > before + KEPT
    assert memory.run(lambda stream: spoil(address)) == []
    memory.release()
    assert mapped() == before
    assert ctypes.c_size_t.in_dll(fake, "fake_reserved").value == reserved


@pytest.fixture
def mapped(fake: ctypes.CDLL) -> Callable[[], int]:
    return lambda: ctypes.c_size_t.in_dll(fake, "fake_mapped").value


# What cannot run


def test_without_a_driver_there_is_one_clear_line():
    with pytest.raises(CannotRun, match=r"no CUDA driver on this machine \(libnone.so\): install"):
        Driver(library="libnone.so")


def test_without_a_device_there_is_one_clear_line(library: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAKE_CUDA_ABSENT", "1")
    with pytest.raises(
        CannotRun, match="CUDA does not work on this machine: cuInit: CUDA_ERROR_NO"
    ):
        Driver(library=library)


def test_too_little_memory_is_one_clear_line(memory: CudaMemory):
    with pytest.raises(
        CannotRun, match=r"no \S+ bytes to be had on the GPU: cuMemCreate: .*out of"
    ):
        memory.allocate("t", 2**41, 16, "upper", readonly=False)


def test_an_error_of_the_driver_names_the_call(library: str):
    with pytest.raises(CudaError, match=r"cuMemFree_v2: CUDA_ERROR"):
        Driver(library=library).free(np.zeros(1).ctypes.data)
