"""The benchmark's arithmetic and its rules, under a clock that says what a test wants it to say."""

from __future__ import annotations

import io
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pydantic import ValidationError
from rich.console import Console

from lanecheck.bench import ceiling, correctness, log, plan, telemetry, timing
from lanecheck.bench.ceiling import READERS, Geometry
from lanecheck.bench.device import cuda_torch
from lanecheck.bench.host_rig import HostRig
from lanecheck.bench.judgement import Judgement, doubt
from lanecheck.bench.machine import Absent, Environment, Reading, Telemetry
from lanecheck.bench.model import FASTER_THAN_MEMORY, BenchRecord, Measurement, Row, Timing, Traffic
from lanecheck.bench.plan import Workload
from lanecheck.bench.race import Rivals, row
from lanecheck.bench.rig import COLD_SINGLE, WARM_CHAIN
from lanecheck.bench.spread import Spread
from lanecheck.bench.table import render
from lanecheck.errors import BadInput, CannotRun
from lanecheck.executor import ORACLE
from lanecheck.subject import Bits, Buffer, Draw, Params, Subject, Tensor
from lanecheck.subject import Product as MatrixProduct
from lanecheck.trial import Target
from lanecheck.verdict import Outcome

SIZE = 1_000_000  # bytes a launch; at 1 µs that is 1000 GB/s


class Product(Subject):
    """``y = x · Wᵀ`` in numpy: a subject without a library. ``wrong`` spoils one column."""

    name = "product"

    def __init__(self, wrong: bool = False, out: str = "fp32", inflated: int = 1) -> None:
        self.wrong, self.out, self.inflated = wrong, out, inflated

    def draw(self, draw: Draw) -> dict[str, int | str]:
        return {axis: draw.integer(1, 9) for axis in "mnk"}

    def bench_params(self) -> list[Params]:
        return [{"m": 2, "n": 1500, "k": 32}]

    def traffic(self, params: Params) -> int:
        m, n, k = (int(params[axis]) for axis in "mnk")
        return self.inflated * (2 * (m + n) * k + (4 if self.out == "fp32" else 2) * m * n)

    def tensors(self, params: Params) -> list[Tensor]:
        m, n, k = (int(params[axis]) for axis in "mnk")
        return [
            Tensor("x", (m, k), "bf16", "input"),
            Tensor("w", (n, k), "bf16", "input"),
            Tensor("y", (m, n), "fp32" if self.out == "fp32" else "bf16", "output"),
        ]

    def terms(self, params: Params) -> int:
        return int(params["k"])

    def launch(
        self, library: Any, params: Params, buffers: Mapping[str, Buffer], stream: int
    ) -> str | None:
        x, w, y = (buffers[name].elements for name in "xwy")
        assert x is not None and w is not None and y is not None
        y[...] = _product(x, w).view(np.uint32)
        if self.wrong:
            y[:, -1] ^= 1
        return None

    def reference(
        self, params: Params, inputs: Mapping[str, Bits]
    ) -> dict[str, npt.NDArray[np.float64]]:
        return {"y": _product(inputs["x"], inputs["w"]).astype(np.float64)}

    def products(self, params: Params) -> list[MatrixProduct]:
        return [MatrixProduct("y", "x", "w")]


def _product(x: Bits, w: Bits) -> npt.NDArray[np.float32]:
    wide_x, wide_w = ((bits.astype(np.uint32) << 16).view(np.float32) for bits in (x, w))
    product: npt.NDArray[np.float32] = wide_x @ wide_w.T
    return product


class Script:
    """Samples that take what they are told, and in which order they were asked."""

    def __init__(self, **times: Sequence[float]) -> None:
        self.order: list[str] = []
        self.samples = {name: self._sample(name, iter(values)) for name, values in times.items()}

    def _sample(self, name: str, times: Iterator[float]) -> timing.Sample:
        def sample() -> float:
            self.order.append(name)
            return next(times)

        return sample


def passed(oracle: str = "integers") -> Judgement:
    return Judgement(line="product m=1", oracle=oracle, outcome=Outcome.PASS)


def failed() -> Judgement:
    return Judgement(line="product m=1", oracle="bits", outcome=Outcome.FAIL, evidence="y[0] is 1")


