"""The page of the bandwidth: which rows count, what is missing, who wins, and every number as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console
from test_bench import failed, passed, record
from test_bench_doubts import facts
from test_reports import MATRIX, report
from test_site import Page

from lanecheck.bench import table
from lanecheck.bench.doubts import Doubling
from lanecheck.bench.machine import Absent, Reading, Telemetry
from lanecheck.bench.model import BenchRecord, Measurement, Row, Timing, Traffic
from lanecheck.bench.rig import COLD_SINGLE, WARM_CHAIN
from lanecheck.bench.telemetry import POWER_CAP
from lanecheck.reports.model import Report
from lanecheck.site import bandwidth, chart, pages

SWEEP = [{"m": m, "n": n, "k": 64} for m in (1, 2) for n in (256, 512, 1024)]


def row(
    m: int = 1,
    n: int = 256,
    k: int = 64,
    us: float = 10.0,
    peers: Sequence[tuple[str, float]] = (("F.linear", 20.0),),
    absent: Sequence[tuple[str, str]] = (),
    correct: bool = True,
    timed: bool = True,
    doubted: bool = True,
    sustained: float = 1.0,
    **config: int | str,
) -> Row:
    """A row against a read ceiling of 8 µs; every sample of a contender is the same.

    Args:
        doubted: whether it has facts. sustained: its time without a rest over that of the race.
    """
    size = 2 * n * k

    def of(name: str, each: float, detail: str = "") -> Measurement:
        return Measurement.of(name, [each] * 3, size, detail)

    alone = sustained * us * 10
    once_and_twice = Doubling(once_us=alone, twice_us=2 * alone)
    timing = Timing.of(
        method="a method",
        copies=3,
        subject=of("product", us),
        ceiling=of("read ceiling", 8.0),
        copy_ceiling=of("copy ceiling", 9.0),
        peers=[of(*peer) for peer in peers],
        absent=[Absent(name=name, reason=reason) for name, reason in absent],
        modes=[of(COLD_SINGLE, 3 * us, "alone")],
        facts=facts(doublings=(once_and_twice,), launches=10) if doubted else None,
    )
    params: dict[str, int | str] = {"m": m, "n": n, "k": k, **config}
    return Row.of(
        params,
        Traffic(formula="each once", bytes=size),
        [passed() if correct else failed()],
        timing if correct and timed else None,
    )


def standing(*reports: Report, asked: Any = ()) -> bandwidth.Standing:
    (found,) = bandwidth.standings(reports, asked)
    return found


def built(tmp_path, *reports: Report, sweep: Any = SWEEP) -> tuple[str, str]:
    """The page's text and its markup."""
    pages.build(list(reports), MATRIX, tmp_path, sweep)
    html = (tmp_path / "bandwidth.html").read_text()
    return Page(html).text, html


def sheet(tmp_path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((tmp_path / "bandwidth.csv").read_text())))


def on(gpu: str, *rows: Row) -> BenchRecord:
    bench = record(*rows)
    environment = bench.environment.model_copy(update={"gpu": gpu})
    return bench.model_copy(update={"environment": environment})


# Which rows count


def test_the_newest_row_of_the_newest_source_counts_over_several_reports():
    found = standing(
        report(bench=record(row(us=10), row(n=512)), day=1),
        report(bench=record(row(us=16)), day=2),
        report(bench=record(row(m=2)), day=3),
    )
    assert {(each.title, each.counted.subject.time_us.median) for each in found.rows} == {
        ("M=1 N=256 K=64", 16),
        ("M=1 N=512 K=64", 10),
        ("M=2 N=256 K=64", 10),
    }
    assert not found.stale


def test_a_row_with_more_peers_or_else_more_rounds_outlives_newer_ones_but_not_bad_news():
    def shown(*reports: Report) -> tuple[int, int]:
        (only,) = standing(*reports).rows
        return (len(only.counted.peers), only.bench.rounds) if only.counted else (0, 0)

    def day(number: int, *peers: str, rounds: int, **changes: Any) -> Report:
        bench = record(row(peers=[(peer, 20.0) for peer in peers], **changes))
        bench = bench.model_copy(update={"rounds": rounds})
        return report(bench=bench, day=number)

    many = day(1, "F.linear", "gemlite", rounds=12)
    assert shown(many, day(2, "F.linear", rounds=30)) == (2, 12)
    assert shown(many, day(2, "F.linear", "gemlite", rounds=10)) == (2, 12)
    assert shown(many, day(2, "F.linear", "gemlite", rounds=30)) == (2, 30)
    wrong = day(2, rounds=12, correct=False)
    assert shown(many, wrong) == (0, 0) and shown(wrong, many) == (2, 12)


