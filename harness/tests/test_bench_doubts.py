"""Every way to time wrongly that the benchmark must notice, done for real on the CPU; and honest timing."""

from __future__ import annotations

import ctypes
import io
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import test_bench
from pydantic import ValidationError
from rich.console import Console

from lanecheck.bench import cost, cuda_rig, run
from lanecheck.bench.cuda_rig import CudaRig
from lanecheck.bench.doubts import (
    Doubling,
    Doubt,
    Enqueue,
    Facts,
    Fault,
    Operands,
    Outputs,
    Placement,
    Replay,
    doubts,
)
from lanecheck.bench.host import Host
from lanecheck.bench.host_rig import HostRig
from lanecheck.bench.inquiry import compare, covered, overlap
from lanecheck.bench.model import Row
from lanecheck.bench.plan import Workload
from lanecheck.bench.rig import COLD_SINGLE, WARM_CHAIN, Bytes, Rig
from lanecheck.bench.run import Contender, Rivals, row
from lanecheck.bench.table import render
from lanecheck.bench.timing import Chain, Launch, event_timer
from lanecheck.errors import BadInput
from lanecheck.subject import Bits, Buffer, Draw, Params, Subject, Tensor
from lanecheck.subject import Product as MatrixProduct
from lanecheck.trial import Target

PARAMS: Params = {"m": 2, "n": 96, "k": 256}
L2 = 16 << 10  # bytes; the operands are some 50 KB, so they rotate over few copies
ROUNDS = 5


class Gemv(Subject):
    """``y = x · Wᵀ`` in numpy over packed weights. Subclasses cheat as soon as they are benchmarked, and no
    sooner: then every oracle has found them right."""

    name = "gemv"
    benchmarked = False

    def draw(self, draw: Draw) -> dict[str, int | str]:
        return {axis: draw.integer(1, 9) for axis in "mnk"}

    def bench_params(self) -> list[Params]:
        return [PARAMS]

    def traffic(self, params: Params) -> int:
        m, n, k = (int(params[axis]) for axis in "mnk")
        return 2 * (m * k + n * k) + 4 * m * n

    def tensors(self, params: Params) -> list[Tensor]:
        m, n, k = (int(params[axis]) for axis in "mnk")
        return [
            Tensor("x", (m, k), "bf16", "input"),
            Tensor("w", (n, k), "bf16", "source"),
            Tensor("packed", (n, k), "bf16", "packed"),
            Tensor("y", (m, n), "fp32", "output"),
        ]

    def terms(self, params: Params) -> int:
        return int(params["k"])

    def derive(self, params: Params, inputs: Mapping[str, Bits]) -> dict[str, Bits]:
        return {"packed": inputs["w"]}

    def launch(
        self, library: Any, params: Params, buffers: Mapping[str, Buffer], stream: int
    ) -> str | None:
        x, w, y = (buffers[name].elements for name in ("x", "packed", "y"))
        assert x is not None and w is not None and y is not None
        if self.benchmarked:
            self.cheat(x, w, y)
        else:
            compute(x, w, y)
        return None

    def cheat(self, x: Bits, w: Bits, y: Bits) -> None:
        compute(x, w, y)

    def reference(
        self, params: Params, inputs: Mapping[str, Bits]
    ) -> dict[str, npt.NDArray[np.float64]]:
        return {"y": wide(inputs["x"]).astype(np.float64) @ wide(inputs["w"]).T}

    def products(self, params: Params) -> list[MatrixProduct]:
        return [MatrixProduct("y", "x", "w")]


def compute(x: Bits, w: Bits, y: Bits) -> None:
    """In an order of additions that depends on the shape alone."""
    y[...] = (wide(x)[:, None] * wide(w)).sum(axis=-1, dtype=np.float32).view(np.uint32)


def wide(bits: Bits) -> npt.NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bench(subject: Gemv, rig: Rig | None = None) -> Row:
    """One row of the record, by the machinery that times GPUs."""
    workload = Workload.of(subject, PARAMS, seed=3)

    def enter(copies: int) -> Rivals:
        subject.benchmarked = True
        buffers = [np.ones(workload.bytes, np.uint8) for _ in range(copies)]
        total = np.zeros((), np.uint8)

        def read(buffer: Bytes) -> Launch:
            return lambda stream: buffer.sum(initial=0, out=total)

        def double(buffer: Bytes) -> Launch:
            half = buffer.size // 2
            return lambda stream: np.copyto(buffer[:half], buffer[half : 2 * half])

        return Rivals(
            Contender("read", [*map(read, buffers)]), Contender("copy", [*map(double, buffers)])
        )

    rng = random.Random(0)
    return row(PARAMS, workload, Target("…"), rig or host(), enter, ROUNDS, rng)


