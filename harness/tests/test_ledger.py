"""The ledger: what the reports of one source come to, whichever was recorded last."""

from __future__ import annotations

import re
from typing import Any

import pytest
import test_bench
import test_bench_ncu
from test_bench_doubts import facts
from test_reports import MATRIX, campaign, cell, report

from lanecheck.bench.model import BenchRecord, Row
from lanecheck.matrix import Matrix
from lanecheck.reports.ledger import Entry, Run, ledger, standing
from lanecheck.reports.model import CampaignRecord, CellRecord, FailureRecord, Report

NUMBERS = {"judged": {"execution": 1, "bits": 1}}
NOTE = FailureRecord(line="small m=1", capability="9.0", oracle="bits", evidence="y is 1")


# The rule -------------------------------------------------------------------------------------


def runs(text: str) -> list[Run[int]]:
    """``a9 b5!``: nine good cases of the campaign a, then five of b, some of them wrong."""
    words = re.findall(r"([a-z])(\d+)(!?)", text)
    return [Run((name,), int(n), not bad, at) for at, (name, n, bad) in enumerate(words)]


@pytest.mark.parametrize(
    ("history", "stands"),
    [
        ("", ""),
        ("a9", "a9"),
        ("a9 b5", "a9 b5"),  # distinct campaigns add up
        ("a9 a1", "a9"),  # a part of what is known
        ("a1 a9", "a9"),
        ("b1 a9 b5 a9", "b5 a9"),  # of equally large ones the newest
        ("a9!", "a9!"),
        ("a9! a1", "a9!"),  # too small to hold the failing case
        ("a9! b99", "a9! b99"),  # another campaign
        ("a9! a9", "a9"),  # repeated, and good
        ("a5! a9", "a9"),
        ("a9 a5!", "a5!"),
        ("a9 a5! a5", "a9"),
        ("a9! a5! a5", "a9!"),  # the larger one has not been repeated
        ("a9! a5 a5 b1", "a9! b1"),
        ("a9! a9 a9!", "a9!"),
        ("a9! a9!", "a9!"),
    ],
)
def test_a_run_adds_to_what_is_known_and_a_failure_stands_until_it_is_repeated(history, stands):
    said = [f"{run.name[0]}{run.cases}{'' if run.good else '!'}" for run in standing(runs(history))]
    assert " ".join(said) == stands


def test_of_equally_large_runs_the_newest_stands():
    assert [run.evidence for run in standing(runs("a9 b5 a9 a1"))] == [1, 2]


# Cells of campaigns ---------------------------------------------------------------------------


def ran(
    cases: int, seed: int = 0, wrong: bool = False, host: bool = False, **other: Any
) -> CampaignRecord:
    on = {"device": "host", "variant": "plain", "capabilities": ["8.0", "9.0"]}
    if not host:
        on = {"device": "cuda", "variant": "sm_90a", "capabilities": ["9.0"]}
    what = {"cases": cases, "seed": seed, "failures": [NOTE] if wrong else []}
    return campaign().model_copy(update=NUMBERS | on | what | other)


def on_h100(*campaigns: CampaignRecord, day: int = 1, **more: Any) -> Report:
    wrong = any(each.failures for each in campaigns)
    status = "disproven" if wrong else "verified"
    shown = cell("sm_90a", "h100", "silicon", status, "as it was recorded")
    return report(shown, campaigns=[*campaigns], day=day, **more)


def entry(*reports: Report, name: str = "sm_90a/h100/silicon", matrix: Matrix = MATRIX) -> Entry:
    (found,) = (
        each
        for each in ledger(reports, matrix)
        if f"{each.cell.arch}/{each.cell.device}/{each.cell.job}" == name
    )
    return found


def said(found: Entry) -> tuple[str, str, int | None, int]:
    day = found.report.created.day if found.report else None
    return found.status, found.cell.reason, day, found.reports


