"""The paired gate end to end: under processes that say what a test wants, and once under real ones."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from listening import Heard
from pydantic import ValidationError
from small_kernel import cuda_toolchain
from test_gate import pairs
from test_measured import ENVIRONMENT, identical, measured
from test_reports import report

from lanecheck import gpu, matrix_file
from lanecheck.bench.journal import Cut
from lanecheck.bench.machine import Environment, Reading, Telemetry
from lanecheck.bench.paired import compare as comparison
from lanecheck.bench.paired import fresh, machine_code
from lanecheck.bench.paired.arms import Arm
from lanecheck.bench.paired.compare import RETRIES
from lanecheck.bench.paired.fresh import ProcessLost
from lanecheck.bench.paired.gate import Verdict, judge, pairs_needed
from lanecheck.bench.paired.journal import LOG, processes_in
from lanecheck.bench.paired.pairing import concluded, gated, named, schedule
from lanecheck.bench.paired.prepared import Place, Prepared, _drawn, prepared
from lanecheck.bench.paired.record import Code, PairingRecord
from lanecheck.bench.paired.table import render
from lanecheck.bench.paired.tasks import Build, Offer, Show, Shown, Time, Timed
from lanecheck.bench.paired.timing_code import timing_code
from lanecheck.build import LEFTOVERS
from lanecheck.cli import comparing
from lanecheck.errors import BadInput, CannotRun
from lanecheck.reports import store

REPOSITORY = Path(__file__).parents[2]
CONFIGS = {"M=1": {"m": 1}, "M=8": {"m": 8}}
HOST = Place("host", None, "9.0", "cpu")

KERNEL = pytest.mark.skipif(
    not (REPOSITORY / "kernel").is_dir(), reason="the harness alone is checked out"
)
GIT = pytest.mark.skipif(shutil.which("git") is None, reason="no git")


class Scripted:
    """Processes that are none. They know of an arm what real ones do, its folder, which is named after it.

    Args:
        slower: what head's time is over base's, less 1.
        versions: what the code of base and of head is.
        places: by folder, what a time there is over one elsewhere, less 1, whatever the code.
        again: what the code of base's second checkout is, if not that of the first.
        environment: of the GPU that builds.
        doubts: by arm, why it is not correct.
        events: by index of the process that is asked for, something that happens instead of an answer.
        least: of each in turn, microseconds of its least launch; of later ones as of the last.
    """

    def __init__(
        self,
        slower: float = 0.0,
        versions: tuple[str, str] = ("old", "new"),
        doubts: Mapping[str, str] | None = None,
        events: Mapping[int, Callable[[], Timed]] | None = None,
        least: Sequence[float] = (),
        places: Mapping[str, float] | None = None,
        again: str | None = None,
        environment: Environment | None = None,
        noise: int = 0,
    ) -> None:
        self.versions = dict(zip(("base", "head", "again"), (*versions, again or versions[0])))
        self.places = {"head": slower, **(places or {})}
        self.doubts, self.events, self.least = doubts or {}, events or {}, least
        self.environment = environment
        self.asked: list[str] = []
        self.judged: list[str] = []
        self._noise = np.random.default_rng(noise).normal(0, 1e-3, 1000)

    def build(self, task: Build) -> Offer:
        code = Code(gpu=None, library=None, files={"kernel.py": self.versions[task.folder]})
        return Offer(
            library=f"{task.folder}.so",
            code=code,
            gate=CONFIGS,
            bench=None,
            environment=self.environment,
        )

    def show(self, tasks: Sequence[Show]) -> Generator[Shown, None, None]:
        for task in tasks:
            self.judged.append(task.folder)
            doubt = self.doubts.get(task.folder)
            output = None if doubt else self.versions[task.folder]
            yield Shown(doubt=doubt, output=output, wrong=bool(doubt and "fail" in doubt))

    def time(self, task: Time) -> Timed:
        index = len(self.asked)
        self.asked.append(task.folder)
        assert task.library == f"{task.folder}.so"
        if index in self.events:
            return self.events[index]()
        factor = 1 + self.places.get(task.folder, 0.0)
        noise = np.exp(self._noise[task.order])
        least = self.least[min(index, len(self.least) - 1)] if self.least else None
        return answer(10 * factor * float(noise), self.versions[task.folder], least=least)


def answer(
    median: float = 10.0,
    output: str = "old",
    reasons: Sequence[str] = (),
    least: float | None = None,
) -> Timed:
    """What a process says whose GPU named these reasons to clock down, and its least launch this long."""
    reading = Reading(
        sm_clock_mhz=None,
        memory_clock_mhz=None,
        temperature_c=None,
        power_w=None,
        power_limit_w=None,
        clock_event_reasons=tuple(reasons),
        other_processes=None,
    )
    return Timed(
        held_back=tuple(reasons),
        least_us=least,
        medians_us={"M=1": median, "M=8": median + 1},
        outputs=dict.fromkeys(CONFIGS, output),
        telemetry=Telemetry(before=reading, after=reading) if reasons else None,
    )


def crash() -> Timed:
    raise ProcessLost("died of SIGSEGV")


def interrupt() -> Timed:
    raise KeyboardInterrupt


def compare(
    processes: Scripted,
    folder: Path,
    force: bool = False,
    pairs: int = 12,
    seed: int | None = 0,
    listener: Heard | None = None,
    place: Place = HOST,
) -> PairingRecord:
    found = ready(processes, pairs, seed, place)
    return comparison.compare(found, processes, folder / "log.jsonl", listener or Heard(), force)


def ready(
    processes: Scripted, pairs: int = 12, seed: int | None = 0, place: Place = HOST
) -> Prepared:
    base, head, again = (Arm(name, None, Path(name)) for name in ("base", "head", "again"))
    subject, sizes = "kernel:SUBJECT", {"pairs": pairs, "rounds": 1}
    return prepared((base, head, again), place, subject, processes, seed=seed, **sizes)


def test_each_arm_is_shown_and_timed_with_its_own_parameters():
    found = ready(Scripted())
    tuned = {"M=1": {"m": 1, "split": 2}}
    head = found.header.head.model_copy(update={"configs": tuned})
    found = replace(found, header=found.header.model_copy(update={"head": head}))
    assert found.time("head", 0).configs == tuned
    assert found.show("head", "M=1").params == tuned["M=1"]
    assert found.time("again", 0).configs == found.time("base", 0).configs == CONFIGS


def test_a_kernel_that_gives_no_answer_is_neither_timed_nor_called_wrong(tmp_path):
    record = compare(Scripted(doubts={"head": "no end within 900 s"}), tmp_path)
    assert record.verdict is Verdict.INSUFFICIENT and not record.wrong


def test_a_verdict_over_several_configs_names_the_one_it_rests_on():
    verdict, said = concluded(judge({"a": pairs(), "b": pairs(0.02)}))
    assert verdict is Verdict.SLOW
    assert said.startswith("1 of 2 configs SLOW; b: head is 2.00% slower")


# The order ------------------------------------------------------------------------------------


def test_the_order_is_random_and_follows_from_the_seed():
    turns = schedule(50, seed=1)
    assert turns == schedule(50, seed=1) != schedule(50, seed=2)
    pairs = list(zip(turns[::2], turns[1::2]))
    assert [first.pair for first, _ in pairs] == list(range(100))
    for first, second in pairs:
        assert (first.pair, first.kind) == (second.pair, second.kind)
        assert {first.side, second.side} == {"base", "head"}
    for kind in ("change", "control"):
        firsts = [first.side for first, _ in pairs if first.kind == kind]
        assert len(firsts) == 50
        assert 10 < firsts.count("base") < 40
    early = [first.kind for first, _ in pairs[:50]]
    assert 10 < early.count("control") < 40
    assert "change change" in " ".join(early) and "control control" in " ".join(early)
    sides = {(turn.kind, turn.side): turn.arm for turn in turns}
    assert sides == {
        ("change", "base"): "base",
        ("change", "head"): "head",
        ("control", "base"): "base",
        ("control", "head"): "again",
    }


def test_without_a_seed_it_is_that_of_both_arms_code_and_configs():
    def seed(*versions: str) -> int:
        return ready(Scripted(versions=versions), seed=None).header.seed

    drawn = [seed(*each) for each in (("a", "b"), ("b", "a"), ("a", "c"), ("a", "a"))]
    assert len({*drawn}) == 4 and all(0 <= each < 2**32 for each in drawn)
    assert seed("a", "b") == drawn[0]
    header = ready(Scripted(), seed=None).header
    wider = header.base.model_copy(update={"configs": {"M=1": {"m": 1}}})
    assert _drawn(wider, header.head) != header.seed
    assert ready(Scripted(), seed=7).header.seed == 7


def test_every_config_that_either_arm_names_is_gated_with_each_arms_own_parameters():
    base, head = {"a": 1, "b": 2}, {"b": 3, "c": 4}
    assert gated(base, head) == ({"a": 1, "b": 2, "c": 4}, {"a": 1, "b": 3, "c": 4})
    assert gated(None, head) == (head, head)
    assert gated(None, None) == ({}, {})


def test_configs_are_named_by_their_sizes_or_else_by_every_parameter():
    plain, split = {"m": 1, "n": 2, "k": 3, "s": 1}, {"m": 1, "n": 2, "k": 3, "s": 2}
    assert named([plain]) == {"M=1 N=2 K=3": plain}
    assert list(named([plain, split])) == ["M=1 N=2 K=3 S=1", "M=1 N=2 K=3 S=2"]
    assert list(named([{"rows": 5}])) == ["ROWS=5"]
    with pytest.raises(BadInput, match="the same launch twice"):
        named([plain, plain])


# Verdicts -------------------------------------------------------------------------------------


def test_identical_code_is_the_same_and_nothing_runs(tmp_path):
    processes = Scripted(slower=0.5, versions=("old", "old"))
    record = compare(processes, tmp_path)
    assert (record.verdict, record.configs, record.processes) == (Verdict.SAME, {}, ())
    assert record.cause == "same machine code and same host code: there is nothing to time"
    assert processes.asked == processes.judged == []
    assert not any(tmp_path.iterdir())


def test_identical_code_that_is_timed_all_the_same_does_not_alarm(tmp_path):
    record = compare(Scripted(versions=("old", "old")), tmp_path, force=True)
    assert record.verdict is Verdict.SAME
    assert len(record.processes) == 48
    assert set(record.configs) == set(CONFIGS)


@pytest.mark.parametrize(
    ("slower", "verdict", "cause"),
    [
        (0.02, Verdict.SLOW, r"2 of 2 configs SLOW; M=1: head is (2\.0|1\.9)\d% slower, at least"),
        (-0.02, Verdict.FAST, r"2 of 2 configs FAST; M=1: head is (2\.0|1\.9)\d% faster"),
        (0.0, Verdict.SAME, r"2 of 2 configs SAME; M=1: head equals base within 0\.50%"),
        (0.005, Verdict.AMBIGUOUS, r"2 of 2 configs AMBIGUOUS; M=1: 12 pairs show neither"),
    ],
)
def test_the_verdict_is_the_gates(slower, verdict, cause, tmp_path):
    record = compare(Scripted(slower), tmp_path)
    assert record.verdict is verdict
    assert re.match(cause, record.cause)
    assert render(record).row_count == 2


def identical_code(folder: Path, seed: int, bias: float = 0.0) -> PairingRecord:
    """Forced, where every checkout but the first is slow by its place."""
    processes = Scripted(
        versions=("old", "old"), places={"head": bias, "again": bias}, noise=1000 + seed
    )
    return compare(processes, folder / f"{seed}", force=True, seed=seed)


SEEDS = range(30)


def test_a_procedure_that_tells_its_checkouts_apart_gives_no_verdict(tmp_path):
    found = [identical_code(tmp_path, seed, bias=0.02) for seed in SEEDS]
    assert [each.verdict for each in found] == [Verdict.INSUFFICIENT] * len(SEEDS)
    for each in found:
        assert re.match(
            r"2 of 2 configs INSUFFICIENT; M=\d: base is (2\.[01]|1\.[89])\d% slower than itself",
            each.cause,
        )


def test_a_procedure_that_tells_nothing_apart_alarms_as_rarely_as_its_level(tmp_path):
    """The two configs are as one; a control alarms at most in 2 of 100."""
    found = [identical_code(tmp_path, seed).verdict for seed in SEEDS]
    assert found.count(Verdict.INSUFFICIENT) <= 2
    assert not {Verdict.SLOW, Verdict.FAST} & {*found}


def test_a_second_checkout_of_base_that_is_other_code_is_refused():
    message = r"the second checkout of base \(base\) differs from the first in kernel.py: its folder changed "
    with pytest.raises(CannotRun, match=message):
        ready(Scripted(again="changed"))


def test_the_second_checkout_must_compute_what_base_was_shown_to_compute(tmp_path):
    first = next(i for i, turn in enumerate(schedule(12, 0)) if turn.arm == "again")
    wrong = {first + tried: lambda: answer(output="other") for tried in range(1 + RETRIES)}
    record = compare(Scripted(events=wrong), tmp_path)
    assert record.cause == (
        f"process {first + 1}, of the second checkout of base, was lost 4 times: M=1: other outputs than "
        "those that were shown correct"
    )


def test_too_few_pairs_are_insufficient(tmp_path):
    record = compare(Scripted(slower=0.5), tmp_path, pairs=2)
    assert record.verdict is Verdict.INSUFFICIENT
    assert f"2 pairs, but 2 gated configs need {pairs_needed(2)}" in record.cause


@pytest.mark.parametrize("arm", ["base", "head"])
def test_a_kernel_that_is_not_shown_correct_is_not_timed(arm, tmp_path):
    processes = Scripted(doubts={arm: "integers: fail: y[0] is 1"})
    for _ in range(2):
        record = compare(processes, tmp_path)
        assert record.verdict is Verdict.INSUFFICIENT and record.wrong
        assert record.cause == (
            f"{arm} is not shown correct, so nothing is timed: M=1: integers: fail: y[0] is 1"
        )
    assert processes.asked == []
    assert processes.judged.count(arm) == 2  # a doubt is no fact of the log


def test_what_differs_is_said_in_words():
    old = Code(gpu="1", library="1", files=dict.fromkeys("abcdef", "1"))
    new = Code(gpu="2", library="2", files={"a": "1", "x": "1"})
    assert [*old.changes(old)] == []
    assert [*old.changes(new)] == [
        "the GPU's machine code",
        "the library's host code",
        "b, c, d and 3 more files",
    ]


# Processes that are lost ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (crash, "died of SIGSEGV"),
        (lambda: answer(output="other"), "M=1: other outputs than those that were shown correct"),
        (
            lambda: answer(reasons=["hw_thermal_slowdown"]),
            "the GPU was held back: hw_thermal_slowdown",
        ),
    ],
)
def test_a_process_that_does_not_count_is_repeated_and_said(event, reason, tmp_path):
    said = Heard()
    processes = Scripted(events={5: event, 6: event, 20: event})
    record = compare(processes, tmp_path, listener=said)
    assert record.verdict is Verdict.SAME
    assert len(processes.asked) == 51
    assert [lost.reason for lost in record.lost] == [reason] * 3
    assert said.said[-1] == f"48 processes, 3 repeated: {reason}"


def test_a_process_that_meets_another_state_of_the_gpu_is_repeated(tmp_path):
    """Five processes say what is usual; the least launch alone says that one differs."""
    usual, gpu = [1.6, 1.6, 1.4, 1.601, 1.6], Place("cuda", None, "9.0", "NVIDIA H200", "unit")
    processes = Scripted(least=[*usual, *[1.63] * 12, 1.4, 1.601])
    found = compare(processes, tmp_path, force=True, place=gpu)
    assert found.state is not None and found.state.usual_us == 1.6
    assert found.verdict is Verdict.SAME and len(processes.asked) == 5 + 1 + 48
    (lost,) = found.lost
    assert lost.reason == (
        "the GPU served it otherwise: its least launch takes 1.40 µs, usually 1.60"
    )
    changed = found.model_dump_json().replace('"least_us":1.601', '"least_us":1.4')
    with pytest.raises(ValidationError, match="met another state of the GPU"):
        PairingRecord.model_validate_json(changed)


def test_one_that_is_always_lost_ends_the_comparison(tmp_path):
    processes = Scripted(slower=0.5, events=dict.fromkeys(range(10, 99), crash))
    record = compare(processes, tmp_path)
    assert record.verdict is Verdict.INSUFFICIENT
    assert re.match(r"process 11, of [a-z ]+, was lost 4 times: died of SIGSEGV", record.cause)
    assert len(processes.asked) == 10 + 1 + RETRIES
    assert len(record.processes) == 10
    assert compare(Scripted(slower=0.5), tmp_path).verdict is Verdict.SLOW  # it goes on


# The log --------------------------------------------------------------------------------------


def test_a_cut_run_goes_on_where_it_stopped(tmp_path):
    whole = compare(Scripted(slower=0.02), tmp_path / "whole")
    for stop in (0, 13, 30):
        with pytest.raises(Cut):  # what is shown is logged before the first
            compare(Scripted(slower=0.02, events={stop: interrupt}), tmp_path / f"{stop}")
        rest, said = Scripted(slower=0.02), Heard()
        resumed = compare(rest, tmp_path / f"{stop}", listener=said)
        assert rest.judged == []
        assert len(rest.asked) == 48 - stop
        assert [p.medians_us for p in resumed.processes] == [p.medians_us for p in whole.processes]
        assert (resumed.configs, resumed.cause) == (whole.configs, whole.cause)
    again = Scripted()
    assert compare(again, tmp_path / "30").verdict is Verdict.SLOW
    assert again.asked == []


def test_a_gpu_that_is_held_back_before_anything_is_timed_is_insufficient(tmp_path):
    def held() -> Timed:
        return Timed(
            held_back=("hw_slowdown",),
            medians_us={},
            least_us=None,
            outputs=dict.fromkeys(CONFIGS, "old"),
            telemetry=None,
        )

    gpu = Place("cuda", None, "9.0", "NVIDIA H200", "unit")
    always = Scripted(events=dict.fromkeys(range(99), held))
    record = compare(always, tmp_path / "always", place=gpu)
    assert record.verdict is Verdict.INSUFFICIENT and "hw_slowdown" in record.cause
    first = Scripted(least=[1.6], events=dict.fromkeys(range(RETRIES), held))
    assert compare(first, tmp_path / "first", place=gpu).verdict is Verdict.SAME


def test_a_log_from_a_gpu_in_another_state_is_not_gone_on_with(tmp_path):
    gpu = Place("cuda", None, "9.0", "NVIDIA H200", "unit")
    with pytest.raises(Cut, match="goes on from"):
        compare(Scripted(least=[1.6], events={20: interrupt}), tmp_path, place=gpu)
    record = compare(Scripted(least=[1.4]), tmp_path, place=gpu)
    assert record.verdict is Verdict.INSUFFICIENT
    assert "begin anew with another --log" in record.cause


def test_a_line_that_was_cut_is_run_again(tmp_path):
    compare(Scripted(), tmp_path)
    log = tmp_path / "log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:20]) + lines[20][:50])
    rest = Scripted()
    assert compare(rest, tmp_path).verdict is Verdict.SAME
    assert (
        len(rest.asked) == 48 - 15
    )  # below the header and two configs of two arms that were shown
    assert log.read_bytes().count(b"\n") == len(lines)


def test_the_log_of_another_comparison_is_refused(tmp_path):
    compare(Scripted(), tmp_path)
    for change, words in (
        ({"seed": 1}, "another seed"),
        ({"pairs": 8, "seed": 1}, "another seed, pairs"),
    ):
        with pytest.raises(BadInput, match=f"log of another run \\({words}\\)"):
            compare(Scripted(), tmp_path, **change)
    with pytest.raises(BadInput, match="another head"):
        compare(Scripted(versions=("old", "newer")), tmp_path)
    with pytest.raises(BadInput, match="another environment"):
        compare(Scripted(environment=ENVIRONMENT), tmp_path)
    (tmp_path / "log.jsonl").write_text('{"some": "thing"}\n')
    with pytest.raises(BadInput, match="is not the log of a comparison"):
        compare(Scripted(), tmp_path)


def test_a_log_of_another_driver_or_torch_is_refused(tmp_path):
    compare(Scripted(environment=ENVIRONMENT), tmp_path)
    later = ENVIRONMENT.model_copy(update={"driver": "581.1", "torch": "2.11.0"})
    with pytest.raises(BadInput, match=r"log of another run \(another driver, torch\)"):
        compare(Scripted(environment=later), tmp_path)
    again = compare(Scripted(environment=ENVIRONMENT), tmp_path)
    assert again.header.environment == ENVIRONMENT


def test_a_whole_log_is_judged_without_another_process(tmp_path):
    gpu = Place("cuda", None, "9.0", "NVIDIA H200", "unit")
    first = compare(Scripted(least=[1.6]), tmp_path, place=gpu)
    again = Scripted(least=[1.4])  # another state of the GPU, which matters to nobody
    assert compare(again, tmp_path, place=gpu).configs == first.configs and again.asked == []


def test_a_log_has_one_writer(tmp_path):
    header = compare(Scripted(), tmp_path).header
    log = tmp_path / "log.jsonl"
    with LOG.opened(log, header), pytest.raises(CannotRun, match="another process writes"):
        compare(Scripted(), tmp_path)
    assert processes_in(log, header) == 48
    assert processes_in(tmp_path / "none.jsonl", header) == 0


def test_a_record_is_read_as_it_was_written_and_none_can_be_made_up(tmp_path):
    record = compare(Scripted(slower=0.02), tmp_path)
    text = record.model_dump_json()
    assert PairingRecord.model_validate_json(text) == record
    assert record.created is not None and record.created.utcoffset() == timedelta(0)
    old = json.loads(text)
    del old["created"], old["header"]["environment"]  # as before there were any
    assert PairingRecord.model_validate_json(json.dumps(old)).created is None
    for change in (
        {"verdict": "SAME"},
        {"shown": []},
        {"processes": record.model_dump(mode="json")["processes"][1:]},
        {"more": 1},
    ):
        with pytest.raises(ValidationError):
            PairingRecord.model_validate_json(json.dumps({**json.loads(text), **change}))


# What runs ------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_the_digest_of_machine_code_knows_no_comments(tmp_path):
    def built(source: str, folder: str) -> str:
        here = tmp_path / folder
        here.mkdir()
        (here / "a.cpp").write_text(source)
        subprocess.run(
            ["g++", "-g", "-shared", "-fPIC", "a.cpp", "-o", "a.so"], cwd=here, check=True
        )
        return machine_code.digest(here / "a.so")

    same = built("int f() { return 1; }\n", "a"), built("// one\n\nint f() { return 1; }\n", "b")
    assert same[0] == same[1] != built("int f() { return 2; }\n", "c")
    calls = 'extern "C" int sleep(unsigned), usleep(unsigned);\nint f() { return sleep(1); }\n'
    assert built(calls, "d") != built(calls.replace("return sleep", "return usleep"), "e")
    half = "double f(double x) { return x * 1.5; }\n"  # what differs is data, and the code reads it
    assert built(half, "g") != built(half.replace("1.5", "2.5"), "h")
    with pytest.raises(CannotRun, match="not a little-endian ELF file"):
        machine_code.digest(tmp_path / "a" / "a.cpp")


LAUNCHED = """
namespace {
template <int factor> __global__ void scale(float *y) {
  __shared__ float x[64];
  x[threadIdx.x] = y[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = x[63 - threadIdx.x] * factor;
}
}
void launch(float *y) { scale<3><<<4, 64>>>(y); }
"""


@pytest.fixture
def compiled(tmp_path):
    """Compiles a source, in a folder of its own, beside another source of its name."""
    toolchain = cuda_toolchain(tmp_path)

    def compiled(source: str, folder: str, *options: str) -> tuple[str, str]:
        here = tmp_path / folder
        for name, text in (("varied", source), ("same", "__global__ void other() {}\n")):
            (here / name).mkdir(parents=True)
            (here / name / "kernel.cu").write_text(text)
        sources = [str(here / name / "kernel.cu") for name in ("varied", "same")]
        command = [str(toolchain.nvcc), "-shared", "-Xcompiler=-fPIC", "-Xlinker=-s", *options]
        library = here / "kernel.so"
        subprocess.run(
            [*command, *sources, "-o", str(library)],
            env=toolchain.compile_environment,
            check=True,
            capture_output=True,
        )
        return machine_code.digest(library), machine_code.gpu_digest(library, toolchain)

    return compiled


def test_the_digest_of_the_gpu_s_code_knows_what_governs_a_launch_and_no_comments(compiled):
    """The kernels with attributes have the instructions of that without."""
    options = ("-lineinfo", "-gencode=arch=compute_90a,code=sm_90a")
    plain = compiled(LAUNCHED, "a", *options)
    assert compiled(f"// one\n{LAUNCHED}", "a-folder-of-a-longer-name", *options) == plain
    changed = {
        LAUNCHED.replace("void scale", "void __cluster_dims__(4, 1, 1) scale"),
        LAUNCHED.replace("void scale", "void __launch_bounds__(256, 8) scale"),
        LAUNCHED.replace("scale<3>", "scale<5>"),
    }
    digests = {compiled(source, f"c{i}", *options)[1] for i, source in enumerate(changed)}
    assert len({plain[1], *digests}) == 1 + len(changed)


def test_the_digest_of_ptx_alone_is_that_of_its_text(compiled):
    options = ("-gencode=arch=compute_80,code=compute_80",)
    bounds = LAUNCHED.replace("void scale", "void __launch_bounds__(256, 8) scale")
    digests = {
        compiled(LAUNCHED, "a", *options)[1],
        compiled(bounds, "b", *options)[1],
        compiled(LAUNCHED, "c", *options, "-maxrregcount=32")[1],  # for who assembles it
    }
    assert len(digests) == 3


@KERNEL
def test_the_gated_shapes_of_the_kernel_can_be_launched():
    subject = pytest.importorskip("packed_gemv.subject").SUBJECT
    sizes = {device: named(subject.gate_params(device)) for device in ("cuda", "host")}
    assert len(sizes["cuda"]) == 20
    assert {params["m"] for params in sizes["cuda"].values()} == {1, 2, 8, 16, 32, 64}
    assert pairs_needed(len(sizes["cuda"])) <= 12
    for device, configs in sizes.items():
        for params in configs.values():
            weights = params["n"] * params["k"]
            assert subject.tensors(params)
            assert weights < (400_000 if device == "host" else 200_000_000)


# Arms -----------------------------------------------------------------------------------------

SUBJECT = """
import os
import sys
import time
from lanecheck.bench.plan import BenchSubject
from lanecheck.values import real_values
import numpy as np
from lanecheck.subject import Product, Subject, Tensor

print("a kernel that talks")
SPOILT = False
BEFORE = None


class Small(Subject):
    name = "small"