def test_a_row_that_nobody_doubted_counts_only_where_there_is_no_other(tmp_path):
    old, new = row(doubted=False, us=9), row(n=512, doubted=False)
    reports = report(bench=record(row(us=10)), day=1), report(bench=record(old, new), day=2)
    found = standing(*reports)
    assert [(each.row.params["n"], each.stale) for each in found.rows] == [
        (256, False),
        (512, True),
    ]
    assert found.grid[256, 64][1].row.timing.subject.time_us.median == 10
    assert "1 of 2 rows are of an earlier kernel source" in built(tmp_path, *reports)[0]


def test_times_that_are_not_steady_and_the_peers_that_took_part_are_counted(tmp_path):
    absent = [("gemlite", "too slow to tune")]
    reports = report(bench=record(row(absent=absent), row(n=512, sustained=1.03, absent=absent)))
    text, html = built(tmp_path, reports)
    assert "M = 1 2 of 3 80.0% 80.0% 80.0% on 1 2.000 on 0 1 of 2 without gemlite" in text
    assert ">80.0</td>" in html and ">80.0†</td>" in html
    assert (
        "unsteady:\nfrom the first rounds to the last 1.000 × the time\nalone, without a rest, 1.030 ×"
        in html
    )
    lines = [line for line in sheet(tmp_path) if line["role"] == "subject"]
    assert [line["unsteady"] for line in lines] == ["0", "1"]
    assert [line["sustained"] for line in lines] == ["1.00000", "1.03000"]


def test_where_the_kernel_is_not_steady_it_is_said_how_the_best_peer_does_without_a_rest(tmp_path):
    burst = row(sustained=1.03)
    assert burst.timing
    own, (peer,) = burst.timing.subject, burst.timing.peers
    unrested = {
        "subject": own.model_copy(update={"sustained_us": 10.3}),
        "peers": (peer.model_copy(update={"sustained_us": 9.27}),),
    }
    asked = burst.model_copy(update={"timing": burst.timing.model_copy(update=unrested)})
    text, html = built(tmp_path, report(bench=record(asked)))
    assert "80.0% 80.0% 80.0% on 1 1 timed without a rest: 0.900 × peer 2.000 on 0" in text
    assert "without a rest 0.900 × F.linear" in html
    sustained = {line["role"]: line["sustained"] for line in sheet(tmp_path)}
    assert (sustained["subject"], sustained["peer"]) == ("1.03000", "0.46350")
    out = io.StringIO()
    Console(file=out, width=160).print(table.render(record(asked, *[row(m=2)] * 40)))
    assert "│ 1: × 0.900 … 0.900 … 0.900 │" in out.getvalue()
    out.truncate(0)
    Console(file=out, width=160).print(table.render(record(asked)))
    assert "2.000 F.linear; sustained 0.900 F.linear" in out.getvalue()


def test_who_did_not_race_is_named_for_each_number_of_tokens_beside_the_median(tmp_path):
    unasked = [("gemlite", "it takes some 0.6 s"), ("Triton", "no triton")]
    both = [("F.linear", 8.0), ("gemlite", 9.0)]
    benched = record(
        row(peers=both, absent=unasked[1:]), row(n=512, absent=unasked), row(m=2, absent=unasked)
    )
    text, _ = built(tmp_path, report(bench=benched))
    assert (
        "M = 1 2 of 3 80.0% 80.0% 80.0% – 1.400 on 1 1 to 2 of 3 without Triton, gemlite on 1"
        in text
    )
    assert "M = 2 1 of 3 80.0% 80.0% 80.0% – 2.000 on 0 1 of 3 without gemlite, Triton" in text
    assert "M = 1 1 to 2 of 3 peers M = 2 1 of 3 peers" in text