def host() -> HostRig:
    return HostRig(Host(None, "9.0"), L2)


def faults(found: Row) -> set[Fault]:
    """Those that its record shows; and that they void it."""
    assert found.timing and found.timing.facts, found.void
    shown = doubts(found.timing.facts)
    assert (found.void is None) is (not shown)
    assert all(str(doubt) in str(found.void) for doubt in shown)
    return {doubt.fault for doubt in shown}


# The faults -----------------------------------------------------------------------------------


class Sleeps(Gemv):
    def cheat(self, x: Bits, w: Bits, y: Bits) -> None:
        time.sleep(0.002)
        compute(x, w, y)


class Returns(Gemv):
    """Computes each output once, and leaves it there."""

    def __init__(self) -> None:
        self.computed: set[int] = set()

    def cheat(self, x: Bits, w: Bits, y: Bits) -> None:
        if y.ctypes.data not in self.computed:
            self.computed.add(y.ctypes.data)
            compute(x, w, y)


class Remembers(Gemv):
    """Computes each output once, and copies it to where it belongs from then on."""

    def __init__(self) -> None:
        self.computed: dict[int, Bits] = {}

    def cheat(self, x: Bits, w: Bits, y: Bits) -> None:
        if y.ctypes.data not in self.computed:
            compute(x, w, y)
            self.computed[y.ctypes.data] = y.copy()
        y[...] = self.computed[y.ctypes.data]


class Defers(Gemv):
    """Hands the work to a thread, which is done with it after the launch has returned."""

    def cheat(self, x: Bits, w: Bits, y: Bits) -> None:
        threading.Timer(0.01, compute, (x, w, y)).start()


class Skips(Gemv):
    def cheat(self, x: Bits, w: Bits, y: Bits) -> None:
        half = x.shape[1] // 2
        compute(x[:, :half], w[:, :half], y)


class Thins(Gemv):
    """Makes the weights sparse, in the structure that tensor cores skip: two of four are zero."""

    def cheat(self, x: Bits, w: Bits, y: Bits) -> None:
        w.reshape(-1, 4)[:, :2] = 0
        compute(x, w, y)


class Aliases(Gemv):
    """Reads the weights of whichever copy it was first given, and these alone."""

    first: Bits | None = None

    def cheat(self, x: Bits, w: Bits, y: Bits) -> None:
        self.first = w if self.first is None else self.first
        compute(x, self.first, y)


class AliasingRig(HostRig):
    def hold(self, contents: Bytes, copies: int) -> list[Any]:
        return [*super().hold(contents, 1) * copies]


class PersistingRig(HostRig):
    def persisting_bytes(self) -> int | None:
        return 1 << 20


class Worker(HostRig):
    """A device of its own beside the host, as a GPU is: launches queue up, and are waited for or not."""

    def __init__(self, waits: bool) -> None:
        super().__init__(Host(None, "9.0"), L2)
        self.waits = waits
        self.pool = ThreadPoolExecutor(1)
        self.queue: list[Future[None]] = []

    def enqueue(self, launch: Launch) -> None:
        self.queue.append(self.pool.submit(launch, 0))

    def settle(self) -> None:
        wait(self.queue)
        self.queue.clear()

    def chain(self, launches: Sequence[Launch]) -> Any:
        return WorkerChain(self, launches)

    def single(self, before: Chain, launch: Launch) -> Callable[[], float]:
        return self.chain([launch]).time


class WorkerChain:
    def __init__(self, rig: Worker, turns: Sequence[Launch]) -> None:
        self.rig, self.turns, self.launches = rig, turns, len(turns)

    def enqueue(self) -> None:
        for launch in self.turns:
            self.rig.enqueue(launch)

    def time(self) -> float:
        self.rig.settle()
        start = time.perf_counter_ns()
        self.enqueue()
        if self.rig.waits:
            self.rig.settle()
        return (time.perf_counter_ns() - start) / 1e3


@pytest.mark.parametrize(
    ("subject", "fault"),
    [
        (Sleeps, Fault.SLEEP),
        (Returns, Fault.CACHED),
        (Remembers, Fault.CACHED),
        (Defers, Fault.SIDE_STREAM),
        (Skips, Fault.SKIPPED),
        (Thins, Fault.SPARSE),
        (Thins, Fault.ALTERED),
        (Aliases, Fault.SKIPPED),
    ],
)
def test_a_cheating_launch_is_flagged(subject: type[Gemv], fault: Fault) -> None:
    assert fault in faults(bench(subject()))