def timed(
    judgements: Sequence[Judgement],
    subject: Sequence[float] = (10.0, 11.0, 12.0),
    ceiling: Sequence[float] = (8.0, 8.8, 9.6),
    linear: Sequence[float] = (20.0, 22.0, 30.0),
    size: int = SIZE,
    **more: Any,
) -> Row:
    measured = Timing.of(
        method="a method",
        copies=3,
        subject=Measurement.of("subject", subject, size),
        ceiling=Measurement.of("ceiling", ceiling, size),
        peers=[Measurement.of("linear", linear, size)],
        absent=[Absent(name="triton", reason="not installed")],
        **more,
    )
    return Row.of({"m": 1}, traffic(size), judgements, measured)


def traffic(size: int = SIZE) -> Traffic:
    return Traffic(formula=plan.FORMULA, bytes=size)


def record(*rows: Row) -> BenchRecord:
    return BenchRecord(
        subject="product",
        library_sha256="0" * 64,
        seed=0,
        rounds=3,
        environment=Environment(
            gpu="GPU",
            capability="9.0",
            sms=132,
            l2_bytes=60 << 20,
            memory_bytes=141 << 30,
            memory_clock_mhz=None,
            driver=None,
            torch="2.11",
            cuda="13.0",
        ),
        telemetry=Telemetry(
            before=Absent(name="telemetry", reason="none"), after=telemetry_reading()
        ),
        rows=rows,
    )


def telemetry_reading() -> Reading:
    return Reading(
        sm_clock_mhz=1980,
        memory_clock_mhz=None,
        temperature_c=30,
        power_w=100.5,
        power_limit_w=700.0,
        clock_event_reasons=("gpu_idle",),
        other_processes=0,
    )


# Statistics -----------------------------------------------------------------------------------


def test_spread_is_the_median_and_the_inclusive_quartiles() -> None:
    assert Spread.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(median=3.0, q1=2.0, q3=4.0)
    assert Spread.of([7.0]) == Spread(median=7.0, q1=7.0, q3=7.0)


def test_ratios_are_taken_round_by_round() -> None:
    # The medians' ratio would be 2; a drift that meets both contenders alike cancels.
    crossed = Spread.of_ratios([1.0, 2.0], [2.0, 1.0])  # 0.5 and 2, not 1 and 1
    assert crossed == Spread(median=1.25, q1=0.875, q3=1.625)
    drift = Spread.of_ratios([2.0, 4.0, 8.0], [1.0, 2.0, 4.0])
    assert drift == Spread(median=2.0, q1=2.0, q3=2.0) and drift.width == 0
    with pytest.raises(ValueError):
        Spread.of_ratios([1.0], [1.0, 2.0])


def test_rows_hold_speed_share_and_speedup() -> None:
    measured = timed([passed()]).timing
    assert measured is not None
    assert measured.subject.time_us.median == 11.0
    assert measured.subject.gbps == pytest.approx(SIZE / 11.0 / 1e3)
    assert measured.share_of_ceiling.median == pytest.approx(0.8)
    assert measured.share_of_ceiling.width == pytest.approx(0.0)
    assert measured.speedup["linear"].median == pytest.approx(2.0)
    assert measured.speedup["linear"].q3 == pytest.approx(2.25)
    assert [each.name for each in measured.absent] == ["triton"]


def test_what_follows_from_a_timing_is_asked_of_it() -> None:
    alone = Measurement.of(COLD_SINGLE, [14.0], SIZE)
    absent = [Absent(name=name, reason="…") for name in (WARM_CHAIN, "triton")]
    row = timed([passed()])
    assert row.timing is not None and row.counted is row.timing
    assert row.timing.fastest == ("linear", row.timing.speedup["linear"])
    assert timed([passed()], subject=(7.0, 7.7, 8.4)).counted is None
    assert row_without_timing().counted is None
    nobody = row.timing.model_dump() | {"peers": (), "speedup": {}}
    other = Timing.model_validate(nobody | {"modes": (alone,), "absent": tuple(absent)})
    assert other.fastest is None
    assert other.mode(COLD_SINGLE) == alone and other.mode(WARM_CHAIN) is None
    assert [each.name for each in other.absent_peers] == ["triton"]


# Timing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1 << 20, 32 << 20, 600_000_000, 2 << 30])
@pytest.mark.parametrize("l2", [40 << 20, 60 << 20, 128 << 20])
def test_between_two_uses_of_a_copy_the_rotation_passes(size: int, l2: int) -> None:
    apart = (timing.copies(size, l2) - 1) * size
    assert apart >= max(600_000_000, 8 * l2)
    assert apart - size < max(600_000_000, 8 * l2)  # and no copy more


