"""What ``lanecheck bench`` asks for, shows, keeps and says it costs, where no GPU is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import test_bench
import test_bench_ncu
import test_cli
from listening import Heard
from test_bench_ncu import Bench, row

from lanecheck import cli
from lanecheck.bench import ahead, cost, ncu, run
from lanecheck.bench.asking import Asking, Trust
from lanecheck.bench.log import RowEntry, usable
from lanecheck.bench.machine import Absent
from lanecheck.bench.model import BenchRecord, Row
from lanecheck.cli import benching
from lanecheck.gpu import Gpu
from lanecheck.subject import Params

checkout = test_cli.checkout
bench, saved = test_bench_ncu.bench, test_bench_ncu.saved

# What is shown and what verifies the cell -----------------------------------------------------


def _cell(saved: dict[str, Any]) -> tuple[str, str]:
    """The status and the reason of the one cell that was recorded."""
    (cell,) = saved["cells"]
    return cell.status.value, cell.reason


@test_cli.KERNEL
def test_only_all_the_usual_shapes_in_enough_rounds_verify_the_cell(
    bench: Bench, saved: dict[str, Any], checkout: Path
) -> None:
    code, said, _ = bench()
    assert code == 0 and saved["cells"][0].status.value == "verified" and "stays" not in said
    code, said, _ = bench("--only", "m=1")
    assert code == 0 and len(saved["bench"].rows) == 1
    expected = "1 of the subject's 2 usual shapes were not timed, such as M=8 N=28672 K=4096"
    assert _cell(saved) == ("unverified", expected)
    assert f"benchmarked stays unverified: {expected}\n" in said
    code, said, _ = bench("--rounds", "29")
    assert code == 0 and _cell(saved) == ("unverified", "29 rounds, where it takes 30")
    assert "benchmarked stays unverified: 29 rounds, where it takes 30\n" in said
    assert not (checkout / "log.jsonl").exists()


@test_cli.KERNEL
def test_what_could_not_be_timed_is_exit_code_3_and_what_is_disproven_1(
    bench: Bench, saved: dict[str, Any], monkeypatch: pytest.MonkeyPatch, checkout: Path
) -> None:
    good = row({"m": 8, "n": 28672, "k": 4096})
    full = Row.of({"m": 1}, good.traffic, [], None, "out of memory")
    throttled = row({"m": 2}, discarded=4, held_back=["heat"])
    wrong = Row.of({"m": 4}, good.traffic, [test_bench.failed()], None)

    def timed(*rows: Row) -> Callable[..., BenchRecord]:
        (checkout / "log.jsonl").touch()
        return lambda *given, **more: test_bench.record(*rows)

    monkeypatch.setattr(benching, "run_bench", timed(good, full, throttled))
    code, _, complaint = bench()
    assert code == 3 and _cell(saved)[0] == "unverified"
    assert complaint == (
        "lanecheck: 2 of 3 shapes could not be timed, M=1: out of memory; "
        "the same command tries them again\n"
    )
    assert (checkout / "log.jsonl").exists()
    monkeypatch.setattr(benching, "run_bench", timed(full, wrong))
    code, _, complaint = bench()
    assert (code, complaint) == (1, "")
    (cell,) = saved["cells"]
    assert cell.status.value == "disproven" and cell.reason.startswith("not shown correct: bits")


@test_cli.KERNEL
@pytest.mark.parametrize(
    ("found", "arch", "said"),
    [
        ([("NVIDIA A100-SXM4-80GB", "8.0")], "sm_80", ""),
        ([("NVIDIA L4", "8.9")], "sm_89", ""),
        ([("NVIDIA B200", "10.0")], "sm_100f", ""),
        ([("NVIDIA A100-SXM4-80GB", "8.0"), ("NVIDIA H200", "9.0")], "sm_90a", ""),
        (
            [("NVIDIA H200", "9.0"), ("NVIDIA H100 80GB HBM3", "9.0")],
            "sm_90a",
            "timing sm_90a on h100, not on h200: CUDA_VISIBLE_DEVICES chooses\n",
        ),
    ],
)
def test_the_arch_is_the_gpus_own_and_a_choice_among_kinds_is_said(
    bench: Bench,
    saved: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    found: Sequence[tuple[str, str]],
    arch: str,
    said: str,
) -> None:
    gpus = [Gpu(name, cc, f"GPU-{index}") for index, (name, cc) in enumerate(found)]
    monkeypatch.setattr(benching.gpu, "detect", lambda: gpus)
    code, _, complaint = bench()
    assert (code, complaint) == (0, said)
    assert saved["cells"][0].arch == arch


@test_cli.KERNEL
def test_a_named_arch_that_no_gpu_loads_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benching.gpu, "detect", lambda: [Gpu("NVIDIA L4", "8.9", "GPU-1")])
    code, _, complaint = bench("--arch", "sm_90a")
    assert code == 3 and complaint.endswith("on this machine; --arch chooses another for l4\n")


# The log and the plan -------------------------------------------------------------------------

SECONDS = 7.0
"""What each shape takes here."""
FAILED = "an attempt with peers failed: CUDA out of memory [/shm]"


def without_peers(params: Params, reason: str) -> Row:
    """A row of which this keeps every peer."""
    found = row(params)
    assert found.timing
    absent = (Absent(name="linear", reason=reason),)
    changed = found.timing.model_copy(update={"peers": (), "speedup": {}, "absent": absent})
    return found.model_copy(update={"timing": changed})


class Machine:
    """Plays the GPUs of a run: which shapes they were asked for, after how many of them they are cut, and
    which of them are done only without peers."""

    def __init__(self) -> None:
        self.asked: list[Params] = []
        self.cut: int | None = None
        self.alone: list[Params] = []

    def answers(
        self, pools: Any, bench: Any, shapes: Sequence[tuple[Params, float]], here: Any, *rest: Any
    ) -> Iterator[RowEntry]:
        for number, (params, patience) in enumerate(shapes):
            if number == self.cut:
                raise KeyboardInterrupt
            self.asked.append(params)
            alone = params in self.alone
            done = without_peers(params, FAILED) if alone else row(params)
            peers = () if alone else Asking(patience).names
            yield RowEntry(seconds=SECONDS, environment=here, row=done, asked=peers)


SWEPT: list[Params] = [{"m": m, "n": n, "k": 4096} for n in (4096, 28672) for m in (1, 8)]
USUAL = SWEPT[2:]


@pytest.fixture
def machine(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Under the ``bench`` command: a subject of a few shapes, and the run as it is, but for the GPUs."""
    machine, here = Machine(), test_bench.record(row({"m": 1})).environment
    subject = SimpleNamespace(
        name="gemv",
        bench_params=lambda: USUAL,
        sweep_params=lambda: [(params, 0.0) for params in SWEPT],
        traffic=lambda params: 2 * params["n"] * params["k"],
    )
    monkeypatch.setattr(benching, "load", lambda reference: subject)
    monkeypatch.setattr(benching, "run_bench", run.run)
    monkeypatch.setattr(run, "build", lambda *given: None)
    monkeypatch.setattr(run, "_workers", lambda gpus: nullcontext([]))
    monkeypatch.setattr(run, "_environment", lambda pools: here)
    monkeypatch.setattr(run, "_answers", machine.answers)
    return machine