def test_copies_that_are_one_are_flagged() -> None:
    assert Fault.WARM in faults(bench(Gemv(), AliasingRig(Host(None, "9.0"), L2)))


def test_persisting_l2_is_flagged() -> None:
    assert faults(bench(Gemv(), PersistingRig(Host(None, "9.0"), L2))) == {Fault.PERSISTING}


def test_a_timer_that_does_not_wait_is_flagged() -> None:
    assert Fault.UNSYNCHRONIZED in faults(bench(Gemv(), Worker(waits=False)))
    assert faults(bench(Gemv(), Worker(waits=True))) == set()


def test_honest_timing_is_not_flagged() -> None:
    rows = [bench(Gemv()) for _ in range(20)]
    assert [found.void for found in rows] == [None] * len(rows)


# The path of a GPU, as far as it can be walked without one -------------------------------------


class Device:
    """CUDA as torch shows it, played by the CPU. What is submitted runs at once, or whenever the graph does
    that is being captured; it is as well the subject's library, and the driver."""

    def __init__(self) -> None:
        self.captured: list[Callable[[], None]] | None = None
        self.persisting = 0

    def submit(self, work: Callable[[], None]) -> None:
        work() if self.captured is None else self.captured.append(work)

    def cuCtxGetLimit(self, value: Any, limit: int) -> int:
        assert limit == 6  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE
        value._obj.value = self.persisting
        return 0