def test_a_power_cap_is_counted_and_silence_is_none(tmp_path):
    def said(n: int, *reasons: str) -> Row:
        nothing: dict[str, Any] = dict.fromkeys(Reading.model_fields)
        reading = Reading(**{**nothing, "clock_event_reasons": reasons})
        return row(n=n).model_copy(update={"telemetry": Telemetry(before=reading, after=reading)})

    silent = row(n=1024)
    text, _ = built(tmp_path, report(bench=record(said(256), said(512, POWER_CAP), silent)))
    assert "80.0% – power cap after 1 of 2" in text
    lines = [line for line in sheet(tmp_path) if line["role"] == "subject"]
    assert [line["power_capped"] for line in lines] == ["0", "1", ""]


def test_the_data_sheet_of_the_memory_is_beside_the_ceiling_if_the_matrix_knows_the_gpu(tmp_path):
    known, unknown = (
        built(tmp_path, report(bench=on(gpu, row())))[0]
        for gpu in ("NVIDIA H100 80GB HBM3", "NVIDIA X")
    )
    assert "data sheet says 3,350 GB/s" in known and "data sheet" not in unknown


def test_an_earlier_source_counts_only_where_the_newest_has_no_row_and_is_marked(tmp_path):
    reports = (
        report(bench=record(row(us=9), row(n=512, us=10)), day=1, source="old"),
        report(bench=record(row(us=16)), day=2),
        report(bench=record(row(us=10), row(n=512, us=12.5)), day=3, source="old"),
        report(day=4),
    )
    found = standing(*reports)
    times = {each.row.params["n"]: each.counted.subject.time_us.median for each in found.rows}
    assert times == {256: 16, 512: 12.5}
    assert [each.row.params["n"] for each in found.stale] == [512]
    text, html = built(tmp_path, *reports)
    assert "1 of 2 rows are of an earlier kernel source" in text
    assert "~64.0" in text
    assert html.count('<circle class="hollow"') == 1
    index = Page((tmp_path / "index.html").read_text()).text
    assert "2 1 earlier 50.0% 57.0% 64.0% 0 of 2" in index


def test_what_the_newest_run_found_wrong_is_not_hidden_by_an_older_success():
    found = standing(
        report(bench=record(row()), day=1), report(bench=record(row(correct=False)), day=2)
    )
    assert [each.row.void is None for each in found.rows] == [False]
    assert found.timed == []


def test_each_gpu_stands_alone(tmp_path):
    reports = report(bench=on("H100 <80>", row())), report(bench=on("H200", row()), day=2)
    assert [each.gpu for each in bandwidth.standings(reports)] == ["H100 <80>", "H200"]
    text, html = built(tmp_path, *reports)
    assert "H100 <80>" in text
    ids = re.findall(r'id="([^"]*)"', html)
    assert len(ids) == len(set(ids)) > 2


def test_another_configuration_does_not_push_a_row_out_of_sight(tmp_path):
    reports = (
        report(bench=record(row(u=1), row(n=512, u=1)), day=1, source="old"),
        report(bench=record(row(u=2, us=10)), day=2),
        report(bench=record(row(u=4, us=16)), day=3),
    )
    found = standing(*reports)
    assert found.grid[256, 64][1].row.params["u"] == 4
    assert [each.row.params["u"] for each in found.further] == [2]
    assert sorted(each.row.params["u"] for each in found.rows) == [1, 2, 4]
    text, _ = built(tmp_path, *reports)
    assert "Further rows" in text
    assert "M=1 N=256 K=64 u=2 10.00" in text


# What is missing, and what is void


def test_missing_coverage_is_said_by_tokens(tmp_path):
    text, _ = built(tmp_path, report(bench=record(row(), row(n=512), row(n=4096))))
    assert "M = 1 2 of 3 and 1 more" in text
    assert "M = 2 0 of 3 not measured" in text
    assert "M = 1 lacks 1 shapes 1024 × 64" in text


def test_without_a_known_sweep_every_m_is_asked_for_every_weight_seen():
    tokens = standing(report(bench=record(row(), row(n=512), row(m=4)))).tokens
    assert [(each.m, each.covered, each.missing) for each in tokens] == [
        (1, 2, []),
        (4, 1, [(512, 64)]),
    ]