@pytest.mark.parametrize("count", [2, 5, 127, 128, 129])
def test_a_graph_is_whole_turns_over_the_copies(count: int) -> None:
    launches = [lambda stream, i=i: None for i in range(count)]
    turns = timing.rotation(launches)
    enough = min(timing.GRAPH_LAUNCHES, timing.GRAPH_TURNS * count)
    assert len(turns) >= enough and len(turns) % count == 0
    assert all(turns[i] is launches[i % count] for i in range(len(turns)))


def test_contenders_alternate_in_random_order() -> None:
    rounds = 50
    script = Script(**{name: [float(i) for i in range(rounds)] for name in "abc"})
    taken = timing.interleave(script.samples, rounds, random.Random(1)).times
    by_round = [tuple(script.order[i : i + 3]) for i in range(0, 3 * rounds, 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in by_round)
    assert len(set(by_round)) == 6  # every order occurs
    assert taken["b"] == tuple(float(i) for i in range(rounds))


def test_a_round_in_which_the_device_was_held_back_counts_for_nobody() -> None:
    script = Script(**{name: [float(i) for i in range(4)] for name in "ab"})
    slow = "hw_slowdown", "sw_power_cap"
    states = iter([(), (), ("sw_power_cap",), (), (), (), (), slow])  # after each sample
    taken = timing.interleave(script.samples, 4, random.Random(0), lambda: next(states))
    assert taken.times == {"a": (0.0, 2.0), "b": (0.0, 2.0)}
    assert taken.discarded == 2 and taken.reasons == ("hw_slowdown", "sw_power_cap")


def test_a_sample_warms_up_and_divides_by_the_launches() -> None:
    done: list[str] = []
    chain = SimpleNamespace(
        launches=4, enqueue=lambda: done.append("enqueue"), time=lambda: done.append("time") or 20.0
    )
    assert timing.sampled(chain)() == 5.0  # type: ignore[arg-type]
    assert done == ["enqueue", "time"]


def test_only_what_fits_in_a_quarter_of_the_l2_is_warm() -> None:
    assert timing.warms(15 << 20, 60 << 20) and not timing.warms((15 << 20) + 1, 60 << 20)


class Event:
    """Of a device that has its own time: milliseconds, known once somebody has waited."""

    def __init__(self, at: float) -> None:
        self.at, self.waited = at, False

    def synchronize(self) -> None:
        self.waited = True

    def elapsed_time(self, later: Event) -> float:
        assert later.waited, "the work has not ended yet"
        return later.at - self.at


def test_instants_are_apart_by_seconds_of_device_time() -> None:
    start, stop = (timing.Instant(Event(at)) for at in (4.0, 6.5))
    assert stop - start == 0.0025


# What counts ----------------------------------------------------------------------------------


def test_a_correct_row_below_the_ceiling_counts() -> None:
    assert timed([passed("execution"), passed()]).void is None


@pytest.mark.parametrize("outcome", [each for each in Outcome if each is not Outcome.PASS])
def test_no_outcome_but_a_pass_shows_a_shape_correct(outcome: Outcome) -> None:
    other = Judgement(line="x", oracle="bits", outcome=outcome, evidence="e")
    assert doubt([passed(), other]) == f"bits: {outcome.value}: e"


def test_an_oracle_that_compares_no_sums_has_not_looked_at_the_numbers() -> None:
    looked = [passed(name) for name in ("execution", "poison", "stability", "precision")]
    assert doubt(looked) == "no oracle looked at the numbers"


def test_the_fastest_loop_is_the_ceiling() -> None:
    said = {"slow": 3.0, "fast": 1.0, "middle": 2.0}
    launches: dict[str, Any] = {name: [lambda stream: None] for name in said}
    names = {id(each): name for name, each in launches.items()}
    clock: Any = SimpleNamespace(prepare=lambda given: lambda: said[names[id(given)]])
    assert ceiling._fastest(launches, clock, random.Random(0))[0] == "fast"


def test_a_row_that_was_held_back_or_died_is_no_last_word() -> None:
    wrong = Row.of({}, traffic(), [failed()], None)
    assert log.lasting(timed([passed()])) and log.lasting(wrong)
    assert not log.lasting(timed([passed()], discarded=4, held_back=["heat"]))
    died = Judgement(line="x", oracle=ORACLE, outcome=Outcome.FAIL, evidence="the process ended")
    assert not log.lasting(Row.of({}, traffic(), [died], None))


def test_faster_than_memory_is_void_and_keeps_its_samples() -> None:
    fast = timed([passed()], subject=(7.0, 7.7, 8.4))
    assert fast.void == FASTER_THAN_MEMORY
    assert fast.timing is not None and fast.timing.subject.samples_us == (7.0, 7.7, 8.4)


def test_a_row_of_which_most_rounds_were_discarded_is_void() -> None:
    assert timed([passed()], discarded=3, held_back=["sw_power_cap"]).void is None
    few = timed([passed()], discarded=4, held_back=["sw_power_cap"])
    assert few.void == "the GPU was held back in 4 of 7 rounds (sw_power_cap)"
    none = Row.of({}, traffic(), [passed()], None, "the GPU was held back in 3 of 3 rounds (heat)")
    assert none.void == none.untimed and none.timing is None
    with pytest.raises(ValidationError, match="no reason to lack it"):
        Row.of({}, traffic(), [passed()], few.timing, "held back")


def test_above_the_ceiling_within_the_spread_counts() -> None:
    # Shares 0.9, 1.0, 1.01, 1.1, 1.2: the median is 1 % above, the quartiles 10 % apart.
    times = [1 / share for share in (0.9, 1.0, 1.01, 1.1, 1.2)]
    close = timed([passed()], subject=times, ceiling=(1.0,) * 5, linear=(2.0,) * 5)
    assert close.void is None


@pytest.mark.parametrize(
    ("shares", "counts"),
    [
        ([1.019], True),
        ([1.021], False),  # of one round no error is known
        ([1.021, 1.021, 1.021], False),
        ([1.03 + 0.07 * (i - 14.5) / 15 for i in range(30)], True),
        ([1.06 + 0.07 * (i - 14.5) / 15 for i in range(30)], False),
    ],
)
def test_above_the_ceiling_by_two_per_cent_and_the_error_of_the_median_is_void(
    shares: Sequence[float], counts: bool
) -> None:
    times, ones = [1 / share for share in shares], [1.0] * len(shares)
    found = timed([passed()], subject=times, ceiling=ones, linear=ones)
    assert (found.void is None) == counts


@pytest.mark.parametrize(
    ("judgements", "reason"),
    [
        ([passed(), failed()], "bits: fail: y[0] is 1"),
        ([], "no oracle looked at the numbers"),
        ([passed("execution"), passed("poison")], "no oracle looked at the numbers"),
    ],
)
def test_a_row_that_is_not_shown_correct_is_void_and_has_no_times(
    judgements: list[Judgement], reason: str
) -> None:
    void = Row.of({}, traffic(), judgements, None)
    assert void.void == f"not shown correct: {reason}"
    with pytest.raises(ValidationError, match="has no timing"):
        Row.of({}, traffic(), judgements, timed([passed()]).timing)


def test_a_wrong_subject_is_never_timed() -> None:
    def enter(copies: int) -> Rivals:
        raise AssertionError("timed")

    subject = Product(wrong=True)
    (params,) = subject.bench_params()
    workload, rig = Workload(subject, params, 0), HostRig(None, "9.0")
    found = row(workload, Target("…"), rig, enter, 3, random.Random(0))
    assert found.timing is None and str(found.void).startswith("not shown correct: integers")


def test_a_record_that_contradicts_its_evidence_cannot_be_made() -> None:
    good = timed([passed()])
    contradictions: list[dict[str, Any]] = [
        {"correctness": [failed().model_dump(mode="json")]},
        {"void": FASTER_THAN_MEMORY},
        {"timing": None},
    ]
    for change in contradictions:
        text = good.model_dump(mode="json") | change
        with pytest.raises(ValidationError):
            Row.model_validate_json(json.dumps(text))


SLOW = {"median": 0.8, "q1": 0.8, "q3": 0.8}


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("timing", "share_of_ceiling"), SLOW, "share_of_ceiling is .* but the samples say"),
        (("timing", "share_of_ceiling", "q3"), 1.2, "share_of_ceiling is"),
        (("timing", "share_of_ceiling", "median"), 1.142840, "share_of_ceiling is"),
        (("timing", "share_of_ceiling", "median"), math.nan, "share_of_ceiling is"),
        (("timing", "speedup", "linear", "median"), 3.0, "speedup over linear is"),
        (("timing", "speedup"), {}, "speedup is not of the peers"),
        (("timing", "subject", "time_us", "median"), 8.0, "subject: time_us is"),
        (("timing", "ceiling", "samples_us"), [8.0, 8.8], "ceiling: time_us is"),
        (("timing", "subject", "samples_us"), [0.0, 7.7, 15.4], "subject: a sample is no time"),
        (("timing", "subject", "gbps"), 125.0, "subject: gbps is 125.0, which is not"),
        (("timing", "modes", 0, "gbps"), 125.0, "cold single: gbps is 125.0"),
        (("timing", "copy_ceiling", "samples_us"), [9.0], "a round lacks a contender"),
        (("traffic", "bytes"), SIZE + 100, "gbps is"),
    ],
)
def test_a_figure_that_does_not_follow_from_the_samples_cannot_be_recorded(
    path: Sequence[Any], value: Any, reason: str
) -> None:
    of = Measurement.of
    more = {
        "modes": [of(COLD_SINGLE, [14.0], SIZE)],
        "copy_ceiling": of("copy", [9.0] * 3, SIZE),
    }
    text = timed([passed()], subject=(7.0, 7.7, 8.4), **more).model_dump(mode="json")
    assert Row.model_validate_json(json.dumps(text)).void == FASTER_THAN_MEMORY
    *parents, last = path
    place = reduce(lambda at, name: at[name], parents, text)
    place[last] = value
    with pytest.raises(ValidationError, match=reason):
        Row.model_validate_json(json.dumps(text | {"void": None}))


