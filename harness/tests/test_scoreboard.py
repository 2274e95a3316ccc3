"""The scoreboard: a fault is caught only by an oracle that was to notice it, and only by the fault; a
control is clean only if nobody flags it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from lanecheck.build import BuildFailed
from lanecheck.cases import parse
from lanecheck.errors import BadInput
from lanecheck.faults import scoreboard
from lanecheck.faults.catalogue import Fault
from lanecheck.faults.scoreboard import Score, host_builds, run_catalogue, summary
from lanecheck.subject import load
from lanecheck.trial import Failure, Result, Target, Trial
from lanecheck.verdict import Outcome, Verdict

FAULT = Fault(
    id="swap",
    title="swapped",
    models="a swap",
    report="none",
    kind="operand",
    file="k.cuh",
    rewrites=[{"rule": {"pattern": "a"}, "fix": "b"}],
    variants=["plain"],
    caught_by=["integers", "bits"],
)


def control(expect: str, name: str = "reverse") -> Fault:
    return FAULT.model_copy(update={"id": name, "expect": expect, "caught_by": []})


def note(line: str, oracle: str, evidence: str = "", outcome: Outcome = Outcome.FAIL) -> Failure:
    return Failure(line, "9.0", Verdict(oracle, outcome, evidence))


# Verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noticed", "healthy", "killed", "silent"),
    [
        ({}, True, False, ["integers", "bits"]),
        ({"bits": 3}, True, False, ["integers"]),  # not by all that were to
        ({"bits": 3, "integers": 1}, True, True, []),
        ({"process": 60}, True, False, ["integers", "bits"]),  # it does not even run
        ({"execution": 60}, True, False, ["integers", "bits"]),  # for another reason
        ({"bits": 3, "integers": 1}, False, False, []),  # the healthy kernel fails those cases too
    ],
)
def test_killed_is_noticed_by_every_expected_oracle_and_not_by_the_healthy_kernel(
    noticed, healthy, killed, silent
) -> None:
    score = Score(FAULT, cases=60, noticed=Counter(noticed), healthy=healthy)
    assert (score.killed, score.good, score.silent) == (killed, killed, silent)


@pytest.mark.parametrize(
    ("expect", "reordered", "noticed", "clean"),
    [
        ("pass", 0, {}, True),
        ("pass", 1, {}, False),
        ("pass", 0, {"bits": 1}, False),
        ("reordered", 5, {}, True),
        ("reordered", 0, {}, False),  # no case shows the other order, so nothing is shown
        ("reordered", 5, {"bound": 1}, False),
    ],
)
def test_clean_is_flagged_by_nobody_and_reordered_as_expected(
    expect, reordered, noticed, clean
) -> None:
    score = Score(control(expect), cases=60, reordered=reordered, noticed=Counter(noticed))
    assert (score.clean, score.good) == (clean, clean)


def test_the_summary_counts_both_and_names_the_bad_ones():
    killed = Score(FAULT, noticed=Counter(bits=1, integers=1))
    survivor = Score(FAULT.model_copy(update={"id": "drop"}))
    clean, flagged = Score(control("pass")), Score(control("reordered", "shuffle"))
    assert summary([killed]) == "1 of 1 faults caught"
    assert summary([killed, clean]) == "1 of 1 faults caught, 1 of 1 controls clean"
    assert summary([killed, survivor, clean, flagged]) == (
        "1 of 2 faults caught, 1 of 2 controls clean; survived: drop; flagged: shuffle"
    )


# Counting -------------------------------------------------------------------------------------


def test_the_first_rung_is_counted_by_case_and_the_others_beside_it():
    score = Score(FAULT)
    score.add(
        Result(
            cases=9,
            failures=[
                note("a", "probes"),
                note("a", "bits"),
                note("a", "integers"),
                note("b", "relations"),
                note("b", "bits"),
                note("c", "bits"),
                note("d", "process"),
            ],
            reordered=[note(line, "bits", outcome=Outcome.REORDERED) for line in "eef"],
        )
    )
    score.add(Result(cases=1, failures=[note("a", "execution")]))  # under another variant
    assert score.cases == 10
    assert score.reordered == 2
    assert score.noticed == Counter(
        bits=3, integers=1, relations=1, probes=1, process=1, execution=1
    )
    assert score.rung == Counter(bits=2, integers=1, process=1, execution=1)
    assert score.also == Counter(bits=1, relations=1, probes=1)


def test_the_first_failure_is_one_that_says_what_most_say():
    score = Score(FAULT)
    said = ["k 3 never read (2 probed)", "rows exchanged (5 probed)", "rows exchanged (9 probed)"]
    failures = [note(line, "probes", text) for line, text in zip("abc", said)]
    score.add(
        Result(failures=[*failures, note("a", "bits", "y is 1"), note("b", "bits", "y is 2")])
    )
    assert scoreboard.sentence(score.first["probes"]) == "rows exchanged"
    assert score.first["probes"].line == "b"
    assert score.first["bits"].line == "a"  # no two alike
    assert score.lines == ("b", "a")


# Running --------------------------------------------------------------------------------------

HEALTHY = "healthy"


class Machine:
    """An executor on which the libraries in ``wrong`` fail every case, by two oracles."""

    def __init__(self, *wrong: str) -> None:
        self.wrong = wrong
        self.ran: list[Trial] = []

    def run(self, target: Target, work: Iterable[Trial]) -> Iterator[Result]:
        for trial in work:
            self.ran.append(trial)
            lines = trial.lines or [str(index) for index in trial.indices]
            wrong = str(target.library) in self.wrong
            yield Result(
                cases=len(lines),
                failures=[
                    note(x, oracle) for x in lines if wrong for oracle in ("integers", "bits")
                ],
            )


@pytest.fixture
def build(tmp_path, monkeypatch):
    """A recipe whose builds are named after the source that went in."""
    (tmp_path / "k.cuh").write_text("int a;")

    def built(recipe, variant, toolchain, overlay=None):
        text = overlay["k.cuh"] if overlay else HEALTHY
        if "wrong" in text:
            raise BuildFailed(f"host-{variant}", "error: no such thing")
        return SimpleNamespace(path=Path(text))

    monkeypatch.setattr(scoreboard, "build_host", built)
    return SimpleNamespace(root=tmp_path)


def run(machine: Machine, build, *faults: Fault, **more) -> list[Score]:
    target = Target("second_subject:SUBJECT", capabilities=("8.0", "9.0"))
    return run_catalogue(faults, target, host_builds(build, None), machine, 0, **more)


def test_every_fault_runs_its_cases_and_the_healthy_kernel_what_they_show(build):
    machine, steps = Machine("int b;"), []
    more = FAULT.model_copy(update={"id": "more", "variants": ["plain", "hooks"], "effort": 2})
    scores = run(machine, build, FAULT, more, progress=lambda *step: steps.append(step))
    assert [score.cases for score in scores] == [200, 600]
    assert all(score.killed for score in scores)
    built = {(0, "built swap, plain"), (0, "built more, plain"), (0, "built more, hooks")}
    assert set(steps[:3]) == built
    assert steps[3:] == [(0, "swap"), (1, "more")]
    assert {trial.target.capabilities for trial in machine.ran} == {("9.0",)}
    again = [trial for trial in machine.ran if str(trial.target.library) == HEALTHY]
    assert [(trial.target.variant, trial.lines) for trial in again] == [
        ("plain", scores[0].lines),
        ("plain", scores[1].lines),
        ("hooks", scores[1].lines),
    ]


def test_a_case_that_the_healthy_kernel_fails_too_kills_nothing(build):
    (score,) = run(Machine("int b;", HEALTHY), build, FAULT)
    assert score.noticed and not score.healthy and not score.killed


def test_another_order_is_looked_for_where_a_bound_can_tell_it(build):
    machine = Machine()
    (score,) = run(machine, build, control("reordered"))
    assert score.cases == 200
    subject = load("second_subject:SUBJECT")
    drawn = [parse(line, subject) for trial in machine.ran for line in trial.lines]
    assert not {case.params["regime"] for case in drawn} & {"overflow", "special"}
    assert all(product.plain for case in drawn for product in subject.products(case.params))


def test_a_fault_that_does_not_compile_is_named(build):
    typo = FAULT.model_copy(
        update={"rewrites": [FAULT.rewrites[0].model_copy(update={"fix": "wrong"})]}
    )
    with pytest.raises(BadInput, match="^fault swap: host-plain does not compile: error: no such"):
        run(Machine(), build, typo)


# On a GPU


def on_gpu(machine: Machine, build, *faults: Fault) -> list[Score]:
    target = Target("second_subject:SUBJECT", "cuda", ("9.0",), variant="sm_90a", gpus=("GPU-0",))
    return run_catalogue(faults, target, host_builds(build, None), machine, 0)


def test_on_a_gpu_the_arch_is_the_only_variant(build):
    machine = Machine("int b;")
    more = FAULT.model_copy(update={"id": "more", "variants": ["plain", "hooks"]})
    for score in on_gpu(machine, build, FAULT, more):
        assert list(score.libraries) == ["sm_90a"]
        assert score.killed
    assert {trial.target.gpus for trial in machine.ran} == {("GPU-0",)}


def test_a_race_that_a_gpu_does_not_show_is_excused_and_named(build):
    race = FAULT.model_copy(update={"kind": "race"})
    (score,) = on_gpu(Machine(), build, race)
    assert score.excused and score.good and not score.killed
    assert summary([score]) == "0 of 1 faults caught (a race need not show on a GPU: swap)"
    (score,) = run(Machine(), build, race)
    assert not score.excused and not score.good


def test_a_fault_in_ptx_is_excused_on_the_host_and_named_and_not_on_a_gpu(build):
    ptx = FAULT.model_copy(update={"kind": "asm", "variants": []})
    (score,) = run(Machine(), build, ptx)
    assert score.excused and score.good and not score.killed and score.cases == 0
    assert summary([score]) == "0 of 1 faults caught (only a GPU runs it: swap)"
    (score,) = on_gpu(Machine(), build, ptx)
    assert not score.excused and not score.good
    (score,) = on_gpu(Machine("int b;"), build, ptx)
    assert score.killed


def test_the_end_of_its_process_is_how_a_gpu_reports_a_wrong_access(build):
    class Ends(Machine):
        def run(self, target, work):
            for trial in work:
                self.ran.append(trial)
                lines = trial.lines or [str(index) for index in trial.indices]
                wrong = str(target.library) in self.wrong
                failures = [note(x, "process") for x in lines if wrong]
                yield Result(cases=len(lines), failures=failures)

    access = FAULT.model_copy(update={"kind": "memory", "caught_by": ["execution"]})
    machine = Ends("int b;")
    (score,) = on_gpu(machine, build, access)
    assert score.killed
    assert score.cases < 20  # each costs a worker
    (score,) = run(Ends("int b;"), build, access)
    assert not score.killed