def test_void_cells_say_void_and_why_in_a_title_and_in_a_list(tmp_path):
    text, html = built(tmp_path, report(bench=record(row(us=4), row(n=512, correct=False))))
    reason = "not shown correct: bits: fail: y[0] is 1"
    assert html.count('<td class="void"') == 2
    assert f'title="{reason}"' in html
    assert f"void: {reason} : M=1 N=512 K=64" in text
    assert "void: faster than memory: a fault of the benchmark : M=1 N=256 K=64" in text
    assert "<circle" not in html


def test_reasons_that_differ_in_numbers_alone_are_one():
    found = bandwidth.alike(["8 of 64 bytes", "no GPU", "9 of 128 bytes", "no GPU", "no GPU"], str)
    assert [(said, len(same)) for said, same in found] == [
        ("no GPU", 3),
        ("8 of 64 bytes (and such)", 2),
    ]


# Peers


def test_a_peer_that_wins_is_marked_with_its_name(tmp_path):
    _, html = built(
        tmp_path,
        report(bench=record(row(peers=[("F.linear", 20.0), ("Triton", 9.0)]), row(n=512, us=9))),
    )
    cells = re.findall(r'<td class="number best([^"]*)"[^>]*>([\d.]+) <small>([^<]*)', html)
    assert cells == [(" behind clearly", "0.900", "Triton"), ("", "2.222", "F.linear")]


def test_peers_are_counted_by_part_wins_and_reasons_of_absence(tmp_path):
    lost = [("F.linear", 9.0), ("gemlite", 9.5)]
    benched = record(
        row(peers=lost),
        row(n=512, absent=[("gemlite", "it needs K of 128, not 64"), (WARM_CHAIN, "too large")]),
        row(n=1024, absent=[("gemlite", "it needs K of 128, not 65")]),
        row(m=2, peers=[("F.linear", 30.0)]),
    )
    found = standing(report(bench=benched))
    linear, gemlite = found.peers
    assert (linear.name, len(linear.speedups), linear.best, linear.ahead) == ("F.linear", 4, 4, 1)
    assert linear.tokens == {1: (2.0, 1), 2: (3.0, 0)}
    assert (len(gemlite.speedups), gemlite.best, gemlite.ahead, gemlite.clearly) == (1, 0, 1, 1)
    assert gemlite.absent == [
        ("it needs K of 128, not 64 (and such)", 2),
        ("the record does not name it", 1),
    ]
    text, _ = built(tmp_path, report(bench=benched))
    assert "gemlite 1 0 1 1 clearly 0.950 – 0.950 2: it needs K of 128" in text
    assert "4 50.0%" not in text  # shares are the subject's
    assert "0 of 4" not in Page((tmp_path / "index.html").read_text()).text
    assert "1 of 4" in Page((tmp_path / "index.html").read_text()).text


def test_short_names_are_short_and_never_the_same():
    names = ["F.linear", "mm transposed", "torch.compile", "tinygemm"]
    shorts = bandwidth.abbreviated([*names, "mm, again", "<&>"])
    assert list(shorts.values()) == ["F.linear", "mm", "compile", "tinygemm", "mm2", "<&>"]


# The chart


def test_the_chart_says_in_words_what_it_shows_and_keeps_points_inside(tmp_path):
    rows = [row(m, n, us=10 + n / 1000) for m in (1, 2) for n in range(256, 4096, 256)]
    text, html = built(tmp_path, report(bench=record(*rows)))
    assert text.count("M = 1: 15 shapes,") == 2  # wide and narrow; the style shows one
    assert "Share of the read ceiling over megabytes, on GPU" in text
    wide = html[html.index("wide-chart") : html.index("</svg>")]
    marks = re.findall(r'<circle class="full" cx="([\d.]+)" cy="([\d.]+)" r="[\d.]+">', wide)
    assert len(marks) == len(rows)
    for x, y in marks:
        assert chart.WIDE.left <= float(x) <= chart.WIDE.width - chart.WIDE.right
        assert chart.WIDE.top <= float(y) <= chart.WIDE.height - chart.WIDE.bottom
    assert wide.count('course"') == 2
    assert '<g class="m0">' in wide and '<g class="m1">' in wide


