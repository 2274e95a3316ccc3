"""Every way to time wrongly that the benchmark must notice, done on the CPU; and honest timing.

All are done for real but persisting L2, which a CPU has not: there a rig, or a played driver, reports it.
"""

from __future__ import annotations

import ctypes
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import test_bench
from pydantic import ValidationError

from lanecheck.bench import correctness, cost, cuda_graph, cuda_rig, inquiry, race, timing
from lanecheck.bench.asking import Asking
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
from lanecheck.bench.host_rig import HostChain, HostHeld, HostRig
from lanecheck.bench.inquiry import classified, covered, overlap
from lanecheck.bench.model import Row, Timing
from lanecheck.bench.plan import Workload, lay_out
from lanecheck.bench.race import MODE_ROUNDS, Contender, HeldBack, Rivals, row
from lanecheck.bench.rig import COLD_SINGLE, WARM_CHAIN, Rig
from lanecheck.bench.timing import GRAPH_LAUNCHES, Chain, Launch, Sample, event_timer, turns
from lanecheck.subject import Bits, Buffer, Draw, Params, Subject, Tensor
from lanecheck.subject import Product as MatrixProduct
from lanecheck.trial import Target
from lanecheck.verdict import Outcome

PARAMS: Params = {"m": 2, "n": 96, "k": 256}
L2 = 16 << 10  # bytes; the operands are some 50 KB, so they rotate over few copies
ROUNDS = 5


class Gemv(Subject):
    """``y = x · Wᵀ`` in numpy over packed weights. Subclasses cheat as soon as they are benchmarked, and no
    sooner: then every oracle has found them right."""

    name = "gemv"
    benchmarked = False

    def passes(self, done: Any = None) -> None:
        """Called after each launch of a ceiling."""

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


def bench(subject: Gemv, rig: Rig | None = None, held_back: HeldBack = tuple) -> Row:
    """One row of the record, by the machinery that times GPUs."""
    workload = Workload(subject, PARAMS, seed=3)

    def enter(copies: int) -> Rivals:
        subject.benchmarked = True
        buffers = [np.ones(workload.bytes, np.uint8) for _ in range(copies)]
        total = np.zeros((), np.uint8)

        def read(buffer: npt.NDArray[np.uint8]) -> Launch:
            return lambda stream: subject.passes(buffer.sum(initial=0, out=total))

        def double(buffer: npt.NDArray[np.uint8]) -> Launch:
            half = buffer.size // 2
            return lambda stream: subject.passes(np.copyto(buffer[:half], buffer[half : 2 * half]))

        return Rivals(
            Contender("read", [*map(read, buffers)]), Contender("copy", [*map(double, buffers)])
        )

    rng = random.Random(0)
    return row(workload, Target("…"), rig or host(), enter, ROUNDS, rng, held_back)


def host() -> HostRig:
    return HostRig(None, "9.0", L2)


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


class Looks(Gemv):
    """Computes where the output does not look computed."""

    def cheat(self, x: Bits, w: Bits, y: Bits) -> None:
        if not (0 < np.abs(y.view(np.float32)).max() < 1e4):
            compute(x, w, y)


class Recognizes(Gemv):
    """Computes where the input is another than that of the launch before over the same output."""

    def __init__(self) -> None:
        self.seen: dict[int, bytes] = {}

    def cheat(self, x: Bits, w: Bits, y: Bits) -> None:
        if self.seen.get(y.ctypes.data) != x.tobytes():
            self.seen[y.ctypes.data] = x.tobytes()
            compute(x, w, y)


class Rounds(Gemv):
    """Drops two bits of each weight, but where few columns are judged. Not a cheat of the timing."""

    def launch(
        self, library: Any, params: Params, buffers: Mapping[str, Buffer], stream: int
    ) -> str | None:
        x, w, y = (buffers[name].elements for name in ("x", "packed", "y"))
        assert x is not None and w is not None and y is not None
        compute(x, w & 0xFFFC if len(w) > 64 else w, y)
        return None


