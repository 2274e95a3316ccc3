"""Host execution against a GPU: agreement is by case and oracle, and only some kinds may differ."""

from __future__ import annotations

from collections import Counter

import pytest

from lanecheck import cases
from lanecheck.faults.catalogue import Fault
from lanecheck.faults.differences import compare
from lanecheck.faults.scoreboard import Score
from lanecheck.subject import load
from lanecheck.trial import Failure, Result
from lanecheck.verdict import Outcome, Verdict

SUBJECT = load("second_subject:SUBJECT")
SEED = 3
LINES = [cases.case(SUBJECT, SEED, index).line for index in range(8)]


def score(kind: str, *failures: tuple[int, str], cases: int = 8, gpu: bool = False) -> Score:
    """A fault of this kind, of which these oracles failed the campaign's cases of these numbers."""
    fault = Fault(
        id="swap",
        title="swapped",
        models="a swap",
        report="none",
        kind=kind,
        file="k.cuh",
        rewrites=[{"rule": {"pattern": "a"}, "fix": "b"}],
        variants=[] if kind == "asm" else ["plain"],
        caught_by=["bits"],
    )
    made = Score(fault, on_gpu=gpu)
    notes = [Failure(LINES[at], "9.0", Verdict(name, Outcome.FAIL)) for at, name in failures]
    made.add(Result(cases=cases, failures=notes))
    return made


def compared(kind, host, gpu, **counts):
    sides = score(kind, *host, **counts), score(kind, *gpu, gpu=True, **counts)
    (each,) = compare([sides[0]], [sides[1]], SUBJECT, SEED)
    return each


def test_the_same_oracles_on_the_same_cases_are_alike():
    noted = [(0, "bits"), (0, "integers"), (5, "bits")]
    each = compared("operand", noted, noted)
    assert (each.cases, each.alike, each.why, each.explained) == (8, 3, None, True)
    assert not each.only_host and not each.only_gpu


@pytest.mark.parametrize("kind", ["operand", "arithmetic", "memory"])
@pytest.mark.parametrize(
    ("host", "gpu"),
    [
        ([], [(0, "bits")]),
        ([(0, "bits")], []),
        ([(0, "bits")], [(1, "bits")]),  # as many, of other cases
        ([(0, "bits")], [(0, "integers")]),  # of the same case, by another oracle
        ([], [(0, "process")]),
    ],
)
def test_a_difference_that_the_kind_does_not_allow_is_not_explained(kind, host, gpu):
    each = compared(kind, host, gpu)
    assert each.why is None and not each.explained
    assert each.only_host.total() == len(host) and each.only_gpu.total() == len(gpu)


@pytest.mark.parametrize("kind", ["race", "launch"])
def test_races_and_launches_may_differ_either_way(kind):
    for host, gpu in (([(0, "bits")], []), ([], [(0, "bits")])):
        each = compared(kind, host, gpu)
        assert each.explained and each.why


def test_what_only_a_gpu_runs_is_not_compared():
    host, gpu = score("asm", cases=0), score("asm", (2, "bits"), gpu=True)
    assert compare([host], [gpu], SUBJECT, SEED) == []


def test_of_the_host_the_first_build_is_compared():
    host = score("operand", (0, "bits"), cases=4)
    seen = Result(cases=8, failures=[Failure(LINES[5], "9.0", Verdict("bits", Outcome.FAIL))])
    host.add(seen)  # under another build, which begins at the first case again
    gpu = score("operand", (0, "bits"), (5, "bits"), gpu=True)
    (each,) = compare([host], [gpu], SUBJECT, SEED)
    assert (each.cases, each.alike, each.explained) == (4, 1, True)


def test_a_second_launch_that_the_host_saw_fail_may_end_the_process_on_the_gpu():
    each = compared("memory", [(0, "relations")], [(0, "process")])
    assert (each.alike, each.explained) == (1, True)


def test_an_access_that_only_the_host_sees_is_explained_and_one_that_only_the_gpu_sees_is_not():
    assert compared("memory", [(0, "execution")], []).explained
    assert not compared("memory", [], [(0, "execution")]).explained


def test_an_ended_process_on_the_gpu_is_a_failed_launch_on_the_host():
    each = compared("memory", [(0, "execution")], [(0, "process")])
    assert (each.alike, each.explained) == (1, True)
    assert not each.only_host and not each.only_gpu


def test_a_case_that_ends_on_one_side_has_no_numbers_to_compare():
    each = compared("memory", [(0, "execution")], [(0, "bits"), (0, "integers")])
    assert each.only_host == Counter(execution=1) and not each.only_gpu


def test_only_cases_that_both_ran_are_compared():
    host = score("operand", (0, "bits"), (6, "bits"))
    gpu = score("operand", (0, "bits"), gpu=True, cases=5)
    (each,) = compare([host], [gpu], SUBJECT, SEED)
    assert (each.cases, each.alike, each.explained) == (5, 1, True)


def test_controls_are_left_out():
    control = score("operand").fault.model_copy(update={"expect": "pass", "caught_by": []})
    assert compare([Score(control)], [Score(control, on_gpu=True)], SUBJECT, SEED) == []
