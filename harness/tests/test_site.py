"""The page: it says what is unverified as plainly as what is verified."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from types import ModuleType

import pytest
from test_bench import passed, record, timed
from test_bench_doubts import facts
from test_ledger import on_h100, ran
from test_reports import MATRIX, campaign, cell, fault, report

from lanecheck import oracles
from lanecheck.bench.model import Row
from lanecheck.errors import BadInput
from lanecheck.reports.model import (
    ComparisonRecord,
    ControlRecord,
    FailureRecord,
    RealRecord,
    Report,
    SanitizerRecord,
)
from lanecheck.site import pages
from lanecheck.site.ladder import rungs

VOID = {"meta", "br", "link"}


class Page(HTMLParser):
    """Refuses tags that do not match, and keeps the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += f" {data}"


def page(tmp_path, *reports: Report) -> str:
    file = pages.build(list(reports), MATRIX, tmp_path / "site")
    assert file == tmp_path / "site" / "index.html"
    assert sorted(path.name for path in file.parent.iterdir()) == [
        "bandwidth.csv",
        "bandwidth.html",
        "index.html",
        "oracles.html",
    ]
    return Page(file.read_text()).text


def ladder(tmp_path, *reports: Report) -> str:
    return Page(
        (pages.build(list(reports), MATRIX, tmp_path).parent / "oracles.html").read_text()
    ).text


def test_every_cell_of_the_matrix_is_counted_seen_or_not(tmp_path):
    text = page(tmp_path, report(cell("sm_80", "host", "build")))
    assert "1 verified 3 unverified 0 disproven" in text
    assert "a100 on silicon sm_80 no recorded run speaks of it" in text
    assert "host built sm_90a no recorded run speaks of it" in text


def test_the_newest_run_that_says_more_than_unverified_counts(tmp_path):
    text = page(
        tmp_path,
        report(cell("sm_80", "a100", "silicon", reason="1,000 cases"), day=1),
        report(cell("sm_80", "a100", "silicon", "unverified", "no GPU"), day=2),
        report(cell("sm_90a", "h100", "silicon", "unverified", "no h100"), day=2),
    )
    assert "verified a100, 2026-11-01 1,000 cases" in text
    assert "h100 on silicon sm_90a no h100" in text
    assert "no GPU" not in text


def test_a_later_defect_beats_an_earlier_success(tmp_path):
    text = page(
        tmp_path,
        report(cell("sm_80", "host", "build"), day=1),
        report(cell("sm_80", "host", "build", "disproven", "it does not compile"), day=2),
    )
    assert "0 verified 3 unverified 1 disproven" in text
    assert "disproven it does not compile" in text


def test_an_entry_names_its_newest_run_and_how_many_it_rests_on(tmp_path):
    run = ran(60_000, seed=4)
    text = page(
        tmp_path,
        on_h100(run, day=1),
        on_h100(ran(50_000, seed=21), day=2),
        on_h100(ran(1, seed=4), day=3),
    )
    assert "verified h100, 2026-11-02, newest of 2 runs 110,000 cases" in text
    assert "sm_90a 110,000 0 0" in text  # the table of what ran on silicon


def test_each_device_of_an_arch_has_its_own_evidence(tmp_path):
    h100, l4 = (MATRIX.devices["h100"].model_copy(update={"name": name}) for name in ("h100", "l4"))
    two = MATRIX.model_copy(update={"devices": {**MATRIX.devices, "h100": h100, "l4": l4}})
    runs = [ran(7, gpu="NVIDIA H100"), ran(9, seed=1, gpu="NVIDIA L4")]
    cells = [cell("sm_90a", device, "silicon") for device in ("h100", "l4")]
    pages.build([report(*cells, campaigns=runs)], two, tmp_path)
    text = Page((tmp_path / "index.html").read_text()).text
    assert "verified h100, 2026-11-01 7 cases l4, 2026-11-01 9 cases" in text


def test_a_kernel_that_adds_in_no_order_is_not_hidden(tmp_path):
    text = page(tmp_path, report(treeless="1263 ones sum to 1261"))
    assert "No order explains what the kernel returns (2026-11-01): 1263 ones sum to 1261" in text


def test_a_real_model_that_never_called_the_kernel_has_judged_nothing(tmp_path):
    none = campaign().model_copy(update={"cases": 0})
    text = page(
        tmp_path, report(real=RealRecord(model="MiniLM", layers=0, cosines=[], campaign=none))
    )
    assert "MiniLM called the kernel not once (2026-11-01)." in text


