"""Whatever ``lanecheck verify`` prints !! for is in its report, and no run with one ends well."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_ledger import NUMBERS
from test_reports import TIERS, campaign, cell, report

from lanecheck import gpu, matrix_file, verify
from lanecheck.build import Built
from lanecheck.cli import checks
from lanecheck.reports.cells import fuzz_cell
from lanecheck.reports.model import FailureRecord, RealRecord, Report, Status, Step
from lanecheck.summation import recovery
from lanecheck.summation.fprev import NoTree

TEXT = (
    """\
schema: 1
subject: small:SUBJECT
archs:
  sm_80:
    {gencode: ["arch=compute_80,code=sm_80"], loads_on: ["8.0"], min_ctk: "11.0", role: native}
  sm_87:
    {gencode: ["arch=compute_87,code=sm_87"], loads_on: ["8.7"], min_ctk: "11.4", role: native}
devices:
  host: {mma: ["8.0"], runner: [here], pool: 1}
  orin: {cc: "8.7", runner: [gpu], pool: 0, datasheet_gbps: 200}
jobs:
  fuzz: {column: host-fuzzed, budget: 5m}
  silicon: {column: on silicon, gpu: true, budget: 5m}
"""
    + TIERS
)
MATRIX = matrix_file.parse(TEXT)
PLAN = verify.Plan(MATRIX, "small:SUBJECT", Path())


class Log:
    """A listener that keeps how the steps ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, bool | None]] = []

    def stage(self, title: str, total: float | None = None) -> None: ...

    def advance(self, done: float, note: str = "") -> None: ...

    def end(self, summary: str, good: bool | None = True) -> None:
        self.ended.append((summary, good))


# Steps ----------------------------------------------------------------------------------------


def test_every_step_that_does_not_end_well_is_remembered_and_still_printed():
    log = Log()
    steps = verify._Remembering(log)
    for title, good in (("build", True), ("fuzz", False), ("sum", None), ("real", False)):
        steps.stage(title)
        steps.end(f"{title} is over", good)
    assert [step.title for step in steps.failed] == ["fuzz", "real"]
    assert steps.failed[0].summary == "fuzz is over"
    assert [good for _, good in log.ended] == [True, False, None, False]


def test_sums_that_no_order_explains_are_kept(monkeypatch):
    def none(*_):
        raise NoTree("1263 ones sum to 1261")
        yield

    monkeypatch.setattr(recovery, "sample", none)
    log = Log()
    assert verify._sum(PLAN, Path(), log) == ([], "1263 ones sum to 1261")
    assert log.ended == [("1263 ones sum to 1261", False)]


@pytest.mark.parametrize(
    ("changed", "good", "told"),
    [
        ({}, True, "MiniLM: 2 layers, 1000 calls, 0 failing, cosine >= 0.99000"),
        ({"cases": 0, "judged": {}}, False, "0 calls, 0 failing, cosine >= 0.99000: no case ran"),
        ({"judged": {"execution": 1}}, False, "no case's numbers were judged"),
        ({"failures": campaign("a").failures}, False, "1000 calls, 1 failing"),
        ({"reordered": campaign("a").failures}, None, "0 failing"),
    ],
    ids=["judged", "no call", "no numbers", "wrong", "reordered"],
)
def test_the_real_model_shows_something_only_by_calls_that_were_judged(
    monkeypatch, changed, good, told
):
    calls = campaign().model_copy(update=NUMBERS | changed)
    real = RealRecord(model="MiniLM", layers=2, cosines=[1, 0.99], campaign=calls)
    monkeypatch.setattr(verify, "judge_real", lambda target: real)
    log = Log()
    assert verify._real(PLAN, Path(), log) is real
    ((said, ended),) = log.ended
    assert told in said and ended is good


def test_a_model_without_outputs_is_no_crash(monkeypatch):
    none = campaign().model_copy(update={"cases": 0})
    real = RealRecord(model="MiniLM", layers=0, cosines=[], campaign=none)
    monkeypatch.setattr(verify, "judge_real", lambda target: real)
    verify._real(PLAN, Path(), log := Log())
    assert log.ended == [("MiniLM: 0 layers, 0 calls, 0 failing: no case ran", False)]