@test_cli.KERNEL
def test_shapes_are_chosen_by_one_value_of_several_and_by_each_name(
    bench: Bench, machine: Machine
) -> None:
    bench(
        "--sweep",
        "--only",
        "m=1,8",
        "--only",
        "n=4096, 28672",
        "--only",
        "k=4096",
        "--only",
        "n=4096",
    )
    assert machine.asked == [shape for shape in SWEPT if shape["n"] == 4096]
    for only, complaint in {
        ("m=8,9",): "--only m=8,9: no shape has m=9, but 1, 8",
        ("m",): "--only m: write name=value, such as m=1, of m, n, k",
        ("b=1",): "--only b=1: write name=value, such as m=1, of m, n, k",
        ("m=1", "m=8"): "no shape has m=1 and m=8",
    }.items():
        options = [word for each in only for word in ("--only", each)]
        assert bench(*options)[::2] == (2, f"lanecheck: {complaint}\n")


@test_cli.KERNEL
def test_without_a_gpu_a_plan_is_of_every_kind_that_could_run_it(
    bench: Bench, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benching.gpu, "detect", lambda: [])
    code, said, _ = bench("--plan", "--sweep", "--only", "m=8")
    first, *kinds = said.splitlines()
    assert code == 0 and first.startswith("2 shapes; no GPU is here")
    against = f"each against both ceilings and {len(Asking(0.0).peers)} peers: about "
    seconds = {re.sub(r".*about ([\d,]+) s, by.*", r"\1", each) for each in kinds}
    assert len(kinds) == 8 and len(seconds) > 1 and all(against in each for each in kinds)
    code, said, _ = bench("--plan", "--arch", "sm_89")
    assert [line.partition(":")[0] for line in said.splitlines()[1:]] == [
        "on one l4",
        "on one rtx4090",
    ]
    assert machine.asked == [] and bench()[0] == 3