def test_what_was_shown_of_another_source_is_not_called_verified(tmp_path):
    text = page(
        tmp_path,
        report(cell("sm_80", "a100", "silicon"), day=1, source="a"),
        report(cell("sm_80", "host", "build"), day=2, source="b"),
    )
    earlier = "1 verified earlier, of another source or a weaker test"
    assert f"1 verified 2 unverified {earlier} 0 disproven" in text
    assert "earlier a100, 2026-11-01" in text


def test_what_a_run_did_not_do_is_said(tmp_path):
    text = page(tmp_path, report(cell("sm_80", "host", "build")))
    assert "No recorded run has injected any." in text
    assert "No recorded run has judged any." in text
    assert "No recorded run has measured any." in text


def test_faults_real_weights_and_bandwidth(tmp_path):
    real = RealRecord(model="MiniLM", layers=37, cosines=[1, 0.98], campaign=campaign())
    text = page(
        tmp_path,
        report(
            cell("sm_80", "host", "build"),
            faults=[fault(True), fault(False).model_copy(update={"id": "drop"})],
            real=real,
            bench=record(timed([passed()], facts=facts(launches=10))),
            gpus=["GPU"],
        ),
    )
    assert "1 of 2 were noticed" in text
    assert "swap swapped caught bits 3 of 10 cases" in text
    assert "drop swapped survived nothing of 10 cases" in text
    assert "MiniLM, 37 linear layers" in text
    assert "at least 0.98000" in text
    assert "GPU 2026-11-01 1 80.0% 80.0% 80.0% 0 of 1" in text


def test_silicon_is_shown_beside_the_host_with_what_differs(tmp_path):
    host = [fault(True), fault(True).model_copy(update={"id": "ptx", "kind": "asm"})]
    excused = {"killed": False, "excused": "a race need not show on a GPU", "device": "cuda"}
    gpu = [host[0].model_copy(update=excused), host[1].model_copy(update={"device": "cuda"})]
    agree, differ, odd = (
        ComparisonRecord(
            id=name, kind="asm", cases=10, alike=4, only_host={}, only_gpu=only_gpu, why=why
        )
        for name, only_gpu, why in (
            ("agrees", {}, None),
            ("ptx", {"bits": 3}, "PTX: host execution replaces it"),
            ("odd", {"bits": 1}, None),
        )
    )
    text = page(
        tmp_path,
        report(
            faults=[*host, *gpu],
            comparisons=[agree, differ, odd],
            sanitized=[SanitizerRecord(tool="memcheck", arch="sm_90a", cases=8, errors=0)],
            gpus=["H200"],
        ),
    )
    assert "2 of 2 were noticed on the host (2026-11-01) and 1 of 2 on H200" in text
    assert "not shown a race need not show on a GPU" in text
    assert "12 times the same oracle failed the same case on both" in text
    assert "ptx 10 cases on both, 4 verdicts alike nothing bits 3 PTX: host execution" in text
    assert "odd 10 cases on both, 4 verdicts alike nothing bits 1 unexplained" in text
    assert "agrees" not in text
    assert "memcheck 0 errors in 8 cases." in text


def test_outputs_compared_on_a_gpu_are_summed_by_build_and_runs_of_the_same_cases_count_once(
    tmp_path,
):
    run = campaign().model_copy(
        update={"device": "cuda", "variant": "sm_90a", "cases": 600, "compared": {"bits": 5000}}
    )
    other = run.model_copy(update={"landmarks": "sizes"})
    text = page(tmp_path, report(campaigns=[run]), report(campaigns=[run, other, campaign()]))
    assert "sm_90a 1,200 10,000 0" in text


def test_a_failure_on_one_gpu_is_not_hidden_by_the_same_cases_on_another(tmp_path):
    wrong, right = ran(600, wrong=True), ran(600)
    text = page(
        tmp_path,
        report(campaigns=[wrong], gpus=["NVIDIA H100"], day=1),  # an older record names no product
        report(campaigns=[right.model_copy(update={"gpu": "NVIDIA H200"})], day=2),
    )
    assert "sm_90a 1,200 0 1" in text


def test_faults_that_only_ran_on_a_gpu_are_shown(tmp_path):
    text = page(
        tmp_path,
        report(faults=[fault(True).model_copy(update={"device": "cuda"})], gpus=["H200"]),
    )
    assert "1 of 1 on H200" in text
    assert "swap swapped caught bits 3 of 10 cases" in text


