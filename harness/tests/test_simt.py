"""Host execution: healthy kernels raise nothing, and each kind of fault is named."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import simt_build
from simt_build import FAULTS, ORDERS, TWINS, SplitK

from lanecheck import memory
from lanecheck.simt import VARIANTS, HostLibrary, SimtReport

SPLIT_K = ("split_k-plain", "split_k-hooks", "split_k-ucontext")


@pytest.fixture(scope="session")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return simt_build.build_all(tmp_path_factory.mktemp("simt"))


@pytest.fixture(scope="session")
def libraries(paths: Mapping[str, Path]) -> Mapping[str, HostLibrary]:
    """All in one process: none may see another's symbols."""
    return {n: HostLibrary(p, twins=[TWINS]) for n, p in paths.items() if "asan" not in n}


@pytest.fixture(autouse=True)
def fresh(request: pytest.FixtureRequest) -> None:
    if "libraries" in request.fixturenames:
        for library in request.getfixturevalue("libraries").values():
            library.configure()
            library.limits()
            library.clear()


def in_source(pattern: str, kernel: str = "split_k.cu") -> str:
    """`split_k.cu:LINE` of the only line that matches: messages are checked to the line."""
    lines = (simt_build.KERNELS / kernel).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if re.search(pattern, line)]
    return f"{kernel}:{number}"


def outcome(problem: SplitK, fault: str, seed: int) -> tuple[bool, SimtReport | None]:
    problem.library.configure(schedule_seed=seed, poison_seed=seed)
    return problem.run(fault), problem.library.report()


# --- healthy --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPLIT_K)
@pytest.mark.parametrize("dynamic", [True, False])
def test_healthy_kernel_raises_nothing(
    libraries: Mapping[str, HostLibrary], name: str, dynamic: bool
) -> None:
    library = libraries[name]
    for seed in range(60):
        problem = SplitK(
            library,
            row_blocks=1 + seed % 3,
            slices=1 + seed % 5,
            dynamic=dynamic,
            side=("upper", "lower")[seed % 2],
        )
        library.configure(
            schedule_seed=seed,
            model=("hopper", "ampere")[seed % 2],
            resident_ctas=(1, 2, 4, 16)[seed % 4],
            preempt=seed % 3 == 0,
            poison_seed=seed,
        )
        assert problem.run(), f"seed {seed}: {library.report()}"
        assert library.report() is None
        assert library.check() == []


def run_asan(path: Path, fault: str, seeds: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, simt_build.__file__, str(path), fault, str(seeds)]
    environment = VARIANTS["asan"].environment()
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_asan(paths: Mapping[str, Path]) -> None:
    path = paths["split_k-asan"]
    healthy = run_asan(path, "healthy", 15)
    assert healthy.returncode == 0, healthy.stderr
    assert json.loads(healthy.stdout) == [[True, "", []]] * 30

    guarded = json.loads(run_asan(path, "overread", 1).stdout)  # our own report, not ASan's
    assert guarded[0][1].startswith("memory: read at w+2")

    static = run_asan(path, "static_overrun", 1)
    assert static.returncode != 0
    assert "out of bounds for type 'float [1]'" in static.stderr
    assert in_source("kStaticOverrun\\)") in static.stderr

    canary = run_asan(path, "write_beyond_output", 1)
    assert canary.returncode != 0
    assert "use-after-poison" in canary.stderr
    assert in_source("kWriteBeyondOutput ") in canary.stderr


# --- faults that the random schedule shows by a wrong result --------------------------------------

SHOWN_OF_40 = {
    "no_barrier_before_reduction": 40,
    "not_reset": 40,
    "no_barrier_after_flag": 15,
    "no_barrier_before_atomic": 10,
}


