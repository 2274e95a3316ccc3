"""Compiling ahead of the races: by whom, for what, how many at once, and that nothing depends on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from listening import Heard

from lanecheck.bench import ahead, asking, plan
from lanecheck.bench.peers import Peer, Product, Unavailable, gemlite
from lanecheck.gpu import Gpu
from lanecheck.subject import Params

GPUS = [Gpu("NVIDIA H200", "9.0", f"GPU-{index}") for index in range(2)]
GB = 10**9
BUSY, PATIENT = 0.0, 10.0


class Waiting(Exception):
    """It has not come to an end."""


class Pools:
    """Notes who was asked what; every answer is a failure, but where ``ends`` says what ends a shape: an
    exception, or None."""

    def __init__(self) -> None:
        self.ends: dict[int, Exception | None] = {}
        self.workers: dict[str, int] = {}
        self.asked: list[tuple[str, Any]] = []

    def __call__(self, workers: int, gpu: str) -> Any:
        self.workers[gpu] = workers

        def schedule(ask: Callable[..., Any], given: Any, timeout: float) -> Future[Any]:
            assert ask is ahead.prepare and timeout == ahead.TIME_LIMIT
            self.asked.append((gpu, given))
            future: Future[Any] = Future()
            full = RuntimeError("CUDA out of memory")
            ending = self.ends.get(given[1]["m"], full)
            if isinstance(ending, Waiting):
                return future
            if ending:
                future.set_exception(ending)
            else:
                future.set_result(None)
            return future

        return nullcontext(SimpleNamespace(schedule=schedule))


def peers(ran: list[str], *, fails: bool = False) -> tuple[Peer, ...]:
    def prepare(name: str) -> Callable[[Any], Any]:
        def run(copies: Any) -> Sequence[Any]:
            ran.append(f"{name} over {sum(1 for _ in copies)}")
            raise Unavailable("no kernel") if fails else AssertionError

        return run

    return (
        Peer("quick", prepare("quick")),
        Peer("compiling", prepare("compiling"), 2.5, 1.5),
        Peer("tuning long", prepare("tuning long"), 1.0, 19.0),
    )


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Pools:
    found = Pools()
    subject = SimpleNamespace(
        name="a", bench_params=list, traffic=lambda params: int(params["n"]) * GB
    )
    monkeypatch.setattr(ahead, "pool_of", found)
    monkeypatch.setattr(ahead, "load", lambda reference: subject)
    monkeypatch.setattr(os, "cpu_count", lambda: 32)
    monkeypatch.setattr(asking, "PEERS", peers([]))
    return found


def shapes(count: int, patience: float) -> list[tuple[Params, float]]:
    return [({"n": 1, "m": m}, patience) for m in range(count)]


def test_every_shape_that_a_peer_compiles_for_is_asked_once_and_what_fails_is_left_to_the_race(
    pools: Pools,
) -> None:
    patient, heard = shapes(ahead.FEW, PATIENT), Heard()
    ahead.compile_ahead("a:B", GPUS, 140 * GB, [*shapes(5, BUSY), *patient], 3, heard)
    assert [given for _, given in pools.asked] == [("a:B", *shape, 3) for shape in patient]
    assert [gpu for gpu, _ in pools.asked] == ["GPU-0", "GPU-1"] * (ahead.FEW // 2)
    assert heard.stages == [("compile", ahead.FEW)] and len(heard.notes) == ahead.FEW
    failed = f"{ahead.FEW} of them failed, and compile in their races"
    assert heard.said == [f"for the peers over {ahead.FEW} shapes; {failed}"]


def test_shapes_that_compile_well_are_told_from_those_that_do_not(pools: Pools) -> None:
    heard = Heard()
    pools.ends = dict.fromkeys(range(ahead.FEW))
    ahead.compile_ahead("a:B", GPUS, 140 * GB, shapes(ahead.FEW, PATIENT), 0, heard)
    pools.ends[2] = RuntimeError("no")
    ahead.compile_ahead("a:B", GPUS, 140 * GB, shapes(ahead.FEW, PATIENT), 0, heard)
    said = f"for the peers over {ahead.FEW} shapes"
    assert heard.said == [said, f"{said}; 1 of them failed, and compile in their races"]
    assert heard.good == [True, None]


def test_after_a_hang_nothing_more_compiles_ahead(pools: Pools) -> None:
    heard = Heard()
    pools.ends = {m: Waiting() for m in range(ahead.FEW)} | {1: TimeoutError(), 2: None}
    ahead.compile_ahead("a:B", GPUS, 140 * GB, shapes(ahead.FEW, PATIENT), 0, heard)
    (said,) = heard.said
    assert f"; {ahead.FEW - 1} of them failed" in said


def test_few_shapes_compile_in_their_races(pools: Pools) -> None:
    heard = Heard()
    ahead.compile_ahead(
        "a:B", GPUS, 140 * GB, [*shapes(99, BUSY), *shapes(ahead.FEW - 1, PATIENT)], 0, heard
    )
    assert not pools.workers and not heard.stages


def test_processes_share_the_cpus_of_the_machine(pools: Pools) -> None:
    ahead.compile_ahead("a:B", GPUS, 1000 * GB, shapes(16, PATIENT), 0, Heard())
    assert pools.workers == {"GPU-0": 16, "GPU-1": 16}


def test_processes_fit_into_memory_whichever_shapes_meet() -> None:
    sizes = [1, 3 * GB, 2 * GB]
    one, two = (sum(4 * size * GB + 2**30 for size in large) for large in ((3,), (3, 2)))
    assert [ahead.fitting(sizes, memory) for memory in (0, one, two - 1, two)] == [1, 1, 1, 2]
    assert ahead.fitting(sizes, 10**15) == 3  # more would have nothing to do


def test_only_peers_that_compile_and_are_asked_prepare_and_over_one_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    ran: list[str] = []
    monkeypatch.setattr(asking, "PEERS", peers(ran, fails=True))
    rig = SimpleNamespace(draw=lambda subject, case: {})
    monkeypatch.setattr(ahead, "cuda_torch", lambda: torch)
    monkeypatch.setattr(ahead, "described", lambda: (SimpleNamespace(l2_bytes=1), "GPU-0"))
    monkeypatch.setattr(ahead, "CudaRig", lambda library, l2: rig)
    monkeypatch.setattr(ahead, "load", lambda reference: None)
    monkeypatch.setattr(plan, "benchable", lambda subject: subject)
    workload = SimpleNamespace(subject=None, case=None)
    monkeypatch.setattr(ahead, "Workload", lambda *given: workload)
    x, w = torch.ones(1, 32).bfloat16(), torch.ones(16, 32).bfloat16()
    product = Product(x, w)
    monkeypatch.setattr(ahead, "Product", SimpleNamespace(of=lambda *given: product))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "7")
    monkeypatch.setattr(gemlite, "SAMPLING_MS", 10.0)
    ahead.prepare("a:B", {}, PATIENT, 0)
    assert ran == ["compiling over 1"] and gemlite.SAMPLING_MS == 0
    assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == "1"