def test_one_more_case_takes_nothing_from_thousands():
    found = entry(on_h100(ran(9712), day=1), on_h100(ran(1), day=2))
    assert said(found) == ("verified", "9,712 cases", 1, 1)


def test_distinct_campaigns_of_a_source_add_up_without_their_blind_cases():
    found = entry(
        on_h100(ran(60_000, seed=4, blind=4_000), day=1),
        on_h100(ran(50_000, seed=21), ran(5, landmarks="sizes"), day=2),
        on_h100(ran(130, landmarks="shapes"), day=3),
        on_h100(ran(130, landmarks="shapes"), day=4),
    )
    assert said(found) == ("verified", "106,135 cases", 4, 3)


@pytest.mark.parametrize(
    ("later", "status"),
    [
        (ran(1), "disproven"),
        (ran(9_999), "disproven"),
        (ran(60_000, seed=1), "disproven"),
        (ran(60_000, landmarks="shapes"), "disproven"),
        (ran(10_000), "verified"),
    ],
    ids=["one case", "one too few", "another seed", "landmarks", "the same cases"],
)
def test_a_disproof_stands_until_its_campaign_is_run_again_without(later, status):
    found = entry(on_h100(ran(10_000, wrong=True), day=1), on_h100(later, day=2))
    assert found.status == status
    assert found.cell.reason == (
        "10,000 cases" if status == "verified" else f"1 failures, first: {NOTE.line}"
    )
    assert found.report and found.report.created.day == (2 if status == "verified" else 1)


def test_another_source_takes_up_nothing_and_keeps_its_own():
    old = on_h100(ran(10_000, wrong=True), day=1, source="a")
    assert said(entry(old, on_h100(ran(5), day=2, source="b"))) == ("verified", "5 cases", 2, 1)
    more = on_h100(ran(7, seed=1), day=1, source="a"), on_h100(ran(8), day=2, source="a")
    newer = report(day=3, source="b")
    assert said(entry(*more, newer)) == ("stale", "15 cases", 2, 2)
    assert said(entry(old, newer)) == ("disproven", f"1 failures, first: {NOTE.line}", 1, 1)


def test_a_source_that_is_compiled_otherwise_is_another():
    def compiled(shown: Report, how: str) -> Report:
        source = shown.source.model_copy(update={"recipe_sha256": how})
        return shown.model_copy(update={"source": source})

    old = on_h100(ran(9), day=1)
    new = compiled(report(day=2), "-use_fast_math")
    assert entry(old, new).status == "verified"
    assert entry(compiled(old, "-use_fast_math"), new).status == "verified"
    assert entry(compiled(old, "-fmad=false"), new).status == "stale"


def test_another_order_of_additions_leaves_nothing_verified():
    other = cell("sm_90a", "h100", "silicon", "unverified", "reordered")
    reordered = report(other, campaigns=[ran(100, seed=1, reordered=[NOTE])], day=2)
    found = entry(on_h100(ran(9712), day=1), reordered)
    assert found.status == "unverified"
    assert found.cell.reason.startswith("1 of 100 cases reordered: the numbers are right")
    nothing = report(cell("sm_90a", "h100", "silicon", "unverified", "no GPU"), day=3)
    assert entry(on_h100(ran(9712), day=1), nothing).status == "verified"


def test_a_campaign_counts_for_the_product_that_it_ran_on():
    h200 = MATRIX.devices["h100"].model_copy(update={"name": "h200"})
    two = MATRIX.model_copy(update={"devices": {**MATRIX.devices, "h200": h200}})
    cells = [
        cell("sm_90a", "h100", "silicon", "disproven"),
        cell("sm_90a", "h200", "silicon", "verified"),
    ]
    of = {
        "h100": ran(7, wrong=True, gpu="NVIDIA H100 80GB HBM3"),
        "h200": ran(7, gpu="NVIDIA H200"),
    }
    both = report(*cells, campaigns=[*of.values()], gpus=["NVIDIA H100", "NVIDIA H200"])
    assert entry(both, matrix=two).status == "disproven"
    assert said(entry(both, name="sm_90a/h200/silicon", matrix=two))[:2] == ("verified", "7 cases")