class OnDevice(Gemv):
    """Finds its operands by their addresses alone. ``beside`` leaves the stream, and so the graph."""

    def __init__(self, beside: bool = False) -> None:
        self.beside = beside

    def launch(
        self, library: Any, params: Params, buffers: Mapping[str, Buffer], stream: int
    ) -> str | None:
        if library is None:
            return super().launch(library, params, buffers, stream)
        assert stream == 7 and all(buffer.elements is None for buffer in buffers.values())

        def elements(tensor: Tensor) -> Bits:
            size = tensor.span * tensor.item.itemsize
            raw = (ctypes.c_uint8 * size).from_address(buffers[tensor.name].address)
            return tensor.view(np.frombuffer(raw, np.uint8))

        x, w, y = (elements(t) for t in self.tensors(params) if t.role != "source")
        if self.beside:
            compute(x, w, y)
        else:
            library.submit(lambda: compute(x, w, y))
        return None


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    torch: Any = pytest.importorskip("torch")
    played = Device()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: Any = None) -> None:
            self.at = time.perf_counter()

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, later: Event) -> float:
            return 1e3 * (later.at - self.at)

    class Stream:
        cuda_stream = 7

        def wait_stream(self, other: Any) -> None:
            pass

        def synchronize(self) -> None:
            pass

    class CUDAGraph:
        def capture_begin(self) -> None:
            played.captured = []

        def capture_end(self) -> None:
            self.work, played.captured = played.captured or [], None

        def replay(self) -> None:
            for work in self.work:
                work()

    @contextmanager
    def current(stream: Stream) -> Iterator[None]:
        yield

    for kind in (Event, Stream, CUDAGraph):
        monkeypatch.setattr(torch.cuda, kind.__name__, kind)
    monkeypatch.setattr(torch.cuda, "stream", current)
    for name in ("synchronize", "current_stream", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    for name in ("cuda", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, lambda self: self.clone())
    driver = SimpleNamespace(CDLL=lambda name: played, c_size_t=ctypes.c_size_t, byref=ctypes.byref)
    for module in (cuda_rig, run):
        monkeypatch.setattr(module, "ctypes", driver)
    return played


def test_the_path_of_a_gpu_records_all_and_flags_what_is_not_in_the_graph(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaRig, "copies", lambda self, size: 9)
    rig: Any = CudaRig(device, L2, tuple)  # type: ignore[arg-type]
    sound = bench(OnDevice(), rig)
    assert faults(sound) == set()
    assert sound.timing is not None and "cuda graph" in sound.timing.method
    assert sound.timing.facts is not None
    assert sound.timing.facts.placement.persisting_after == 0
    assert sound.timing.facts.outputs.elements == 9 * 2 * 96
    assert Fault.CACHED in faults(bench(OnDevice(beside=True), rig))
    device.persisting = 1 << 20
    assert faults(bench(OnDevice(), rig)) == {Fault.PERSISTING}


@pytest.fixture
def library(device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Of a subject that a whole run finds on the played device."""
    import torch

    def reads(size: int, copies: int, *rest: Any) -> tuple[str, list[Launch]]:
        buffers = [np.ones(size, np.uint8) for _ in range(copies)]
        return "a loop", [lambda stream, b=b: device.submit(b.any) for b in buffers]  # type: ignore[misc]

    environment = test_bench.record(test_bench.timed([test_bench.passed()])).environment
    library = tmp_path / "library.so"
    library.write_bytes(b"")
    subject = OnDevice()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for name, value in {
        "cuda_torch": lambda: torch,
        "load": lambda reference: subject,
        "describe": lambda torch: (environment.model_copy(update={"l2_bytes": L2}), "uuid"),
        "build": lambda *given: library,
        "Ceiling": lambda *given: SimpleNamespace(best=reads),
        "copying": lambda size, copies: reads(size, copies)[1],
        "PEERS": (),
        "Target": lambda *given: Target("…"),
    }.items():
        monkeypatch.setattr(run, name, value)
    monkeypatch.setattr(CudaRig, "copies", lambda self, size: 9)
    return library


def test_a_whole_run_makes_a_record(library: Path, tmp_path: Path) -> None:
    rows: list[Row] = []
    log = tmp_path / "log.jsonl"
    record = run.run("a:SUBJECT", library, rounds=ROUNDS, log=log, on_row=rows.append)
    assert record.valid and record.rows == tuple(rows)
    (only,) = rows
    assert only.params == PARAMS and only.timing is not None
    assert only.timing.copies == 9 and only.timing.copy_ceiling is not None
    out = io.StringIO()
    Console(file=out, width=200).print(render(record))
    assert "counts" in out.getvalue() and "cold single µs" in out.getvalue()


def test_a_cut_run_goes_on_with_the_shapes_that_its_log_lacks(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [{**PARAMS, "m": m} for m in (1, 2, 3)]
    monkeypatch.setattr(OnDevice, "bench_params", lambda self: shapes)
    log = tmp_path / "log.jsonl"
    seen: list[Any] = []

    def cut(row: Row) -> None:
        seen.append(row.params["m"])
        if row.params["m"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.run("a:SUBJECT", library, rounds=ROUNDS, log=log, on_row=cut)
    log.write_bytes(log.read_bytes() + b'{"seconds": 1, "row": {"par')  # and a line that was cut
    record = run.run("a:SUBJECT", library, rounds=ROUNDS, log=log, on_row=cut)
    assert seen == [1, 2, 3]
    assert [row.params for row in record.rows] == shapes
    with pytest.raises(BadInput, match=r"of another run \(another rounds\): name another --log"):
        run.run("a:SUBJECT", library, rounds=ROUNDS + 1, log=log)


def test_the_cost_follows_size_and_rounds_and_the_log_corrects_the_rule() -> None:
    few, many = (cost.seconds(2**25, rounds, 4800.0) for rounds in (1, 101))
    launches = 19 * 7  # turns over the copies that fill 600 MB
    replay = launches * (2e-6 + 2**25 / 4.8e12)
    assert many - few == pytest.approx(100 * 2 * cost.CONTENDERS * replay)
    assert cost.seconds(2**30, 1, 4800.0) > few
    assert cost.estimate([10.0, 20.0], []) == 30.0
    assert cost.estimate([10.0, 20.0], [(10.0, 5.0), (8.0, 4.0), (1.0, 9.0)]) == 15.0


def test_a_timer_for_pytest_benchmark(device: Device) -> None:
    start = event_timer()
    time.sleep(0.005)
    assert 0.005 <= event_timer() - start < 1
    precision = pytest.importorskip("pytest_benchmark.timers").compute_timer_precision(event_timer)
    assert 0 < precision < 0.001


# The record -----------------------------------------------------------------------------------


def test_modes_are_recorded_apart_each_with_its_method() -> None:
    measured = bench(Gemv()).timing
    assert measured is not None
    assert [mode.name for mode in measured.modes] == [COLD_SINGLE]
    assert [each.name for each in measured.absent] == [WARM_CHAIN]
    assert "do not stay in an L2 of 16384" in measured.absent[0].reason
    large = bench(Gemv(), HostRig(Host(None, "9.0"), 1 << 20)).timing
    assert large is not None and large.absent == ()
    methods = {mode.name: mode.detail for mode in large.modes} | {"main": large.method}
    assert set(methods) == {COLD_SINGLE, WARM_CHAIN, "main"} and len(set(methods.values())) == 3
    assert large.copy_ceiling is not None and large.copy_ceiling.name == "copy"


def test_a_record_may_not_hide_its_doubts() -> None:
    flagged = bench(Skips())
    assert flagged.void is not None
    with pytest.raises(ValidationError, match="void is None, but the evidence says"):
        Row.model_validate(flagged.model_dump() | {"void": None})
    assert Row.model_validate_json(flagged.model_dump_json()) == flagged


# What follows from facts ----------------------------------------------------------------------


def facts(**other: Any) -> Facts:
    sound: dict[str, Any] = {
        "operands": Operands(bytes=10, differing_bytes=0, zero_bits=0.39),
        "placement": Placement(
            shared_bytes=0,
            apart_bytes=8 << 20,
            l2_bytes=1 << 20,
            persisting_before=0,
            persisting_after=None,
        ),
        "outputs": Outputs(elements=8, late=0, untouched=0, stale=0, wrong=0),
        "replays": (Replay(timed_us=90.0, wall_us=100.0),),
        "doublings": (Doubling(once_us=90.0, twice_us=179.0),),
        "enqueues": (Enqueue(wall_us=12.0, cpu_us=11.0),),
    }
    return Facts(**sound | other)


def changed(part: str, **values: Any) -> dict[str, Any]:
    return {part: getattr(facts(), part).model_copy(update=values)}


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        ({}, None),
        # Only what no try escaped counts.
        ({"replays": (Replay(timed_us=49.0, wall_us=100.0),)}, Fault.UNSYNCHRONIZED),
        ({"replays": (Replay(timed_us=201.0, wall_us=100.0),)}, Fault.UNSYNCHRONIZED),
        (
            {"replays": (Replay(timed_us=1.0, wall_us=9.0), Replay(timed_us=8.0, wall_us=9.0))},
            None,
        ),
        ({"doublings": (Doubling(once_us=90.0, twice_us=120.0),)}, Fault.CONSTANT),
        ({"doublings": (Doubling(once_us=0.0, twice_us=0.0),)}, None),
        ({"enqueues": (Enqueue(wall_us=1000.0, cpu_us=10.0),) * 2}, Fault.SLEEP),
        ({"enqueues": (Enqueue(wall_us=190.0, cpu_us=0.0),)}, None),
        ({"enqueues": (Enqueue(wall_us=1000.0, cpu_us=600.0),)}, None),
        (
            {"enqueues": (Enqueue(wall_us=1e3, cpu_us=10.0), Enqueue(wall_us=10.0, cpu_us=10.0))},
            None,
        ),
        (changed("outputs", late=1), Fault.SIDE_STREAM),
        (changed("outputs", untouched=1), Fault.CACHED),
        (changed("outputs", stale=1), Fault.CACHED),
        (changed("outputs", wrong=1), Fault.SKIPPED),
        (changed("placement", persisting_before=1), Fault.PERSISTING),
        (changed("placement", persisting_after=1), Fault.PERSISTING),
        (changed("placement", shared_bytes=1), Fault.WARM),
        (changed("placement", apart_bytes=(8 << 20) - 1), Fault.WARM),
        (changed("operands", zero_bits=0.56), Fault.SPARSE),
        (changed("operands", differing_bytes=1), Fault.ALTERED),
    ],
)
def test_doubts_follow_from_facts(other: dict[str, Any], fault: Fault | None) -> None:
    found = doubts(facts(**other))
    assert [doubt.fault for doubt in found] == ([fault] if fault else [])


def test_a_doubt_names_its_fault() -> None:
    doubt = Doubt(fault=Fault.PERSISTING, evidence="1 bytes of it are set aside")
    assert str(doubt) == "persisting L2: 1 bytes of it are set aside"


def test_addresses_are_counted_once() -> None:
    assert covered([]) == 0
    assert covered([(10, 5), (12, 1), (14, 3), (20, 2)]) == 9
    apart = [[(0, 4), (10, 2)], [(100, 4), (110, 2)], [(200, 4), (210, 2)]]
    assert overlap(apart) == (0, 12)
    assert overlap([[(0, 4)], [(0, 4)], [(2, 4)]]) == (6, 2)


def test_every_output_element_counts_once() -> None:
    poison, expected, exchanged = 9, np.array([1, 2, 3, 4, 5, 6]), np.array([7, 7, 7, 7, 7, 6])
    at_stop = np.array([1, 9, 9, 9, 9, 9])
    end = np.array([1, 2, 9, 7, 8, 6])
    assert compare(end, at_stop, expected, exchanged, poison) == Outputs(
        elements=6, late=2, untouched=1, stale=1, wrong=1
    )