def test_the_gates_own_errors_are_shown_by_machine_the_newest_of_each(tmp_path):
    from test_measured import DAY, identical, measured

    old, new = measured(identical(0), identical(1)), measured(identical(2), identical(3), runs=500)
    other = measured(*(identical(seed, machine="NVIDIA H100") for seed in (4, 5)), runs=600)
    reports = [report(day=day, power=rates) for day, rates in ((1, other), (2, old), (3, new))]
    text = page(tmp_path, *reports)
    assert re.search(rf"NVIDIA H100 {DAY:%Y-%m-%d}, c{{12}}\. .* NVIDIA H200 {DAY:%Y-%m-%d}", text)
    assert "500 simulated runs of 12 pairs, drawn from 96 recorded processes" in text
    real = text.index("of 2 real comparisons of identical code 0 alarmed (≤ 84%) on 1 GPU")
    assert real < text.index("with base and head dealt by a coin") < text.index("none, as recorded")
    assert "400 simulated runs" not in text
    assert re.search(r"none 0% 0% – 0\.7\d?% ", text)
    assert "No recorded run has measured them." in page(tmp_path, report())


# The page of the oracles


@pytest.mark.parametrize("module", oracles.LADDER, ids=oracles.NAMES)
def test_every_oracle_says_what_it_sees_and_what_it_cannot(module: ModuleType):
    rung = rungs([])[oracles.LADDER.index(module)]
    for text in (rung.summary, rung.sees, rung.cannot, *map(str, rung.paragraphs)):
        assert len(text) > 20
        assert "`" not in text
        assert "*" not in text
    assert rung.paragraphs


def test_the_ladder_is_shown_in_order(tmp_path):
    text = ladder(tmp_path, report())
    places = [text.index(f"{at}. {name}") for at, name in enumerate(oracles.NAMES, 1)]
    assert places == sorted(places)
    assert "It launches the kernel again, or costs much, and so judges one case in 8." in text


def test_verdicts_on_the_healthy_kernel_are_counted_over_runs_of_the_same_source(tmp_path):
    one, two = (campaign("a") for _ in range(2))
    text = ladder(
        tmp_path,
        report(campaigns=[one], day=1, source="old"),
        report(campaigns=[two], day=2),
        report(campaigns=[two], day=3),
    )
    assert f"{2 * two.judged['execution']:,} verdicts on the healthy kernel" in text


def test_the_first_rung_of_a_fault_and_the_probes_sentence_are_shown(tmp_path):
    said = FailureRecord(line="l", capability="9.0", oracle="probes", evidence="rows exchanged")
    broken = fault(True).model_copy(update={"rung": {"bits": 3}, "first": [said]})
    pages.build([report(faults=[broken])], MATRIX, tmp_path)
    html = (tmp_path / "oracles.html").read_text()
    assert "swap rows exchanged" in Page(html).text
    assert '<span class="first">3</span>' in html


def test_controls_are_shown_clean_or_flagged(tmp_path):
    control = ControlRecord(
        id="commuted",
        title="added backwards",
        expect="reordered",
        clean=False,
        cases=9,
        reordered=4,
        first=[],
    )
    text = ladder(tmp_path, report(faults=[fault(True)], controls=[control]))
    assert "commuted added backwards reordered flagged 9 cases, 4 reordered" in text


def test_failing_real_calls_are_not_hidden(tmp_path):
    real = RealRecord(model="MiniLM", layers=37, cosines=[1], campaign=campaign("a", "b"))
    assert "2 failing" in page(tmp_path, report(real=real))


def test_nothing_in_a_report_is_markup(tmp_path):
    evil = "<script>alert(1)</script> & more"
    text = page(tmp_path, report(cell("sm_80", "host", "build", "disproven", evil)))
    assert evil in text


def test_a_row_without_timing_is_void(tmp_path):
    from test_bench import failed, traffic

    bench = record(Row.of({"m": 1}, traffic(), [passed(), failed()], None))
    assert "GPU 2026-11-01 1 1 void void void void no peer" in page(tmp_path, report(bench=bench))
    assert "void: not shown correct" in Page((tmp_path / "site/bandwidth.html").read_text()).text


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "site").write_text("")
    with pytest.raises(BadInput, match="cannot write"):
        pages.build([report()], MATRIX, tmp_path / "site")