def on_host(*campaigns: CampaignRecord, day: int = 1) -> Report:
    fuzz = CellRecord(
        arch="sm_90a", device="host", job="fuzz", status="verified", reason="", evidence="measured"
    )
    return report(fuzz, campaigns=[*campaigns], day=day)


def test_on_the_host_the_builds_add_up_and_their_model_is_named():
    fuzzed = MATRIX.jobs["build"].model_copy(update={"name": "fuzz"})
    matrix = MATRIX.model_copy(update={"jobs": {**MATRIX.jobs, "fuzz": fuzzed}})
    reports = (
        on_host(ran(10_000, host=True), ran(300, host=True, variant="asan"), day=1),
        on_host(ran(200_000, seed=1, host=True), day=2),
        on_host(ran(1, host=True), day=3),
    )
    found = entry(*reports, name="sm_90a/host/fuzz", matrix=matrix)
    assert said(found) == ("verified", "210,300 cases, measured model", 2, 2)
    assert found.cell.evidence == "measured"


# Cells of anything else -----------------------------------------------------------------------


def test_a_build_is_shown_by_the_newest_report_whole():
    first = report(cell("sm_80", "host", "build", "disproven", "it does not compile"), day=1)
    second = report(cell("sm_80", "host", "build", reason="library 2"), day=2)
    name = "sm_80/host/build"
    assert said(entry(first, second, name=name)) == ("verified", "library 2", 2, 1)
    assert said(entry(second, first, name=name)) == ("disproven", "it does not compile", 1, 1)


BENCH = MATRIX.model_copy(
    update={
        "jobs": {
            **MATRIX.jobs,
            "bench": MATRIX.jobs["silicon"].model_copy(update={"name": "bench"}),
        }
    }
)
BENCHED = "sm_90a/h100/bench"


LACKING = "1 of the subject's 2 usual shapes were not timed, such as M=1"


def timed(
    day: int,
    *good: int,
    wrong: int | None = None,
    doubted: bool = True,
    lacking: str = "",
    ncu: dict[int, bool] | None = None,
    rounds: int = 3,
) -> Report:
    """A report that times shapes of these M, finds one wrong, and by ncu that bytes agree or do not."""
    right = test_bench.timed([test_bench.passed()], facts=facts() if doubted else None)
    rows = [right.model_copy(update={"params": {"m": m}}) for m in good]
    found = [
        test_bench_ncu.profiled(row, test_bench.SIZE if ncu[m] else 2 * test_bench.SIZE)
        for m, row in zip(good, rows)
        if ncu and m in ncu
    ]
    if wrong:
        void = [test_bench.failed()]
        rows.append(Row.of({"m": wrong}, test_bench.traffic(), void, None))
    blamed = [f"m={wrong} is wrong"] if wrong else []
    blamed += [f"ncu doubts m={m}" for m, agrees in (ncu or {}).items() if not agrees]
    status, reason = ("unverified", lacking) if lacking else ("verified", f"{len(good)} shapes")
    if blamed:
        status, reason = "disproven", "; ".join(blamed)
    record = test_bench.record(*rows).model_dump() | {"profiled": tuple(found), "rounds": rounds}
    bench = cell("sm_90a", "h100", "bench", status, reason)
    return report(bench, day=day, bench=BenchRecord.model_validate(record))


def benched(*reports: Report) -> tuple[str, str, int | None, int]:
    return said(entry(*reports, name=BENCHED, matrix=BENCH))


def test_a_shape_that_was_wrong_stands_until_it_is_timed_again():
    swept = timed(1, 1, 4, wrong=2)
    assert said(entry(swept, timed(2, 1, 4), name=BENCHED, matrix=BENCH))[:2] == (
        "disproven",
        "m=2 is wrong",
    )
    found = entry(swept, timed(2, 1, 2), timed(3, 2, 8), name=BENCHED, matrix=BENCH)
    assert said(found) == ("verified", "4 shapes", 3, 3)