@test_cli.KERNEL
def test_a_cut_sweep_goes_on_although_a_smaller_run_was_finished(
    bench: Bench, machine: Machine, checkout: Path
) -> None:
    machine.cut = 3
    code, _, _ = bench("--sweep")
    assert code == cli.INTERRUPTED and machine.asked == SWEPT[:3]
    machine.cut = None
    code, said, _ = bench("--only", "m=8", "--only", "n=28672")
    assert code == 0 and machine.asked == SWEPT
    assert "log.jsonl stays: a run that was cut can go on from its 3 other rows\n" in said
    code, said, _ = bench("--sweep")
    assert code == 0 and machine.asked == SWEPT and "stays: a run" not in said
    assert not (checkout / "log.jsonl").exists()
    code, _, _ = bench("--sweep", "--only", "n=4096")
    assert code == 0 and machine.asked == SWEPT + SWEPT[:2]
    assert not (checkout / "log.jsonl").exists()


def test_a_row_is_not_used_again_after_an_attempt_with_peers_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here: Any = test_bench.record(row({"m": 1})).environment

    def benchmark(bench: Any, params: Params, asking: Asking) -> RowEntry:
        if asking.peers:
            raise RuntimeError("CUDA out of memory [/shm]")
        (reason,) = {*asking.refused.values()}
        return RowEntry(seconds=SECONDS, environment=here, row=without_peers(params, reason))

    def schedule(ask: Callable[..., Any], given: Any, timeout: float) -> Future[Any]:
        future: Future[Any] = Future()
        assert ask is os._exit or timeout == cost.limit(1, 30, float("inf"))
        try:
            future.set_result(None if ask is os._exit else ask(*given))
        except RuntimeError as failure:
            future.set_exception(failure)
        return future

    monkeypatch.setattr(run, "benchmark", benchmark)
    monkeypatch.setattr(run, "load", lambda reference: None)
    subject = SimpleNamespace(traffic=lambda params: 1)
    monkeypatch.setattr(run, "benchable", lambda loaded: subject)
    pool: Any = SimpleNamespace(schedule=schedule)
    bench: Any = SimpleNamespace(reference="a:SUBJECT", rounds=30)
    shapes = [(USUAL[0], float("inf"))]
    (entry,) = run._answers([pool], bench, shapes, here, Trust({}, pytest.fail), Heard())
    assert entry.row.void is None and entry.row.timing and not usable([entry], shapes)
    assert [each.reason for each in entry.row.timing.absent] == [FAILED]
    other = without_peers(USUAL[0], "Triton is not installed: pip install triton")
    without = entry.model_copy(update={"row": other, "asked": Asking(float("inf")).names})
    assert [*usable([entry, without], shapes).values()] == [without]


@test_cli.KERNEL
def test_a_shape_timed_without_peers_counts_but_is_tried_again(
    bench: Bench, saved: dict[str, Any], machine: Machine, checkout: Path
) -> None:
    machine.alone = USUAL[1:]
    code, said, _ = bench()
    assert code == 0 and _cell(saved)[0] == "verified"  # as where no peer is installed
    stays = "log.jsonl stays: the same command tries 1 of 2 shapes again, with their peers\n"
    assert stays in said
    assert bench("--plan")[1].startswith("2 shapes, 1 of them in log.jsonl, each against ")
    machine.alone = []
    code, said, _ = bench()
    assert code == 0 and machine.asked == USUAL + USUAL[1:] and "stays" not in said
    assert _cell(saved)[0] == "verified" and len(saved["bench"].rows) == 2
    assert all(each.timing.peers for each in saved["bench"].rows)
    assert not (checkout / "log.jsonl").exists()