def test_figures_that_differ_by_rounding_alone_can_be_recorded() -> None:
    text = timed([passed()]).model_dump(mode="json")
    text["timing"]["share_of_ceiling"]["median"] *= 1 + 5e-7
    text["timing"]["subject"]["gbps"] *= 1 - 5e-7
    assert Row.model_validate_json(json.dumps(text)).void is None


def test_the_record_survives_json() -> None:
    whole = record(timed([passed()]), row_without_timing())
    again = BenchRecord.model_validate_json(whole.model_dump_json())
    assert again == whole and not again.valid
    with pytest.raises(ValidationError, match="extra"):
        BenchRecord.model_validate_json(json.dumps(whole.model_dump(mode="json") | {"more": 1}))


def row_without_timing() -> Row:
    return Row.of({"m": 8}, traffic(), [failed()], None)


def test_the_table_shows_every_row_and_its_verdict() -> None:
    out = io.StringIO()
    table = render(record(timed([passed()]), row_without_timing()))
    Console(file=out, width=200).print(table)
    text = out.getvalue()
    assert "80.0% ±0.0%" in text and "2.000 linear" in text
    assert "void: M=8: not shown correct: bits: fail: y[0] is 1" in text
    assert "1: not installed" in text


def test_many_shapes_are_summed_up_by_the_first_parameter() -> None:
    out = io.StringIO()
    slow = timed([passed()], subject=[30.0, 33.0, 36.0])
    fast = timed([passed()], subject=(7.0, 7.7, 8.4))
    assert fast.timing and fast.void  # counts for nothing
    rows = [timed([passed()])] * 30 + [slow] * 10 + [fast] + [row_without_timing()]
    Console(file=out, width=140).print(render(record(*rows)))
    text = " ".join(out.getvalue().split())
    span = "26.7% … 80.0% … 80.0% │ 40 │ 1 of 2 │ 0.667 … 2.000 … 2.000"
    assert f"1 │ 41 │ 1 │ {span} │ 10 │" in text
    assert "8 │ 1 │ 1 │ – │ 0 │ 0 of 0 │ – │ 0 │" in text
    assert "linear │ 40 │ 0.667 … 2.000 … 2.000 │ 40 │" in text