@pytest.mark.parametrize("share", [0.02, 0.97, 1.3])
def test_a_single_point_is_a_chart_and_none_is_none(share: float):
    drawn = chart.draw([("a", [chart.Point(5.0, share, "x")])], chart.WIDE, "t", "MB", "k")
    (y,) = map(float, re.findall(r'cy="([\d.]+)"', drawn))
    assert chart.WIDE.top <= y <= chart.WIDE.height - chart.WIDE.bottom
    assert drawn.count('class="ceiling"') == 1
    assert chart.draw([("a", [])], chart.WIDE, "t", "MB", "k") == ""


# The sheet


def test_the_sheet_has_every_contender_of_every_row(tmp_path):
    built(
        tmp_path,
        report(
            bench=record(
                row(us=16, u=4, absent=[("gemlite", "not installed, =1")]),
                row(n=512, correct=False),
            )
        ),
    )
    lines = sheet(tmp_path)
    assert [(each["n"], each["role"], each["contender"]) for each in lines] == [
        ("256", "subject", "product"),
        ("256", "read ceiling", "read ceiling"),
        ("256", "copy ceiling", "copy ceiling"),
        ("256", "peer", "F.linear"),
        ("256", "mode", COLD_SINGLE),
        ("256", "absent", "gemlite"),
        ("512", "subject", "product"),
    ]
    subject, read, _, peer, mode, absent, wrong = lines
    assert (subject["gpu"], subject["m"], subject["k"], subject["u"]) == ("GPU", "1", "64", "4")
    assert (subject["median_us"], subject["share_of_ceiling"]) == ("16.0000", "0.50000")
    assert (read["share_of_ceiling"], read["rounds"]) == ("1.00000", "3")
    assert (peer["share_of_ceiling"], peer["speedup_of_subject"]) == ("0.40000", "1.25000")
    assert (mode["median_us"], mode["share_of_ceiling"]) == ("48.0000", "")
    assert (absent["median_us"], absent["absent"]) == ("", "not installed, =1")
    assert wrong["void"].startswith("not shown correct")
    assert (wrong["u"], wrong["median_us"], subject["void"]) == ("", "", "")


def test_the_packages_of_the_peers_are_on_the_page_and_in_the_sheet(tmp_path):
    bench = record(row()).model_copy(update={"versions": {"triton": "3.7", "gemlite": "0.6"}})
    text, _ = built(tmp_path, report(bench=bench))
    assert "peers' packages gemlite 0.6, triton 3.7" in text
    assert {each["packages"] for each in sheet(tmp_path)} == {"gemlite 0.6, triton 3.7"}
    text, _ = built(tmp_path, report(bench=record(row())))
    assert "packages" not in text
    assert {each["packages"] for each in sheet(tmp_path)} == {""}


# The page as a file


def test_the_page_needs_no_network_and_no_script(tmp_path):
    _, html = built(tmp_path, report(bench=record(row(), row(m=2))))
    assert not re.search(r"https?://|//[a-z]|<script|<link|<img|@import|url\(|\son\w+=", html)
    assert sorted(set(re.findall(r'href="([^"]*)"', html))) == [
        "bandwidth.csv",
        "bandwidth.html",
        "index.html",
        "oracles.html",
    ]
    assert 'href="bandwidth.html#gpu"' in (tmp_path / "index.html").read_text()


def test_nothing_in_a_record_is_markup(tmp_path):
    evil = '"><script>alert(1)</script>&'
    bench = on(evil, row(peers=[(evil, 9.0)], absent=[(f"b{evil}", evil)], u=evil), row(u=1))
    text, html = built(tmp_path, report(bench=bench))
    assert "<script" not in html
    assert evil in text


def test_old_records_and_subjects_of_other_axes_are_shown_too(tmp_path):
    from test_bench import timed

    text, html = built(tmp_path, report(bench=record(timed([passed()]))))
    assert "not told apart" in text
    assert "copy ceiling not measured" in text
    assert "M=1 earlier 11.00 91 80.0% 2.000 linear" in text
    assert html.count("<circle") == 1


def test_a_site_without_benchmarks_says_so(tmp_path):
    text, _ = built(tmp_path, report())
    assert "No recorded run has measured any." in text
    assert sheet(tmp_path) == []
