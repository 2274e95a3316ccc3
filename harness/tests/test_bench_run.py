"""A whole run over a played device: its record, its log, and what becomes of a shape whose process ends."""

from __future__ import annotations

import gc
import importlib
import io
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, TimeoutError
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import test_bench
import test_bench_doubts
from listening import Heard
from pebble import ProcessExpired
from rich.console import Console
from test_bench_doubts import L2, PARAMS, ROUNDS, Device, OnDevice

from lanecheck import gpu
from lanecheck.bench import asking, cost, log, race, run, worker
from lanecheck.bench.asking import Asking
from lanecheck.bench.cuda_rig import CudaRig
from lanecheck.bench.journal import Cut
from lanecheck.bench.model import BenchRecord, Row
from lanecheck.bench.peers import PEERS, Peer, Unavailable
from lanecheck.bench.rig import WARM_CHAIN
from lanecheck.bench.table import render
from lanecheck.bench.timing import Launch
from lanecheck.errors import BadInput, CannotRun
from lanecheck.subject import Params, title
from lanecheck.trial import Target

device, hardly_a_rest = test_bench_doubts.device, test_bench_doubts.hardly_a_rest


LIMIT = cost.limit(OnDevice().traffic(PARAMS), ROUNDS, 0.0)
LATE = f"no end within {LIMIT:.0f} s"


class Inline:
    """A pool whose worker is this process. ``deaths`` are what ends it, by number of the attempt."""

    def __init__(self) -> None:
        self.deaths: Mapping[int, Exception] = {}
        self.shapes = self.exits = 0

    def schedule(self, ask: Callable[..., Any], given: Any, timeout: float) -> Future[Any]:
        future: Future[Any] = Future()
        if ask is os._exit:
            self.exits += 1
            return future
        self.shapes += bool(given)
        assert timeout == pytest.approx(LIMIT if given else run.STARTING, rel=1e-3)
        try:
            if given and self.shapes in self.deaths:
                raise self.deaths[self.shapes]
            future.set_result(ask(*given))
        except Exception as death:
            future.set_exception(death)
        return future


class Cutting(Heard):
    """Interrupts after two rows."""

    def advance(self, done: float, note: str = "") -> None:
        super().advance(done, note)
        if done == 2:
            raise KeyboardInterrupt


@dataclass
class Machine:
    """Where a whole run finds its subject on the played device."""

    library: Path
    log: Path
    pool: Inline = field(default_factory=Inline)

    def run(
        self,
        shapes: Sequence[Params] = (PARAMS,),
        rounds: int = ROUNDS,
        listener: Heard | None = None,
    ) -> BenchRecord:
        return run.run(
            "a:SUBJECT",
            self.library,
            [gpu.Gpu("NVIDIA H200", "9.0", "GPU-1")],
            [(params, 0.0) for params in shapes],
            rounds=rounds,
            log=self.log,
            listener=listener or Heard(),
        )