# Correctness ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [False, True])
def test_shapes_are_judged_whole_and_reduced(wrong: bool) -> None:
    subject = Product(wrong)
    (params,) = subject.bench_params()
    workload, rig = Workload(subject, params, seed=3), HostRig(None, "9.0")
    judgements = correctness.judge(workload, Target("…"), rig)
    lines = [judgement.line for judgement in judgements]
    assert any("n=1500" in line and "regime=small" in line for line in lines)
    assert any("n=64" in line and "regime=normal" in line for line in lines)
    integers = next(j for j in judgements if j.oracle == "integers")
    assert integers.outcome is (Outcome.FAIL if wrong else Outcome.PASS)


def test_a_subject_may_not_count_more_traffic_than_it_holds() -> None:
    params = Product().bench_params()[0]
    assert Workload(Product(), params, 0).bytes == 2 * (2 + 1500) * 32 + 4 * 2 * 1500
    with pytest.raises(BadInput, match="operands hold"):
        Workload(Product(inflated=2), params, 0)


def test_a_subject_without_shapes_is_refused() -> None:
    with pytest.raises(BadInput, match=r"no bench_params\(\)"):
        plan.benchable(SimpleNamespace(name="plain"))


# The ceiling ----------------------------------------------------------------------------------


def test_a_geometry_covers_every_vector() -> None:
    assert len(set(map(str, READERS))) == len(READERS)
    tiled = Geometry(256, 8, 0)
    assert tiled.grid(2048 * 10 + 1, sms=132) == 11
    assert replace(tiled, ctas=2).grid(2048 * 1000, sms=132) == 264
    assert replace(tiled, ctas=2).grid(1, sms=132) == 1