    def draw(self, draw):
        return {axis: draw.integer(1, 4) for axis in "mnk"}

    def gate_params(self, device):
        return [{"m": 2, "n": 4, "k": 8}, {"m": 1, "n": 4, "k": 8}]

    def traffic(self, params):
        return 2 * params["m"] * params["k"]

    def tensors(self, params):
        m, n, k = (params[axis] for axis in "mnk")
        return [
            Tensor("x", (m, k), "bf16", "input"),
            Tensor("w", (n, k), "bf16", "input"),
            Tensor("y", (m, n), "fp32", "output"),
        ]

    def terms(self, params):
        return params["k"]

    def launch(self, library, params, buffers, stream):
        x, w, y = (buffers[name].elements for name in "xwy")
        product = (real_values(x) @ real_values(w).T).astype(np.float32)
        y[...] = product.view(np.uint32)
        if SPOILT:
            y[0, 0] ^= 1

    def products(self, params):
        return [Product("y", "x", "w")]

    def reference(self, params, inputs):
        return {"y": real_values(inputs["x"]) @ real_values(inputs["w"]).T}


SUBJECT = Small()
"""


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A repository with a small kernel, which is the current folder."""
    root = tmp_path / "checkout"
    package = root / "kernel" / "small_gemv"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "subject.py").write_text(SUBJECT)
    matrix = (REPOSITORY / "matrix.yaml").read_text()
    changed = re.sub(r"^subject: .*", "subject: small_gemv.subject:SUBJECT", matrix, flags=re.M)
    (root / "matrix.yaml").write_text(changed)
    (root / ".gitignore").write_text(".lanecheck/\n__pycache__/\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "a kernel")
    monkeypatch.syspath_prepend(str(root / "kernel"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(root)
    return root


def change(checkout: Path, old: str = "SPOILT = False", new: str = "SPOILT = bool(0)") -> None:
    file = checkout / "kernel" / "small_gemv" / "subject.py"
    file.write_text(file.read_text().replace(old, new))


def worktrees(checkout: Path) -> int:
    left = [*checkout.parent.glob("lanecheck-*")]
    assert not left, left
    return git(checkout, "worktree", "list").count("\n")


REFERENCE = "small_gemv.subject:SUBJECT"


# Real processes -------------------------------------------------------------------------------


@GIT
def test_a_whole_comparison(checkout, lanecheck):
    words = ("compare", "HEAD", ".", "--device", "host", "--pairs", "1", "--rounds", "2")
    code, said, _ = lanecheck(*words)
    assert code == 0
    assert "SAME: same machine code and same host code: there is nothing to time" in said
    assert not (checkout / ".lanecheck").exists()

    change(checkout)
    code, said, _ = lanecheck(*words, "--plan")
    assert code == 0
    assert "base and head differ in subject.py" in said
    assert re.search(r"4 processes, each of 2 configs: about \d+ s", said)
    assert not (checkout / ".lanecheck").exists()

    code, said, complaint = lanecheck(*words, "--json", "record.json")
    assert code == 3, complaint
    assert "host execution: this exercises the gate, and says nothing of a GPU" in said
    assert "2 configs need 8 pairs: expect INSUFFICIENT" in said
    assert re.search(r"M=2 N=4 K=8 .* INSUFFICIENT", said)
    record = PairingRecord.model_validate_json(Path("record.json").read_bytes())
    assert record.verdict is Verdict.INSUFFICIENT
    assert record.header.base.commit == git(checkout, "rev-parse", "HEAD").strip()
    assert [process.turn for process in record.processes] == schedule(1, record.header.seed)
    assert record.lost == () and record.rates is None
    machine = record.header.machine
    assert f"the gate's own errors: none is recorded for {machine}; see lanecheck power" in said
    assert not any(Path(".lanecheck/compare").iterdir())

    alike = [
        identical(seed, device="host", machine=machine, subject=REFERENCE) for seed in range(2)
    ]
    store.save(report(power=measured(*alike)), checkout, record=True)
    code, said, _ = lanecheck(*words, "--json", "again.json")
    assert code == 3
    assert "from the log" not in said
    assert "the gate's own errors: of 2 real comparisons of identical code 0 alarmed" in said
    assert "12 pairs, with other arch, pairs, rounds, configs, benchmark than here)" in said
    again = PairingRecord.model_validate_json(Path("again.json").read_bytes())
    assert again.rates is not None and again.rates.sentence in said
    assert again.header == record.header and again.processes != record.processes
    assert worktrees(checkout) == 1


@GIT
def test_a_wrong_kernel_is_refused(checkout, lanecheck):
    change(checkout, new="SPOILT = True")
    code, said, _ = lanecheck("compare", "HEAD", ".", "--device", "host")
    assert code == 1
    assert "WRONG: head is not shown correct, so nothing is timed: M=2 N=4 K=8" in said
    assert "goes on" not in said
    assert worktrees(checkout) == 1


@GIT
def test_an_interrupt_leaves_no_process_no_worktree_and_a_usable_log(checkout):
    change(checkout)
    command = [sys.executable, "-m", "lanecheck", "compare", "HEAD", ".", "--device", "host"]
    path = os.pathsep.join([str(checkout / "kernel"), str(fresh.HARNESS)])
    environment = {**os.environ, "PYTHONPATH": path}
    running = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    logs = checkout / ".lanecheck" / "compare"
    for _ in until(60):
        assert running.poll() is None, running.communicate()
        if any(b'"entry":"process"' in log.read_bytes() for log in logs.glob("*.jsonl")):
            break
    assert left(checkout.parent)
    running.send_signal(signal.SIGINT)
    _, complaint = running.communicate(timeout=30)
    assert running.returncode == 130, complaint
    said = [line for line in complaint.splitlines() if "interrupted" in line]
    log = next((checkout / ".lanecheck" / "compare").iterdir())
    assert said == [f"lanecheck: interrupted; the same command goes on from {log}"]
    assert worktrees(checkout) == 1
    for _ in until(10):
        if not left(checkout.parent):
            break
    (log,) = logs.iterdir()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["entry"] for line in lines[:6]] == ["header", *["shown"] * 4, "process"]


def left(temporary: Path) -> list[str]:
    """The processes that were started with this TMPDIR."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"TMPDIR={temporary}\0".encode() in (process / "environ").read_bytes():
                found.append(process.name)
    return found


def until(seconds: float) -> Iterator[None]:
    """Again and again, for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.05)
    raise TimeoutError


def test_without_a_gpu_there_is_a_host(monkeypatch, lanecheck):
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(gpu, "detect", list)
    code, _, complaint = lanecheck("compare", "HEAD", ".")
    assert code == 3
    assert re.search("no GPU on this machine loads .*; use --device host", complaint)


@pytest.fixture
def gpus(monkeypatch) -> list[gpu.Gpu]:
    """A machine of three GPUs, of which the second does not load sm_90a."""
    kinds = [("NVIDIA H200", "9.0"), ("NVIDIA RTX 4090", "8.9"), ("NVIDIA H100", "9.0")]
    found = [gpu.Gpu(*kind, f"GPU-{i}") for i, kind in enumerate(kinds)]
    monkeypatch.setattr(gpu, "detect", lambda: found)
    return found


def test_the_gpu_is_the_one_that_is_chosen_of_those_that_load_the_arch(gpus):
    loaded = matrix_file.load(REPOSITORY / "matrix.yaml")
    for index, of in ((0, gpus[0]), (1, gpus[2])):
        place, environment = comparing._place(loaded, "cuda", "sm_90a", index)
        assert environment["CUDA_VISIBLE_DEVICES"] == of.uuid
        assert (place.machine, place.unit) == (of.name, gpu.unit(of.uuid))


def test_a_gpu_that_is_not_there_is_refused(gpus, monkeypatch, lanecheck):
    monkeypatch.chdir(REPOSITORY)
    code, _, complaint = lanecheck("compare", "HEAD", ".", "--gpu", "2")
    assert code == 2
    assert "there is no --gpu 2: sm_90a is loaded here by 2 GPUs, from --gpu 0 on" in complaint
    code, _, complaint = lanecheck("compare", "HEAD", ".", "--gpu", "1", "--device", "host")
    assert (code, "--gpu is for --device cuda" in complaint) == (2, True)


@pytest.mark.parametrize(
    ("names", "seen"),
    [
        (None, "0 1 2"),
        ("2,0", "2 0"),
        ("GPU-1", "1"),
        ("gpu-2, 1,1", "2 1"),
        ("0,7,1", "0"),
        ("", ""),
        ("-1", ""),
        ("MIG-1", ""),
    ],
)
def test_gpus_that_cuda_may_not_see_are_not_there(names, seen, gpus):
    assert gpu.visible(gpus, names) == [gpus[int(index)] for index in seen.split()]


def test_the_log_of_each_gpu_has_a_name_of_its_own():
    def log(unit: str) -> str:
        return ready(Scripted(), place=Place("cuda", None, "9.0", "NVIDIA H200", unit)).log

    assert log("u0") != log("u1")
    assert log("u0").endswith("-cuda-u0.jsonl")


PACKAGE = Path(comparison.__file__).parents[2]


def test_rates_outlive_an_edit_of_what_no_comparison_executes(tmp_path):
    """What draws, times or judges, however little of it is edited, measures otherwise."""

    def edited(name: str) -> bool:
        before = timing_code(package)
        with (package / name).open("a") as file:
            file.write("\n# edited\n")
        return timing_code(package) != before

    package = tmp_path / "lanecheck"
    shutil.copytree(PACKAGE, package, ignore=LEFTOVERS)
    for name in (
        "peers/gemlite",
        "table",
        "model",
        "ncu",
        "race",
        "ceiling",
        "run",
        "new",
        "paired/table",
    ):
        assert not edited(f"bench/{name}.py"), name
    for name in ("timing", "inquiry", "cuda_rig", "paired/gate", "paired/power", "paired/new"):
        assert edited(f"bench/{name}.py"), name
    assert edited("trial.py") and edited("values.py") and edited("__init__.py")


def test_all_that_the_process_which_times_loads_is_timing_code():
    loaded = (
        "import sys, lanecheck.bench.paired.process\n"
        "for name, module in sys.modules.items():\n"
        "    if name.split('.')[0] == 'lanecheck': print(module.__file__)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", loaded],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    files = {Path(line).relative_to(PACKAGE).as_posix() for line in said.splitlines()}
    assert "bench/doubts.py" in files <= timing_code(PACKAGE).keys()


def test_timing_code_is_found_through_imports_inside_functions_too(tmp_path):
    files = {
        "__init__.py": "",
        "bench/paired/process.py": "def f():\n    from lanecheck.a import b, c\nimport numpy\n",
        "bench/paired/gate.py": "import lanecheck.not_followed\n",
        "a/__init__.py": "",
        "a/b.py": "import lanecheck.d as e\n",
        "d.py": "import lanecheck.a.b\n",
    }
    for name, text in {**files, "not_followed.py": "", "a/other.py": ""}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert timing_code(tmp_path).keys() == files.keys()


def test_every_verdict_has_an_exit_code():
    assert {verdict: comparing.EXIT_CODES.get(verdict, 0) for verdict in Verdict} == {
        Verdict.SLOW: 1,
        Verdict.INSUFFICIENT: 3,
        Verdict.AMBIGUOUS: 0,
        Verdict.FAST: 0,
        Verdict.SAME: 0,
    }