@pytest.mark.parametrize("fault", SHOWN_OF_40)
def test_schedule_shows(libraries: Mapping[str, HostLibrary], fault: str) -> None:
    problem = SplitK(libraries["split_k-plain"])
    outcomes = [outcome(problem, fault, seed) for seed in range(40)]
    assert all(report is None for _, report in outcomes)
    assert sum(not right for right, _ in outcomes) >= SHOWN_OF_40[fault]


# --- faults that are reported ---------------------------------------------------------------------

MMA = in_source("mma16816\\(acc")
WAITS = f"mma.sync line {MMA.split(':')[1]} waits"
LOAD_W = in_source("__ldg\\(w")
REDUCE = in_source("tiles\\[w \\* kTile")
TILES = in_source("tiles\\[warp \\* kTile")
BLOCK = r"block \(\d,\d,0\)"
CROSS = (
    rf"race on partials\+\d+: write by {BLOCK} thread \d+ \({in_source('partials.e. = reduce')}\) "
)
CROSS += rf"and read by {BLOCK} thread \d+ \({in_source('__fadd_rn.sum, p.partials')}\), no fence"

REPORTED = {  # fault: (kind, message); in every variant
    "missing_lane": (
        "warp",
        rf"warp 0: {WAITS}, lanes missing: 5 \[at barrier: 5\] in {BLOCK}, {MMA}",
    ),
    "early_exit": (
        "warp",
        rf"warp 1: {WAITS}, lanes missing: 5 \[exited: 5\] in {BLOCK}, {MMA}",
    ),
    "divergent_barrier": (
        "barrier",
        r"divergent barrier: thread \d+ waits at line \d+, thread \d+",
    ),
    "lane_skips_shuffle": (
        "warp",
        "warp 1: __shfl_sync line .*: lane 6 reads lane 7, which takes no",
    ),
    "overread": (
        "memory",
        rf"read at w\+2\d+ \(size 24576, read-only\) by {BLOCK} thread \d+, {LOAD_W}",
    ),
    "write_input": (
        "memory",
        rf"write at x\+8 \(size 6144, read-only\) by {BLOCK} thread 3, {in_source('make_uint2')}",
    ),
    "misaligned": (
        "alignment",
        rf"misaligned 16-byte load at w\+\d+ \(size 24576\) by {BLOCK} thread \d+, {LOAD_W}",
    ),
    "wait_atomic": ("limit", rf"threads wait without end.*, {in_source('while .atomicAdd')}"),
}
REPORTED_BY_PLAIN = {
    "shared_overrun": (
        "shared",
        rf"write at dynamic shared\+\d+ \(size 2048\) by {BLOCK} thread \d+, "
        + in_source("kSharedOverrun.*="),
    ),
    "wait_volatile": (
        "limit",
        rf"still running after 0.2 s by .*, {in_source('while ..const_cast<vol')}",
    ),
}
REPORTED_BY_HOOKS = {
    "no_barrier_before_reduction": (
        "race",
        rf"race on dynamic shared\+\d+: .* thread \d+ \({REDUCE}\).* no barrier between|"
        rf"race on dynamic shared\+\d+: .* thread \d+ \({TILES}\).* no barrier between",
    ),
    "no_barrier_after_flag": ("race", "race on (shared|partials)"),
    "no_barrier_before_atomic": ("race", CROSS),
    "no_release_fence": ("race", CROSS),
    "no_acquire_fence": ("race", CROSS),
    "block_fence": ("race", CROSS),
    "plain_increment": ("race", r"race on arrivals\+[04]: (write|read) by .* no fence and atomic"),
    "write_beyond_output": (
        "memory",
        rf"write at y-4 \(size 1024\) by {BLOCK} thread 9, split_k.cu",
    ),
}


def expect(report: SimtReport | None, kind: str, message: str) -> None:
    assert report is not None
    assert report.kind == kind, report
    assert re.search(message, report.message), report