def test_a_cell_rests_on_no_time_that_nobody_doubted():
    old = timed(1, 1, 8, doubted=False)
    assert entry(old, name=BENCHED, matrix=BENCH).status == "stale"
    found = entry(old, timed(2, 1), name=BENCHED, matrix=BENCH)
    assert said(found) == ("verified", "1 shapes", 2, 1)


def test_a_run_that_verifies_no_cell_lifts_what_it_repeats_and_verifies_nothing_by_itself():
    swept, again = timed(1, 4, wrong=2), timed(2, 2, 4, lacking=LACKING)
    assert benched(swept, again) == ("unverified", LACKING, 2, 1)
    assert benched(swept, timed(2, 4, lacking=LACKING))[:2] == ("disproven", "m=2 is wrong")
    assert benched(again) == ("unverified", LACKING, 2, 1)
    assert benched(swept, again, timed(3, 1, 2)) == ("verified", "3 shapes", 3, 2)


def test_a_run_that_verifies_no_cell_takes_nothing_from_one_that_does():
    usual, narrow = timed(1, 1, 2), timed(2, 1, 2, lacking=LACKING)
    assert benched(usual, narrow)[:2] == ("verified", "2 shapes")
    assert benched(usual, timed(2, 1, wrong=2), narrow)[:2] == ("verified", "2 shapes")
    assert benched(usual, narrow, timed(3, wrong=2))[:2] == ("disproven", "m=2 is wrong")


def test_a_run_of_fewer_rounds_lifts_nothing():
    swept = timed(1, wrong=2, rounds=12)
    assert benched(swept, timed(2, 2, lacking=LACKING, rounds=11))[0] == "disproven"
    assert benched(swept, timed(2, 2, lacking=LACKING, rounds=12))[0] == "unverified"


def test_a_verify_without_a_benchmark_says_nothing_of_one():
    without = report(cell("sm_90a", "h100", "bench", "unverified", "no GPU"), day=2)
    assert benched(timed(1, wrong=2), without)[:2] == ("disproven", "m=2 is wrong")
    assert benched(timed(1, 2), without)[:2] == ("verified", "1 shapes")
    assert benched(without) == ("unverified", "no GPU", 2, 1)


def test_why_nothing_is_known_a_machine_with_gpus_says_best():
    with_gpu = report(cell("sm_90a", "h100", "bench", "unverified", "run bench"), gpus=["X"])
    without = report(cell("sm_90a", "h100", "bench", "unverified", "no GPU"), day=2)
    assert benched(with_gpu, without)[1] == "run bench" == benched(without, with_gpu)[1]
    assert benched(without, report(day=3))[1] == "no GPU"


def test_a_time_that_nobody_doubted_lifts_nothing():
    old = timed(2, 2, doubted=False, lacking=LACKING, ncu={2: True})
    assert benched(timed(1, wrong=2), old)[:2] == ("disproven", "m=2 is wrong")
    assert benched(timed(1, 2, ncu={2: False}), old)[:2] == ("disproven", "ncu doubts m=2")
    assert benched(old) == ("unverified", LACKING, 2, 1)


@pytest.mark.parametrize("wrong", [None, 8])
def test_what_nsight_compute_doubts_stands_until_it_measures_it_again(wrong):
    doubted = timed(1, 1, 2, wrong=wrong, ncu={1: True, 2: False})
    plain = timed(2, 1, 2, 8)
    assert benched(doubted, plain)[:2] == ("disproven", doubted.cells[0].reason)
    other = timed(3, 1, 2, ncu={1: True})
    assert benched(doubted, plain, other)[0] == "disproven"
    narrow = timed(3, 2, lacking=LACKING, ncu={2: True})
    assert benched(doubted, plain, narrow)[:2] == ("verified", "3 shapes")
    assert benched(doubted, timed(2, 1, 2, 8, ncu={2: True}))[:2] == ("verified", "3 shapes")