# The machine ----------------------------------------------------------------------------------


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    without = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", without)
    with pytest.raises(CannotRun, match="sees no GPU"):
        cuda_torch()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CannotRun, match="needs torch"):
        cuda_torch()


def test_telemetry_without_its_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    absent = telemetry.read("uuid")
    assert isinstance(absent, Absent) and "nvidia-ml-py" in absent.reason
    assert telemetry.driver_and_memory_clock("uuid") == (None, None)
    with telemetry.watch("uuid") as held_back:
        assert held_back() == ()


def test_telemetry_reads_what_the_driver_tells(nvml: ModuleType) -> None:
    reading = telemetry.read("1234")
    assert reading == Reading(
        sm_clock_mhz=1980,
        memory_clock_mhz=3201,
        temperature_c=41,
        power_w=123.4,
        power_limit_w=None,
        clock_event_reasons=("sw_power_cap", "hw_thermal_slowdown"),
        other_processes=1,
    )
    assert telemetry.driver_and_memory_clock("1234") == ("580.1", 3201)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A driver that does not tell its power limit."""

    class NVMLError(Exception):
        pass

    def refuse(gpu: object) -> None:
        raise NVMLError("Not Supported")

    fake: Any = ModuleType("pynvml")
    fake.NVMLError = NVMLError
    fake.NVML_CLOCK_SM, fake.NVML_CLOCK_MEM, fake.NVML_TEMPERATURE_GPU = 1, 2, 0
    fake.nvmlInit = fake.nvmlShutdown = lambda: None
    fake.nvmlDeviceGetHandleByUUID = lambda uuid: {"GPU-1234": "gpu"}[uuid]
    fake.nvmlSystemGetDriverVersion = lambda: "580.1"
    fake.nvmlDeviceGetMaxClockInfo = lambda gpu, kind: 3201
    fake.nvmlDeviceGetClockInfo = lambda gpu, kind: {1: 1980, 2: 3201}[kind]
    fake.nvmlDeviceGetTemperature = lambda gpu, sensor: 41
    fake.nvmlDeviceGetPowerUsage = lambda gpu: 123400
    fake.nvmlDeviceGetEnforcedPowerLimit = refuse
    fake.nvmlDeviceGetCurrentClocksThrottleReasons = lambda gpu: 0x44
    pids = [SimpleNamespace(pid=pid) for pid in (os.getpid(), os.getpid() + 1)]
    fake.nvmlDeviceGetComputeRunningProcesses = lambda gpu: pids
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    yield fake


def test_a_watch_tells_what_holds_the_gpu_back(nvml: ModuleType) -> None:
    with telemetry.watch("1234") as held_back:
        assert held_back() == ("hw_thermal_slowdown",)
        nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda gpu: 0x1 | 0x2 | 0x10 | 0x100
        assert held_back() == ()


def test_importing_the_benchmark_needs_no_torch() -> None:
    script = "import sys; sys.modules['torch'] = None; import lanecheck.bench.run"
    subprocess.run([sys.executable, "-c", script], check=True)