class Defers(Gemv):
    """Hands the work to a thread, which does it once nobody looks, however busy the CPU is."""

    def __init__(self) -> None:
        self.unseen = threading.Event()
        self.threads: list[threading.Thread] = []

    def cheat(self, x: Bits, w: Bits, y: Bits) -> None:
        def work() -> None:
            self.unseen.wait()
            compute(x, w, y)

        self.threads.append(threading.Thread(target=work))
        self.threads[-1].start()

    def rest(self, seconds: float) -> None:
        """In place of sleeping so long: the threads are done by then."""
        self.unseen.set()
        while self.threads:
            self.threads.pop().join()
        self.unseen.clear()


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
    def hold(self, tensor: Tensor, values: Bits | None, copies: int) -> HostHeld:
        held = super().hold(tensor, values, 1)
        held.addresses *= copies
        held.elements = np.broadcast_to(held.elements, (copies, *tensor.shape))
        held.elements.flags.writeable = True
        return held


class SetAsideRig(HostRig):
    def persisting_bytes(self) -> int | None:
        return 1 << 20


class PersistingRig(HostRig):
    def persisting_launches(self, chain: HostChain) -> int | None:
        return chain.launches


class Worker(HostRig):
    """A device of its own beside the host, as a GPU is: launches queue up, and are waited for or not."""

    def __init__(self, waits: bool) -> None:
        super().__init__(None, "9.0", L2)
        self.waits = waits
        self.pool = ThreadPoolExecutor(1)
        self.queue: list[Future[None]] = []

    def enqueue(self, launch: Launch) -> None:
        self.queue.append(self.pool.submit(launch, 0))

    def settle(self) -> None:
        wait(self.queue)
        self.queue.clear()

    def chain(self, launches: Sequence[Launch], turns: int | None = None) -> Any:
        return WorkerChain(self, [*launches] * (turns or 1))

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
        (Looks, Fault.CACHED),
        (Recognizes, Fault.CACHED),
        (Skips, Fault.SKIPPED),
        (Thins, Fault.SPARSE),
        (Thins, Fault.ALTERED),
        (Aliases, Fault.SKIPPED),
    ],
)
def test_a_cheating_launch_is_flagged(subject: type[Gemv], fault: Fault) -> None:
    assert fault in faults(bench(subject()))


def test_work_that_comes_after_the_launch_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Defers()
    monkeypatch.setattr(time, "sleep", subject.rest)
    assert Fault.SIDE_STREAM in faults(bench(subject))
    subject.rest(0)  # leave no thread behind


def test_a_kernel_that_is_imprecise_at_full_size_is_not_timed() -> None:
    found = bench(Rounds())
    assert found.timing is None
    assert str(found.void).startswith("not shown correct: precision: fail: ")


def test_copies_that_are_one_are_flagged() -> None:
    assert Fault.WARM in faults(bench(Gemv(), AliasingRig(None, "9.0", L2)))


@pytest.mark.parametrize("rig", [SetAsideRig, PersistingRig])
def test_persisting_l2_is_flagged(rig: type[HostRig]) -> None:
    assert Fault.PERSISTING in faults(bench(Gemv(), rig(None, "9.0", L2)))


def test_a_timer_that_does_not_wait_is_flagged() -> None:
    assert Fault.UNSYNCHRONIZED in faults(bench(Gemv(), Worker(waits=False)))