@pytest.mark.parametrize("name", SPLIT_K)
@pytest.mark.parametrize("fault", REPORTED)
def test_reported(libraries: Mapping[str, HostLibrary], name: str, fault: str) -> None:
    library = libraries[name]
    for dynamic in (True, False):
        for seed in range(1 if fault == "wait_atomic" else 8):
            right, report = outcome(SplitK(library, dynamic=dynamic), fault, seed)
            assert not right
            expect(report, *REPORTED[fault])
    assert SplitK(library).run(), "a launch after a failed one is as good as any"
    assert library.report() is None


@pytest.mark.parametrize("fault", REPORTED_BY_PLAIN)
@pytest.mark.parametrize("name", ["split_k-plain", "split_k-ucontext"])
def test_reported_by_plain(libraries: Mapping[str, HostLibrary], name: str, fault: str) -> None:
    libraries[name].limits(seconds=0.2)
    _, report = outcome(SplitK(libraries[name]), fault, 0)
    expect(report, *REPORTED_BY_PLAIN[fault])


@pytest.mark.parametrize("fault", REPORTED_BY_HOOKS)
def test_reported_by_hooks(libraries: Mapping[str, HostLibrary], fault: str) -> None:
    for seed in range(15):
        _, report = outcome(SplitK(libraries["split_k-hooks"]), fault, seed)
        expect(report, *REPORTED_BY_HOOKS[fault])


def test_every_fault_is_tested() -> None:
    tested = {*SHOWN_OF_40, *REPORTED, *REPORTED_BY_PLAIN, *REPORTED_BY_HOOKS}
    elsewhere = {"healthy", "static_overrun", "divide_by_zero"}
    assert tested | elsewhere == set(FAULTS)


def test_canaries(libraries: Mapping[str, HostLibrary]) -> None:
    library = libraries["split_k-plain"]
    assert SplitK(library).run("write_beyond_output"), "nothing but a canary can tell"
    assert library.report() is None
    assert library.check() == ["written outside of its buffer: y-4 (size 1024)"]


def test_what_lies_behind_a_buffer_is_no_number(libraries: Mapping[str, HostLibrary]) -> None:
    """Else zero weights would hide that the kernel read it; a GPU's canaries are the same."""
    library = libraries["split_k-plain"]
    buffer = library.alloc("x", 100, side="lower")
    behind = ctypes.string_at(buffer.address + 100, 64)
    assert np.isnan(np.frombuffer(behind, ml_dtypes.bfloat16)).all()
    assert np.isnan(np.frombuffer(behind, np.float32)).all()
    assert behind == memory.canaries(64).tobytes()
    library.free_all()


def test_divide_by_zero(libraries: Mapping[str, HostLibrary]) -> None:
    right, report = outcome(SplitK(libraries["split_k-plain"]), "divide_by_zero", 0)
    assert not right
    expect(report, "arithmetic", "division by zero")


def test_report_fields(libraries: Mapping[str, HostLibrary]) -> None:
    _, report = outcome(SplitK(libraries["split_k-plain"]), "write_input", 0)
    assert report is not None
    assert (report.buffer, report.offset, report.size, report.access) == ("x", 8, 6144, "write")
    assert (report.thread, Path(report.file).name, report.line) == (
        3, "split_k.cu", int(in_source("make_uint2").split(":")[1]),
    )  # fmt: skip


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["upper", "lower"])
@pytest.mark.parametrize("size", [0, 1, 15, 16, 4095, 4096, 4097, 100_000, 3_000_001])
def test_alloc(libraries: Mapping[str, HostLibrary], side: str, size: int) -> None:
    library = libraries["split_k-plain"]
    library.free_all()
    buffer = library.alloc("b", size, align=16, side=side)
    assert buffer.view.size == size
    assert buffer.address % (16 if side == "upper" else 4096) == 0
    buffer.view[:] = 7
    assert library.check() == []
    end = buffer.address + size
    if side == "upper":
        assert -end % 4096 < 16
    if end % 4096:  # room for a canary
        ctypes.memset(end, 0x55, 1)
        assert library.check() == [f"written outside of its buffer: b+{size} (size {size})"]
    library.free_all()
    assert library.check() == []