@pytest.fixture
def machine(device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    import torch

    def reads(size: int, copies: int, *rest: Any) -> tuple[str, list[Launch]]:
        buffers = [np.ones(size, np.uint8) for _ in range(copies)]
        return "a loop", [lambda stream, b=b: device.submit(b.any) for b in buffers]  # type: ignore[misc]

    environment = test_bench.record(test_bench.timed([test_bench.passed()])).environment
    described = environment.model_copy(update={"l2_bytes": L2}), "GPU-1"
    found = Machine(tmp_path / "library.so", tmp_path / "log.jsonl")
    found.library.write_bytes(b"")
    subject = OnDevice()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # of the locks of GPUs
    for module, values in {
        log: {"load": lambda reference: subject},
        run: {
            "load": lambda reference: subject,
            "build": lambda *given: found.library,
            "pool_of": lambda *given: nullcontext(found.pool),
        },
        worker: {
            "load": lambda reference: subject,
            "described": lambda: described,
            "cuda_torch": lambda: torch,
            "Ceiling": lambda *given: SimpleNamespace(reading=reads, copying=reads),
            "Target": lambda *given: Target("…"),
        },
    }.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    worker._instruments.cache_clear()
    monkeypatch.setattr(CudaRig, "copies", lambda self, size: 9)
    return found


def test_a_whole_run_makes_a_record(machine: Machine) -> None:
    heard = Heard()
    record = machine.run(listener=heard)
    (only,) = record.rows
    assert record.valid and heard.stages == [("start", None), ("bench", 1)]
    assert heard.notes == [title(PARAMS)] and heard.said == ["1 shapes on GPU"]
    assert heard.good == [True]
    assert only.params == PARAMS and only.timing is not None
    assert only.unit == gpu.unit("GPU-1") and only.telemetry is not None
    assert only.timing.copies == 9 and only.timing.copy_ceiling is not None
    absent = {each.name: each.reason for each in only.timing.absent}
    assert all("FP32" in reason for name, reason in absent.items() if name != WARM_CHAIN)
    assert "FP32" in absent["F.linear"]
    out = io.StringIO()
    Console(file=out, width=200).print(render(record))
    assert "alone µs" in out.getvalue() and "void" not in out.getvalue()


def test_a_cut_run_goes_on_with_the_shapes_that_its_log_lacks(machine: Machine) -> None:
    shapes = [{**PARAMS, "m": m} for m in (1, 2, 3)]
    cut, rest = Cutting(), Heard()
    with pytest.raises(Cut, match="goes on from"):
        machine.run(shapes, listener=cut)
    whole = machine.log.read_bytes()
    machine.log.write_bytes(whole + b'{"seconds": 1, "row": {"par')  # and a line that was cut
    record = machine.run(shapes, listener=rest)
    assert [*cut.notes, *rest.notes] == [title(params) for params in shapes]
    assert rest.stages[-1] == ("bench", 1)
    assert [row.params for row in record.rows] == shapes
    with pytest.raises(BadInput, match=r"of another run \(another rounds\): name another --log"):
        machine.run(shapes, rounds=ROUNDS + 1)


@pytest.mark.parametrize("row", [1, 2])
def test_the_log_of_another_driver_is_refused(machine: Machine, row: int) -> None:
    machine.run([{**PARAMS, "m": 1}, PARAMS])
    lines = machine.log.read_text().splitlines(keepends=True)
    lines[row] = lines[row].replace('"torch":"2.11"', '"torch":"2.12"')
    machine.log.write_text("".join(lines))
    with pytest.raises(BadInput, match="another driver, torch or GPU: name another --log"):
        machine.run()


def test_the_log_of_other_code_or_other_peers_is_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = machine.run()
    monkeypatch.setattr(log.peers, "versions", lambda: {"gemlite": "0.6"})
    monkeypatch.setattr(log, "sources", lambda reference, subject: {"subject.py": "0"})
    with pytest.raises(BadInput, match=r"\(another benchmark, versions\): name another --log"):
        machine.run()
    machine.log.unlink()
    other = machine.run()
    assert other.versions == {"gemlite": "0.6"} and other.benchmark != record.benchmark
    before = other.model_dump(exclude={"versions", "benchmark"})
    assert BenchRecord.model_validate(before).versions == {}


def test_a_subjects_own_files_are_told_apart_without_what_its_library_is_compiled_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "of_two_files"
    (package / "csrc").mkdir(parents=True)
    for name in ("__init__.py", "subject.py", "csrc/kernel.cu"):
        (package / name).write_text("")
    (tmp_path / "of_one_file.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    compiled: Any = SimpleNamespace(recipe=SimpleNamespace(root=package / "csrc"))
    for name in ("of_two_files", "of_one_file"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.import_module(name)
    assert [*log.sources("of_two_files.subject:A", compiled)] == ["__init__.py", "subject.py"]
    before = log.sources("of_one_file:A", OnDevice())
    assert [*before] == ["of_one_file.py", "of_two_files/__init__.py"]
    (tmp_path / "of_one_file.py").write_text("changed = True")
    assert log.sources("of_one_file:A", OnDevice()) != before


def test_gpus_that_differ_are_named_by_what_differs() -> None:
    one = test_bench.record(test_bench.timed([test_bench.passed()])).environment
    pools: Any = [Inline(), Inline()]
    for pool, gpu_memory in zip(pools, (80, 94)):
        answer = one.model_copy(update={"memory_bytes": gpu_memory})
        pool.schedule = lambda *given, answer=answer, **more: done(answer)
    expected = "table: memory_bytes 80 and 94; CUDA_VISIBLE_DEVICES chooses among them"
    with pytest.raises(CannotRun, match=expected):
        run._environment(pools)


def done(answer: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(answer)
    return future


ILLEGAL = RuntimeError("CUDA error:\nan illegal access")
FULL = RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")


@pytest.mark.parametrize(
    ("failure", "evidence", "exits"),
    [
        (ProcessExpired("Abnormal termination", code=-11), "the process ended with -11", 0),
        (TimeoutError(), LATE, 0),
        (ILLEGAL, "CUDA error: an illegal access", 1),
        (FULL, str(FULL), 1),
    ],
)
def test_what_ends_an_attempt_with_peers_is_no_verdict_on_the_subject(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    evidence: str,
    exits: int,
) -> None:
    monkeypatch.setattr(race.Product, "of", lambda workload, values: None)  # as if it were BF16
    monkeypatch.setattr(Peer, "launches", lambda self, product, copies: [])
    machine.pool.deaths = {1: failure}
    first, second = machine.run([{**PARAMS, "m": 1}, PARAMS]).rows
    assert first.void is None and first.timing and not first.timing.peers
    absent = {each.name: each.reason for each in first.timing.absent if each.name != WARM_CHAIN}
    assert [*absent] == [peer.name for peer in PEERS]
    assert set(absent.values()) == {f"an attempt with peers failed: {evidence}"}
    assert second.timing and "failed" not in second.timing.absent[0].reason
    assert machine.pool.shapes == 3 and machine.pool.exits == exits
    again, same = machine.run([{**PARAMS, "m": 1}, PARAMS]).rows  # with the peers that it lacks
    assert again.timing and "attempt" not in again.timing.absent[0].reason
    assert same == second and machine.pool.shapes == 4


SEGFAULT = ProcessExpired("Abnormal termination", code=-11)
SHAPES: list[Params] = [{**PARAMS, "m": m} for m in (1, 2, 3, 4)]


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], None]]:
    """Peers whose code can be given here, by name; the others are ready at once."""
    does: dict[str, Callable[[], None]] = {}

    def launches(self: Peer, product: Any, copies: int) -> list[Launch]:
        does.get(self.name, lambda: None)()
        raise Unavailable("there is nothing to launch")

    monkeypatch.setattr(race.Product, "of", lambda workload, values: None)  # as if it were BF16
    monkeypatch.setattr(Peer, "launches", launches)
    return does


def reasons(row: Row) -> dict[str, str]:
    """Why each peer is absent that is not, but for what was said above of all."""
    assert row.timing and row.void is None
    found = {each.name: each.reason for each in row.timing.absent if each.name != WARM_CHAIN}
    assert [*found] == [peer.name for peer in PEERS]
    return {name: why for name, why in found.items() if why != "there is nothing to launch"}


@pytest.mark.parametrize(
    ("death", "evidence", "deaths"),
    [
        (SEGFAULT, "the process ended with -11", asking.DEATHS),
        (TimeoutError(), LATE, 1),
    ],
)
def test_a_peer_that_ends_the_process_costs_itself_alone_and_soon_is_not_asked(
    machine: Machine,
    peers: dict[str, Callable[[], None]],
    death: Exception,
    evidence: str,
    deaths: int,
) -> None:
    def ends() -> None:
        raise death

    slow = reasons(machine.run(SHAPES[:1]).rows[0])
    machine.log.unlink()
    peers["cuBLASLt"] = ends
    machine.pool.shapes = 0
    rows = machine.run(SHAPES).rows
    for each in rows[:deaths]:
        assert reasons(each) == {**slow, "cuBLASLt": f"it ended the process: {evidence}"}
    times = "" if deaths == 1 else f" {deaths} times"
    said = f"over earlier shapes it ended the process{times}: {evidence}"
    for each in rows[deaths:]:
        assert reasons(each) == {**slow, "cuBLASLt": said}
    assert machine.pool.shapes == 4 + deaths and machine.pool.exits == 0
    assert machine.run(SHAPES).rows == rows  # from the log, which knows that it is lost
    assert machine.pool.shapes == 4 + deaths
    peers.clear()  # it is mended, and another log asks it again
    machine.log.unlink()
    assert [reasons(each) for each in machine.run(SHAPES).rows] == [slow] * 4


def test_a_cut_run_goes_on_without_the_peer_that_it_lost(
    machine: Machine, peers: dict[str, Callable[[], None]]
) -> None:
    def hangs() -> None:
        raise TimeoutError

    peers["cuBLASLt"] = hangs
    cut, rest = Cutting(), Heard()
    with pytest.raises(Cut):
        machine.run(SHAPES, listener=cut)
    first, again, *_ = cut.notes
    assert first == f"{title(SHAPES[0])} again without cuBLASLt: {LATE}"
    assert again == title(SHAPES[0])
    machine.run(SHAPES, listener=rest)
    assert rest.notes[:1] == [title(SHAPES[2])] and rest.stages[-1] == ("bench", 2)


def test_who_hangs_in_a_chain_is_to_blame(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a launch does with a first copy it may not do with all of them."""
    made: list[str] = []

    def launches(self: Peer, product: Any, copies: int) -> list[Launch]:
        def launch(stream: int) -> None:
            if self.name == "Triton":
                made.append(self.name)
                raise KeyboardInterrupt  # as nothing catches it; here, the process's end

        if self.name not in ("Triton", "gemlite"):
            raise Unavailable("there is nothing to launch")
        return [launch] * copies

    monkeypatch.setattr(race.Product, "of", lambda workload, values: None)
    monkeypatch.setattr(Peer, "launches", launches)
    note = machine.log.with_name("note")
    asked = Asking(math.inf, note=note)
    bench = worker.Bench("a:SUBJECT", machine.library, machine.library, ROUNDS, 0)
    with pytest.raises(KeyboardInterrupt):
        worker.benchmark(bench, PARAMS, asked)
    assert made and asked.culprit == "Triton"


def test_a_peer_after_whose_code_the_device_fails_is_to_blame(
    machine: Machine, peers: dict[str, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[str] = []

    def settle(rig: CudaRig) -> None:
        if broken:
            broken.clear()  # the next process has a sound one
            raise ILLEGAL

    monkeypatch.setattr(CudaRig, "settle", settle)
    peers["Triton"] = lambda: broken.append("device")
    (row,) = machine.run(SHAPES[:1]).rows
    expected = "it ended the process: CUDA error: an illegal access"
    assert reasons(row)["Triton"] == expected and machine.pool.exits == 1
    assert expected not in [why for name, why in reasons(row).items() if name != "Triton"]


def test_a_name_that_no_peer_has_blames_them_all(tmp_path: Path) -> None:
    note = tmp_path / "note"
    trust = asking.Trust({}, pytest.fail)
    for said in ("", "gem"):  # cut while it was written
        note.write_text(said)
        fewer = trust.after(Asking(math.inf, note=note), "killed")
        assert fewer and not fewer.peers
        assert {*fewer.refused.values()} == {"an attempt with peers failed: killed"}
    assert trust.after(fewer, "killed") is None


def test_who_was_at_work_over_an_earlier_shape_is_not_to_blame_for_a_later_one(
    machine: Machine, peers: dict[str, Callable[[], None]]
) -> None:
    def ends() -> None:
        peers.clear()
        raise SEGFAULT

    peers["cuBLASLt"] = ends
    machine.pool.deaths = {3: SEGFAULT}  # before anyone is asked over the second shape
    first, second = machine.run(SHAPES[:2]).rows
    assert reasons(first)["cuBLASLt"].startswith("it ended the process")
    assert set(reasons(second).values()) == {
        "an attempt with peers failed: the process ended with -11"
    }


@pytest.mark.parametrize(
    ("failure", "evidence"),
    [
        (TimeoutError(), LATE),
        (FULL, str(FULL)),
        (MemoryError(), "MemoryError"),
        (
            ProcessExpired("Abnormal termination", code=-9),
            "the process ended with -9 (killed from outside, as where memory is short)",
        ),
    ],
)
def test_a_shape_without_an_end_or_memory_is_untimed_and_tried_again_by_the_next_run(
    machine: Machine, failure: Exception, evidence: str
) -> None:
    shapes = [{**PARAMS, "m": 1}, PARAMS]
    machine.pool.deaths = {1: ILLEGAL, 2: failure}
    heard = Heard()
    record = machine.run(shapes, listener=heard)
    assert heard.good == [None]
    first, second = record.rows
    assert first.void == first.untimed == evidence and first.correctness == ()
    assert first.unsettled and not first.disproven and not record.valid
    assert second.void is None and machine.pool.shapes == 3
    assert BenchRecord.model_validate_json(record.model_dump_json()) == record
    assert machine.run(shapes).valid and machine.pool.shapes == 4


@pytest.mark.parametrize(
    ("failure", "evidence", "exits"),
    [
        (ProcessExpired("Abnormal termination", code=-11), "the process ended with -11", 0),
        (ILLEGAL, "CUDA error: an illegal access", 2),
    ],
)
def test_a_shape_that_fails_without_peers_too_is_void_and_tried_again_by_the_next_run(
    machine: Machine, failure: Exception, evidence: str, exits: int
) -> None:
    shapes = [{**PARAMS, "m": 1}, PARAMS]
    heard = Heard()
    machine.pool.deaths = {1: failure, 2: failure}
    first, second = machine.run(shapes, listener=heard).rows
    assert first.timing is None and first.disproven and heard.good == [False]
    assert first.void == f"not shown correct: process: fail: {evidence}"
    assert second.void is None and machine.pool.exits == exits
    assert machine.run(shapes).valid and machine.pool.shapes == 4


def test_the_gpu_is_watched_as_long_as_the_process_lives(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[str] = []

    @contextmanager
    def watch(uuid: str) -> Iterator[Callable[[], tuple[str, ...]]]:
        try:
            yield tuple
        finally:
            left.append(uuid)

    monkeypatch.setattr(worker, "_OPEN", ExitStack())
    monkeypatch.setattr(worker.telemetry, "watch", watch)
    machine.run()
    gc.collect()
    assert left == []
    worker._OPEN.close()
    assert left == ["GPU-1"]