@test_cli.KERNEL
def test_rows_for_which_fewer_peers_were_asked_are_timed_again_and_superseded(
    bench: Bench, machine: Machine, checkout: Path
) -> None:
    machine.cut = 3
    bench("--sweep")  # in which peers have no time to tune
    _, said, _ = bench("--plan")
    assert said.startswith("2 shapes, each against ") and "by rule of thumb" in said
    machine.cut, machine.asked = 1, []
    bench()
    assert machine.asked == USUAL[:1]
    assert bench("--plan")[1].startswith("2 shapes, 1 of them in log.jsonl, each against ")
    assert bench("--sweep", "--plan")[1].startswith("4 shapes, 3 of them in log.jsonl, ")
    machine.cut = None
    code, said, _ = bench()
    assert code == 0 and machine.asked == USUAL
    assert "log.jsonl stays: a run that was cut can go on from its 2 other rows\n" in said
    bench("--sweep")
    assert machine.asked == USUAL and not (checkout / "log.jsonl").exists()


@test_cli.KERNEL
def test_rows_of_an_old_log_which_does_not_say_who_was_asked_are_timed_again(
    bench: Bench, machine: Machine, checkout: Path
) -> None:
    machine.cut = 1
    bench()
    log = checkout / "log.jsonl"
    header, entry = log.read_text().splitlines()
    old = {name: value for name, value in json.loads(entry).items() if name != "asked"}
    log.write_text(f"{header}\n{json.dumps(old)}\n")
    assert bench("--plan")[1].startswith("2 shapes, each against ")
    machine.cut = None
    code, _, _ = bench()
    assert code == 0 and machine.asked == USUAL[:1] + USUAL and not log.exists()


def _seconds(said: str) -> int:
    (number,) = re.findall(r"about ([\d,]+) s", said)
    return int(number.replace(",", ""))


@test_cli.KERNEL
def test_a_plan_counts_shapes_peers_and_seconds_and_runs_nothing(
    bench: Bench, machine: Machine, monkeypatch: pytest.MonkeyPatch, checkout: Path
) -> None:
    monkeypatch.setattr(ncu, "find", lambda: pytest.fail("looked for ncu"))
    peers = len(cost.Asking(float("inf")).names)
    code, said, _ = bench("--plan", "--ncu")
    assert code == 0 and machine.asked == [] and not (checkout / "log.jsonl").exists()
    assert said.startswith(f"2 shapes, each against both ceilings and {peers} peers: about ")
    assert said.endswith(" s on 2 GPUs, by rule of thumb\n")
    gbps = 4800  # of an H200, in matrix.yaml
    each = cost.seconds(2 * 28672 * 4096, 30, gbps, float("inf"))
    assert _seconds(said) == round(2 * each / 2)
    monkeypatch.setattr(ahead, "FEW", 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    first = cost.ahead([float("inf")] * 2, 4)
    then = cost.seconds(2 * 28672 * 4096, 30, gbps, float("inf"), compiled=True)
    assert _seconds(bench("--plan")[1]) == round(first + then)
    _, said, _ = bench("--plan", "--sweep", "--only", "n=4096")
    assert said.startswith(
        f"2 shapes, each against both ceilings and {len(Asking(0.0).peers)} peers"
    )
    assert 0 < _seconds(said) < round(each)


@test_cli.KERNEL
def test_a_plan_goes_by_what_the_log_says(bench: Bench, machine: Machine) -> None:
    machine.cut = 3
    bench("--sweep")
    code, said, _ = bench("--sweep", "--plan")
    assert code == 0 and said.startswith("4 shapes, 3 of them in log.jsonl, each against ")
    assert said.endswith(" s on 2 GPUs, by the seconds of those in the log\n")
    patient = cost.seconds(2 * 28672 * 4096, 30, 4800, float("inf"))
    assert _seconds(bench("--plan")[1]) == round(2 * patient / 2)  # these were not
    rules = [cost.seconds(2 * int(p["n"]) * 4096, 30, 4800, 0.0) for p in SWEPT]
    assert _seconds(said) == round(sorted(SECONDS / rule for rule in rules[:3])[1] * rules[3] / 2)
    machine.cut = None
    bench("--only", "n=28672")
    _, said, _ = bench("--sweep", "--plan")
    assert "4 of them in log.jsonl" in said and _seconds(said) == 0