class Ticks(Gemv):
    """Time passes where something is launched, and nowhere else, however busy the CPU is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        for clock in ("perf_counter_ns", "thread_time_ns"):
            monkeypatch.setattr(time, clock, lambda: self.now)

    def passes(self, done: Any = None) -> None:
        self.now += 100_000  # nanoseconds

    def launch(self, *given: Any) -> str | None:
        self.passes()
        return super().launch(*given)


@pytest.mark.parametrize("rig", [lambda: host(), lambda: Worker(waits=True)])
def test_honest_timing_is_not_flagged(
    rig: Callable[[], Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert faults(bench(Ticks(monkeypatch), rig())) == set()


# The path of a GPU, as far as it can be walked without one -------------------------------------


class Device:
    """CUDA as torch shows it, played by the CPU. What is submitted runs at once, or whenever the graph does
    that is being captured; it is as well the subject's library, and the driver. By its own clock everything
    that is submitted takes as long, however busy the CPU is.

    Attributes:
        clock: in seconds.
        persisting: what the driver sets aside of the L2.
        windows: of the graph's kernels, the bytes and the property of an access policy window.
    """

    def __init__(self) -> None:
        self.captured: list[Callable[[], None]] | None = None
        self.us = 0
        self.clock: Callable[[], float] = lambda: self.us / 1e6
        self.persisting = 3 << 20
        self.windows = [(0, 0), (0, 0)]

    def submit(self, work: Callable[[], None]) -> None:
        self.run(work) if self.captured is None else self.captured.append(work)

    def run(self, work: Callable[[], None]) -> None:
        work()
        self.us += 100

    def cuCtxGetLimit(self, value: Any, limit: int) -> int:
        assert limit == 6  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE
        value._obj.value = self.persisting
        return 0

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:
        assert graph.value == 1
        count._obj.value = 1 + len(self.windows)
        for index in range(count._obj.value if nodes else 0):
            nodes[index] = 100 + index
        return 0

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> int:
        kind._obj.value = 0 if node.value > 100 else 2  # the first of them copies memory
        return 0

    def cuGraphKernelNodeGetAttribute(self, node: Any, attribute: int, value: Any) -> int:
        assert attribute == 1 and ctypes.sizeof(value._obj) == 64  # of CUlaunchAttributeValue
        value._obj.size, value._obj.hit = self.windows[node.value - 101]
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
            self.at = played.clock()
            played.us += 1

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
        def __init__(self, keep_graph: bool) -> None:
            assert keep_graph

        def instantiate(self) -> None:
            pass

        def raw_cuda_graph(self) -> int:
            return 1

        def capture_begin(self) -> None:
            played.captured = []

        def capture_end(self) -> None:
            self.work, played.captured = played.captured or [], None

        def replay(self) -> None:
            for work in self.work:
                played.run(work)

    @contextmanager
    def current(stream: Stream) -> Iterator[None]:
        yield

    for kind in (Event, Stream, CUDAGraph):
        monkeypatch.setattr(torch.cuda, kind.__name__, kind)
    monkeypatch.setattr(torch.cuda, "stream", current)
    for name in ("synchronize", "current_stream", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    for name in ("zeros", "randn", "randint"):
        make = getattr(torch, name)
        monkeypatch.setattr(
            torch, name, lambda *given, make=make, device, **more: make(*given, **more)
        )
    generator = torch.Generator
    monkeypatch.setattr(torch, "Generator", lambda device: generator())

    def nanoseconds() -> int:
        return round(1e9 * played.clock())

    alone = SimpleNamespace(
        perf_counter_ns=nanoseconds, thread_time_ns=nanoseconds, sleep=lambda seconds: None
    )
    monkeypatch.setattr(inquiry, "time", alone)
    monkeypatch.setattr(cuda_rig, "ctypes", SimpleNamespace(CDLL=lambda name: played))
    monkeypatch.setattr(cuda_graph, "_driver", lambda: played)
    return played


def test_the_path_of_a_gpu_records_all_and_flags_what_is_not_in_the_graph(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaRig, "copies", lambda self, size: 9)
    rig = CudaRig(Path("library.so"), L2)
    sound = bench(OnDevice(), rig)
    assert faults(sound) == set()
    assert sound.timing is not None and "cuda graph" in sound.timing.method
    assert sound.timing.facts is not None
    for each in sound.timing.facts.doublings:
        assert each.twice_us == pytest.approx(2 * each.once_us, rel=0.01)
    assert sound.timing.facts.placement.persisting_after == 0
    assert sound.timing.facts.outputs.elements == 3 * 9 * 2 * 96
    assert Fault.CACHED in faults(bench(OnDevice(beside=True), rig))
    device.windows[1] = 1 << 20, 2  # CU_ACCESS_PROPERTY_PERSISTING
    assert faults(bench(OnDevice(), rig)) == {Fault.PERSISTING}
    device.windows[1] = 1 << 20, 1  # CU_ACCESS_PROPERTY_STREAMING
    assert faults(bench(OnDevice(), rig)) == set()
    device.persisting += 1 << 20
    assert faults(bench(OnDevice(), rig)) == {Fault.PERSISTING}


def test_the_cost_follows_size_and_rounds_and_the_log_corrects_the_rule() -> None:
    few, many = (cost.seconds(2**25, rounds, 4800.0, patience=0) for rounds in (1, 101))
    launches = 19 * 4  # turns over the copies that fill 600 MB
    replay = launches * (2e-6 + 2**25 / 4.8e12)
    contenders = 3 + len(Asking(0).peers)
    assert many - few == pytest.approx(100 * 2 * contenders * replay)
    assert cost.seconds(2**30, 1, 4800.0, patience=0) > few
    patient = cost.seconds(2**25, 1, 4800.0, patience=10)
    compiled = cost.seconds(2**25, 1, 4800.0, patience=10, compiled=True)
    assert patient - compiled == pytest.approx(cost.compiling(10)) and compiled > few
    many_cpus, few_cpus = (cost.ahead([10.0] * 8 + [0.0], cpus) for cpus in (16, 4))
    assert few_cpus - many_cpus == pytest.approx(8 * cost.compiling(10) * (1 / 4 - 1 / 16))
    slow, many = cost.seconds(2**25, 1000, 300.0, patience=10), cost.limit(2**25, 1000, 10)
    assert many > cost.SLACK_S + slow  # of an L4; many rounds are no hang
    assert cost.estimate([10.0, 20.0], []) == 30.0
    assert cost.estimate([10.0, 20.0], [(10.0, 5.0), (8.0, 4.0), (1.0, 9.0)]) == 15.0


def test_a_timer_for_pytest_benchmark(device: Device) -> None:
    device.clock = time.perf_counter
    start = event_timer()
    time.sleep(0.005)
    assert 0.005 <= event_timer() - start < 1
    precision = pytest.importorskip("pytest_benchmark.timers").compute_timer_precision(event_timer)
    assert 0 < precision < 0.001


# What keeps a shape from being timed -----------------------------------------------------------


@pytest.mark.parametrize("oracle", ["stability", "poison"])
def test_what_ordinary_values_show_at_full_size_keeps_a_shape_from_being_timed(
    oracle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched, calls = correctness._launched, count(1)

    def faulty(workload: Workload, rig: Rig, values: Mapping[str, Bits]) -> dict[str, Bits]:
        found, call = launched(workload, rig, values), next(calls)
        (name, tensor), *_ = workload.named("output").items()
        if oracle == "poison" and call > 1:  # the first has exact integers
            found[name][0, 0] = rig.poison(tensor)
        if oracle == "stability" and call == 3:  # the second of the same values
            found[name][0, 0] ^= 1
        return found

    monkeypatch.setattr(correctness, "_launched", faulty)
    wrong = bench(Gemv())
    assert wrong.timing is None and f"not shown correct: {oracle}: fail: 1 output" in str(
        wrong.void
    )


@pytest.mark.parametrize(
    ("dtype", "factor", "precise"),
    [
        *(("bf16", factor, True) for factor in (1.0, 1.0003, 0.9997)),
        *(("bf16", factor, False) for factor in (1.002, 0.998, math.nan)),
        *(("fp32", factor, abs(factor - 1) < 2**-13) for factor in (1.0, 1.0001, 1.00015)),
    ],
)
def test_sums_may_err_by_what_one_rounding_costs_and_hardly_more(
    dtype: str, factor: float, precise: bool
) -> None:
    class Stored(Gemv):
        def tensors(self, params: Params) -> list[Tensor]:
            *others, y = super().tensors(params)
            return [*others, replace(y, dtype=dtype)]

        def traffic(self, params: Params) -> int:
            return 1

    rig, workload = host(), Workload(Stored(), PARAMS, seed=3)
    values = workload.drawn(rig)
    ((name, tensor),) = workload.named("output").items()
    (product,) = workload.subject.products(PARAMS)
    bits = rig.stored(factor * rig.summed(product, values), tensor)
    (judged,) = correctness._precise(workload, rig, values, {name: bits})
    assert (judged.outcome is Outcome.PASS) is precise, judged.evidence


def test_operands_are_looked_at_in_every_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquiry, "_PIECE", 1)
    rig, workload = host(), Workload(Gemv(), PARAMS, seed=3)
    values = workload.drawn(rig)
    inputs = {name: values[name] for name in workload.named("input", "packed")}
    expected: Any = SimpleNamespace(inputs=inputs)
    copies = lay_out(workload, rig, inputs, 3)
    assert inquiry._operands(workload, copies, expected).differing == 0
    copies.held["packed"].elements[-1, 0, 0] ^= 1
    assert inquiry._operands(workload, copies, expected).differing == 1


def test_a_gpu_that_is_held_back_in_every_round_times_nothing_and_blames_nobody() -> None:
    found = bench(Gemv(), held_back=lambda: ("heat",))
    assert found.timing is None and found.unsettled and not found.disproven
    assert found.untimed == f"the GPU was held back in {ROUNDS} of {ROUNDS} rounds (heat)"


def test_a_gpu_that_is_held_back_after_the_race_lacks_the_other_modes() -> None:
    asked = count(1)
    timing = bench(Gemv(), held_back=lambda: ("heat",) if next(asked) > 3 * ROUNDS else ()).timing
    assert timing is not None and timing.discarded == 0 and timing.modes == ()
    reasons = {each.name: each.reason for each in timing.absent}
    said = f"the GPU was held back in {MODE_ROUNDS} of {MODE_ROUNDS} rounds (heat)"
    assert reasons[COLD_SINGLE] == said


@pytest.mark.parametrize("steady", [True, False])
def test_only_where_the_subject_is_not_steady_nobody_rests(
    steady: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Timing] = []

    def unrested(timing: Timing, *given: Any) -> Timing:
        asked.append(timing)
        return timing

    monkeypatch.setattr(race, "unrested", unrested)
    monkeypatch.setattr(Timing, "steady", property(lambda timing: steady))
    assert bench(Gemv()).timing and bool(asked) is not steady


# The record -----------------------------------------------------------------------------------


def test_modes_are_recorded_apart_each_with_its_method() -> None:
    measured = bench(Gemv()).timing
    assert measured is not None
    assert [mode.name for mode in measured.modes] == [COLD_SINGLE]
    assert [each.name for each in measured.absent] == [WARM_CHAIN]
    assert "do not stay in an L2 of 16384" in measured.absent[0].reason
    large = bench(Gemv(), HostRig(None, "9.0", 1 << 20)).timing
    assert large is not None and large.absent == ()
    methods = {mode.name: mode.detail for mode in large.modes} | {"main": large.method}
    assert set(methods) == {COLD_SINGLE, WARM_CHAIN, "main"} and len(set(methods.values())) == 3
    assert large.copy_ceiling is not None and large.copy_ceiling.name == "copy"


def test_a_single_launch_comes_after_a_cold_chain_and_a_warm_chain_is_of_one_copy() -> None:
    chains: list[list[Launch]] = []
    singles: list[tuple[int, Launch]] = []

    class Recording(HostRig):
        def chain(self, launches: Sequence[Launch], turns: int | None = None) -> HostChain:
            chains.append([*launches])
            return super().chain(launches, turns)

        def single(self, before: HostChain, launch: Launch) -> Sample:
            singles.append((len({*before._launches}), launch))
            return super().single(before, launch)

    timing = bench(Gemv(), Recording(None, "9.0", 1 << 20)).timing
    assert timing is not None and timing.copies > 1
    ((copies, launch),) = singles
    assert copies == timing.copies
    assert [each for each in chains if len({*each}) == 1] == [[launch] * GRAPH_LAUNCHES]


def test_a_record_may_not_hide_its_doubts() -> None:
    flagged = bench(Skips())
    assert flagged.void is not None
    with pytest.raises(ValidationError, match="void is None, but the evidence says"):
        Row.model_validate(flagged.model_dump() | {"void": None})
    assert Row.model_validate_json(flagged.model_dump_json()) == flagged


# What follows from facts ----------------------------------------------------------------------


def facts(**other: Any) -> Facts:
    sound: dict[str, Any] = {
        "operands": Operands(elements=10, differing=0, zero_bits=0.39),
        "placement": Placement(
            shared_bytes=0,
            apart_bytes=8 << 20,
            l2_bytes=1 << 20,
            persisting_before=0,
            persisting_after=None,
            persisting_launches=None,
        ),
        "outputs": Outputs(elements=8, late=0, untouched=0, stale=0, wrong=0),
        "replays": (Replay(timed_us=90.0, wall_us=100.0),),
        "doublings": (Doubling(once_us=90.0, twice_us=179.0),),
        "enqueues": (Enqueue(wall_us=12.0, cpu_us=11.0),),
    }
    return Facts(**sound | other)


def changed(part: str, **values: Any) -> dict[str, Any]:
    return {part: getattr(facts(), part).model_copy(update=values)}


@pytest.fixture(autouse=True)
def hardly_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded CPU is not steady, and then every contender would run for WINDOW_US, and again."""
    monkeypatch.setattr(timing, "WINDOW_US", 1000.0)