# Archs that nothing models --------------------------------------------------------------------


def test_an_arch_whose_tensor_core_has_no_model_stays_unverified():
    sm_80, sm_87 = MATRIX.archs.values()
    calls = campaign().model_copy(update=NUMBERS)
    assert fuzz_cell(sm_80, [calls]).status is Status.VERIFIED
    unknown = fuzz_cell(sm_87, [calls])
    assert (unknown.status, unknown.reason) == (
        Status.UNVERIFIED,
        "no model of the tensor core of 8.7",
    )


def test_a_gpu_whose_tensor_core_has_no_model_runs_nothing(monkeypatch):
    monkeypatch.setattr(verify, "campaign", lambda *_: pytest.fail("it ran"))
    archs = [*MATRIX.archs.values()]
    built = {arch.name: Built(Path(), "key", 0.0, True, "", ()) for arch in archs}
    here = [gpu.Gpu("NVIDIA Orin", "8.7", "GPU-0")]
    campaigns, cells = verify._silicon(PLAN, archs, built, here, None, Log())
    assert campaigns == []
    assert [(each.arch, each.device, each.status, each.reason) for each in cells] == [
        ("sm_87", "orin", Status.UNVERIFIED, "no model of the tensor core of 8.7")
    ]


# The command ----------------------------------------------------------------------------------


@pytest.fixture
def verified(tmp_path, monkeypatch, lanecheck):
    """Runs ``lanecheck verify`` as if it had shown this report."""

    def run(shown: Report, *words: str) -> tuple[int, str, str]:
        (tmp_path / "matrix.yaml").write_text(TEXT)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(checks, "run_plan", lambda *_: shown)
        monkeypatch.setattr(checks, "toolchain", lambda: None)
        return lanecheck("verify", "--require", "sm_80/host/fuzz", "--json", "r.json", *words)

    return run


FUZZED = cell("sm_80", "host", "fuzz")
NO_CALL = Step(title="real weights", summary="0 calls")


@pytest.mark.parametrize(
    ("shown", "code", "said"),
    [
        (report(FUZZED), 0, ""),
        (report(FUZZED, failed=[NO_CALL]), 3, "lanecheck: real weights: 0 calls\n"),
        (report(FUZZED, failed=[NO_CALL], treeless="1263 ones sum to 1261"), 1, ""),
        (report(FUZZED, campaigns=[campaign("a")]), 1, ""),
    ],
    ids=["good", "not run", "no tree", "case"],
)
def test_what_went_wrong_drives_the_exit_code(verified, shown, code, said):
    left, text, complaint = verified(shown)
    assert (left, complaint) == (code, said)
    assert ("nothing disproven" in text) == (code == 0)
    assert text.endswith("disproven\n") == (code == 1)


def test_a_failing_call_of_the_real_model_names_its_line_and_how_to_see_it_again(verified):
    failures = [
        FailureRecord(line=f"small m={m} regime=given", capability="8.0", oracle=oracle, evidence=y)
        for m in range(7)
        for oracle, y in (("bits", "y is 1, expected 2"), ("bound", "y is 1, the sum 2"))
    ]
    wrong = campaign().model_copy(update={"failures": failures})
    real = RealRecord(model="MiniLM", layers=1, cosines=[1], campaign=wrong)
    code, text, _ = verified(report(FUZZED, real=real), "--subject", "my.py:SUBJECT")
    assert code == 1
    why = "not to be replayed, as its operands are the model's"
    again = "lanecheck verify --device host --cases 1 --subject my.py:SUBJECT runs the model again"
    lines = text.splitlines()
    at = lines.index(f"small m=0 regime=given: {why}; {again}")
    assert lines[at + 1 : at + 3] == [
        "  bits on 8.0: y is 1, expected 2",
        "  bound on 8.0: y is 1, the sum 2",
    ]
    assert sum(why in line for line in lines) == 5
    assert "  … and 2 more failing calls" in lines