def test_recycled_shared_memory_is_a_buffer_like_any_other(
    libraries: Mapping[str, HostLibrary],
) -> None:
    library = libraries["features-hooks"]
    library.configure()
    library.free_all()
    whoami = library.cdll.run_whoami
    out = ctypes.c_void_p(library.alloc("out", 3 * 32 * 4).address)
    for dynamic in (4096, 0):  # the second launch gives back what the first one took
        assert whoami(out, 3, 1, 1, 32, 1, 1, ctypes.c_size_t(dynamic), 0) == 0
    buffers = [library.alloc(n, 4096) for n in ("data", "flags", "bytes", "out")]
    buffers[1].view[:] = 0
    addresses = [ctypes.c_void_p(b.address) for b in buffers]
    assert library.cdll.run_orders(ORDERS["everyone_fences"], *addresses) == 0, library.report()


# --- determinism ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["split_k-plain", "split_k-hooks"])
def test_same_seed_same_schedule(libraries: Mapping[str, HostLibrary], name: str) -> None:
    problem = SplitK(libraries[name])
    first, again = ([outcome(problem, "misaligned", s) for s in range(12)] for _ in range(2))
    assert first == again
    assert len({report.message for _, report in first if report}) > 6


def test_ucontext_makes_the_same_schedule(libraries: Mapping[str, HostLibrary]) -> None:
    def messages(name: str) -> list[str]:
        outcomes = [outcome(SplitK(libraries[name]), "misaligned", s) for s in range(4)]
        return [report.message for _, report in outcomes if report]

    assert messages("split_k-plain") == messages("split_k-ucontext")


# --- values and orders ----------------------------------------------------------------------------

FEATURES = ("features-plain", "features-hooks")


@pytest.mark.parametrize("name", FEATURES)
def test_warp_functions(libraries: Mapping[str, HostLibrary], name: str) -> None:
    library = libraries[name]
    out = np.zeros((64, 8), np.int32)
    assert library.cdll.run_warp_functions(ctypes.c_void_p(out.ctypes.data)) == 0, library.report()
    tid = np.arange(64)
    lane = tid % 32
    expected = np.stack(
        [
            tid - lane + 5,
            tid ^ 3,
            np.where(lane % 8 < 7, tid + 1, tid),
            np.where(lane >= 2, tid - 2, tid),
            np.full(64, sum(1 << i for i in range(0, 32, 3))),
            np.full(64, 1),
            np.where(lane < 4, 0b1010, 4),
            np.full(64, 1013),
        ],
        axis=1,
    )
    np.testing.assert_array_equal(out, expected.astype(np.uint32).view(np.int32).reshape(64, 8))