class Tiring:
    """A chain of two launches that takes 100 µs, and some more with each of so many runs."""

    launches = 2

    def __init__(self, more: float, until: int = 10**6) -> None:
        self.more, self.until, self.runs = more, until, 0

    def enqueue(self) -> None:
        self.runs += 1

    def time(self) -> float:
        self.runs += 1
        return 100.0 + self.more * min(self.runs, self.until)


def test_without_a_rest_a_chain_runs_until_its_time_settles() -> None:
    steady = Tiring(more=0.0)
    assert timing.without_rest(steady) == 50.0 and steady.runs == 1 + 2 * (2 * 6)
    settling = Tiring(more=10.0, until=20)
    # 5 tries in a window, of two runs each: the second ends with run 21, the third is like the fourth
    assert timing.without_rest(settling) == 150.0 and settling.runs == 1 + 4 * 10
    restless = Tiring(more=10.0)
    timing.without_rest(restless)
    assert restless.runs == 1 + timing.WINDOWS * 10


def test_where_the_subject_is_not_steady_every_contender_is_timed_without_a_rest() -> None:
    measured = test_bench.timed([test_bench.passed()], linear=(12.0, 12.0, 12.0)).timing
    assert measured is not None and measured.fastest_sustained is None
    copying = measured.ceiling.model_copy(update={"name": "copy"})
    raced = measured.model_copy(update={"copy_ceiling": copying})
    fast, slow = Tiring(0.0), Tiring(10.0, until=20)
    found = race.unrested(raced, [slow, fast, fast, fast], random.Random(0))
    assert [each.sustained_us for each in found.contenders] == [150.0, 50.0, 50.0, 50.0]
    assert found.subject.slowed == pytest.approx(150 / 11)
    assert found.fastest_sustained == ("linear", pytest.approx(50 / 150))
    assert found.speedup == raced.speedup
    peers = tuple(
        found.peers[0].model_copy(update={"name": name, "sustained_us": us})
        for name, us in (("a", 120.0), ("b", 75.0), ("c", 90.0))
    )
    assert found.model_copy(update={"peers": peers}).fastest_sustained == ("b", 0.5)


def test_the_order_without_a_rest_is_drawn() -> None:
    measured = test_bench.timed([test_bench.passed()]).timing
    assert measured is not None
    chains = [Tiring(0.0) for _ in range(4)]
    raced = measured.model_copy(update={"copy_ceiling": measured.ceiling})
    firsts = set()
    for seed in range(20):
        ran: list[int] = []
        for index, chain in enumerate(chains):
            chain.enqueue = partial(ran.append, index)  # type: ignore[method-assign]
        race.unrested(raced, chains, random.Random(seed))
        firsts.add(ran[0])
    assert firsts == {0, 1, 2, 3}


@pytest.mark.parametrize("launches", [20, None])
def test_a_time_that_changes_without_a_rest_is_not_steady(launches: int | None) -> None:
    number = launches or 3 * turns(3)  # of an old record: so many turns over three copies

    def alone(us: float, odd: float = 99) -> Timing:
        tries = [
            Doubling(once_us=number * each, twice_us=number * 2 * each) for each in (us, odd, us)
        ]
        timing = test_bench.timed(
            [test_bench.passed()], facts=facts(doublings=(*tries,), launches=launches)
        ).timing
        assert timing is not None and timing.subject.time_us.median == 11
        own = timing.subject.model_copy(update={"samples_us": (11.0, 11.0, 11.0)})
        return timing.model_copy(update={"subject": own})

    assert alone(11.0).sustained == pytest.approx(1) and alone(11.2).steady and alone(10.8).steady
    assert alone(11.3).sustained == pytest.approx(11.3 / 11)
    assert not alone(11.3).steady and not alone(10.7).steady
    assert alone(11.0, odd=1).steady
    none = test_bench.timed([test_bench.passed()]).timing
    assert none is not None and none.sustained is None
    own = none.subject.model_copy(update={"samples_us": (11.0, 11.0, 11.0)})
    assert none.model_copy(update={"subject": own}).steady