@pytest.mark.parametrize("name", FEATURES)
def test_bf16(libraries: Mapping[str, HostLibrary], name: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**32, 20_000, dtype=np.uint32).view(np.float32)
    values[:4] = [np.inf, -np.inf, np.nan, 3.3961776e38]
    bits, out = np.zeros(values.size, np.uint16), np.zeros_like(values)
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (values, bits, out)]
    assert libraries[name].cdll.run_round_trip(*pointers, values.size) == 0
    with np.errstate(all="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    expected = np.where(np.isnan(values), 0x7FFF, expected)
    np.testing.assert_array_equal(bits, expected)
    np.testing.assert_array_equal(out.view(np.uint32), bits.astype(np.uint32) << 16)


@pytest.mark.parametrize("name", FEATURES)
def test_atomics(libraries: Mapping[str, HostLibrary], name: str) -> None:
    u, f = np.zeros(5, np.uint32), np.zeros(1, np.float32)
    for seed in range(5):
        libraries[name].configure(schedule_seed=seed, preempt=True)
        u[:] = f[:] = 0
        call = libraries[name].cdll.run_atomics
        assert call(ctypes.c_void_p(u.ctypes.data), ctypes.c_void_p(f.ctypes.data)) == 0
        assert [*list(u[:3]), u[4]] == [512, 256 % 5, 7, 63]
        assert 1 <= u[3] <= 256
        assert f[0] == 128


@pytest.mark.parametrize("name", FEATURES)
def test_indices_and_limits(libraries: Mapping[str, HostLibrary], name: str) -> None:
    def run(
        grid: tuple[int, ...], block: tuple[int, ...], dynamic: int = 0, allowed: int = 0
    ) -> int:
        out = np.zeros(int(np.prod(grid + block)), np.uint32)
        call = libraries[name].cdll.run_whoami
        error = call(
            ctypes.c_void_p(out.ctypes.data), *grid, *block, ctypes.c_size_t(dynamic), allowed
        )
        assert error or (out == np.arange(out.size)).all()
        return int(error)

    invalid_value, invalid_configuration = 1, 9
    assert run((3, 2, 5), (7, 3, 2)) == 0
    assert run((1, 1, 1), (1024, 1, 1)) == 0
    assert run((1, 1, 1), (1025, 1, 1)) == invalid_configuration
    assert run((1, 70000, 1), (1, 1, 1)) == invalid_configuration
    assert run((0, 1, 1), (32, 1, 1)) == invalid_configuration
    assert run((1, 1, 1), (32, 1, 1), dynamic=48 << 10) == 0
    assert run((1, 1, 1), (32, 1, 1), dynamic=(48 << 10) + 4) == invalid_value
    assert run((1, 1, 1), (32, 1, 1), dynamic=(48 << 10) + 4, allowed=64 << 10) == 0
    assert run((1, 1, 1), (32, 1, 1), allowed=228 << 10) == invalid_value


@pytest.mark.parametrize("name", FEATURES)
def test_barrier_does_not_wait_for_exited_threads(
    libraries: Mapping[str, HostLibrary], name: str
) -> None:
    out = np.zeros(40, np.int32)
    for seed in range(10):
        libraries[name].configure(schedule_seed=seed)
        out[:] = 0
        assert libraries[name].cdll.run_early_return(ctypes.c_void_p(out.ctypes.data)) == 0
        assert (out == 7).all()


RACES = {
    "shuffle_is_no_fence": r"race on shared\+\d+: .*, no barrier between",
    "volatile_without_fence": r"race on data\+0: write by block \(0,0,0\) thread 0 .* no fence",
    "same_word": r"race on data\+0: write by .* and write by",
}


@pytest.mark.parametrize("order", ORDERS)
def test_orders(libraries: Mapping[str, HostLibrary], order: str) -> None:
    """What orders accesses, and what does not, by the PTX memory model."""
    library = libraries["features-hooks"]
    for seed in range(20):
        library.configure(schedule_seed=seed, poison_seed=seed, preempt=seed % 2 == 1)
        library.free_all()
        buffers = [library.alloc(n, 768) for n in ("data", "flags", "bytes", "out")]
        buffers[1].view[:] = 0
        addresses = [ctypes.c_void_p(b.address) for b in buffers]
        library.cdll.run_orders(ORDERS[order], *addresses)
        if order in RACES:
            expect(library.report(), "race", RACES[order])
        else:
            assert library.report() is None, library.report()


# --- compilers


def test_clang_is_spoken_to_in_its_own_words() -> None:
    for name, variant in VARIANTS.items():
        assert variant.adapted("/usr/bin/g++-13") == variant
        clang = variant.adapted("/usr/bin/clang++-18")
        words = [*clang.compile_flags, *clang.runtime_flags, *clang.link_flags]
        assert not [w for w in words if "gnu-unique" in w or "tail" in w or w.startswith("--param")]
        assert ("-mllvm" in words) == (name == "hooks")
        assert (clang.preload is None) == (variant.preload is None)