def test_a_time_that_drifts_while_the_others_have_their_turns_is_not_steady() -> None:
    def raced(*samples: float) -> Timing:
        found = test_bench.timed([test_bench.passed()]).timing
        assert found is not None
        own = found.subject.model_copy(update={"samples_us": samples})
        return found.model_copy(update={"subject": own})

    assert raced(10, 13, 10, 9, 8, 10, 11, 10, 10).steady and raced(10).steady  # noise is none
    assert raced(10, 10, 11, 11, 12, 12).drift == 1.2
    assert raced(*[10] * 7, 13, 13).drift == 1.3  # of thirds
    assert not raced(10, 10, 10, 10, 10.3, 10.3).steady
    assert not raced(10, 10, 10, 10, 9.7, 9.7).steady


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
        (
            {
                "doublings": (
                    Doubling(once_us=90.0, twice_us=179.0),
                    Doubling(once_us=300.0, twice_us=180.0),
                )
            },
            None,
        ),
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
        (changed("placement", persisting_launches=1), Fault.PERSISTING),
        (changed("placement", shared_bytes=1), Fault.WARM),
        (changed("placement", apart_bytes=(8 << 20) - 1), Fault.WARM),
        (changed("operands", zero_bits=0.56), Fault.SPARSE),
        (changed("operands", differing=1), Fault.ALTERED),
    ],
)
def test_doubts_follow_from_facts(other: dict[str, Any], fault: Fault | None) -> None:
    found = doubts(facts(**other))
    assert [doubt.fault for doubt in found] == ([fault] if fault else [])


def test_a_doubt_names_its_fault() -> None:
    doubt = Doubt(fault=Fault.PERSISTING, evidence="1 bytes of it are set aside")
    assert str(doubt) == "persisting L2: 1 bytes of it are set aside"


def test_addresses_are_counted_once() -> None:
    assert covered([(20, 2), (10, 5), (12, 1)]) == 7
    assert covered([]) == 0
    assert covered([(10, 5), (12, 1), (14, 3), (20, 2)]) == 9
    apart = [[(0, 4), (10, 2)], [(100, 4), (110, 2)], [(200, 4), (210, 2)]]
    assert overlap(apart) == (0, 12)
    assert overlap([[(0, 4)], [(0, 4)], [(2, 4)]]) == (6, 2)


def test_every_output_element_counts_once() -> None:
    poison, expected, exchanged = 9, np.array([1, 2, 3, 4, 5, 6]), np.array([7, 7, 7, 7, 7, 6])
    at_stop = np.array([1, 5, 9, 9, 9, 9])  # the second is half done
    end = np.array([1, 2, 9, 7, 8, 6])
    assert classified(end, at_stop, expected, exchanged, poison) == Outputs(
        elements=6, late=2, untouched=1, stale=1, wrong=1
    )
