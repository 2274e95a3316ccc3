"""Cases: the same for ever, and equal to what their line says."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from second_subject import SUBJECT

from lanecheck import cases
from lanecheck.cases import SIDES, Case
from lanecheck.errors import BadInput
from lanecheck.values import REGIMES

GOOD = "matmul m=3 n=2 k=5 out=bf16 xoff=1 ypad=0 regime=wide side=lower seed=77"


def test_a_case_is_the_same_in_every_process():
    lines = [cases.case(SUBJECT, 7, index).line for index in range(20)]
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from lanecheck import cases; from second_subject import SUBJECT\n"
        "for index in range(20): print(cases.case(SUBJECT, 7, index).line)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == lines


def test_a_case_is_the_same_in_every_release():
    line = "matmul m=1 n=7 k=9 out=bf16 xoff=0 ypad=0 regime=subnormal side=upper seed=1187245079"
    assert cases.case(SUBJECT, 7, 3).line == line


def test_seed_and_index_both_tell_cases_apart():
    lines = {cases.case(SUBJECT, seed, index).line for seed in range(20) for index in range(20)}
    assert len(lines) == 400


def test_a_campaign_reaches_every_regime_side_and_option():
    drawn = [cases.case(SUBJECT, 0, index).params for index in range(200)]
    for axis, values in {"regime": REGIMES, "side": SIDES, "out": ("fp32", "bf16")}.items():
        assert {params[axis] for params in drawn} == set(values)
    assert {params["m"] for params in drawn} == set(range(1, 7))


@given(cases.strategy(SUBJECT))
def test_a_line_says_all_of_its_case(case: Case):
    again = cases.parse(case.line, SUBJECT)
    assert again == case
    assert again.line == case.line
    assert pickle.loads(pickle.dumps(case)) == case


@given(cases.strategy(SUBJECT))
def test_hypothesis_draws_from_the_space_that_campaigns_draw_from(case: Case):
    assert list(case.params) == list(cases.case(SUBJECT, 0, 0).params)
    assert SUBJECT.tensors(case.params)
    assert 0 <= case.seed < 2**32


def test_a_line_may_be_retyped_in_another_order():
    name, *words = GOOD.split()
    assert cases.parse(" ".join([name, *reversed(words)]), SUBJECT) == cases.parse(GOOD, SUBJECT)


def test_a_case_cannot_be_changed():
    case = cases.parse(GOOD, SUBJECT)
    with pytest.raises(TypeError):
        case.params["m"] = 4  # type: ignore[index]


def edited(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


MISTAKES = {
    "nothing": ("", "the line is of subject '', not 'matmul'; give --subject"),
    "another subject": (edited("matmul", "gemv"), "of subject 'gemv', not 'matmul'"),
    "word missing": (edited(" k=5", ""), "the case line lacks k=…"),
    "seed missing": (edited(" seed=77", ""), "the case line lacks seed=…"),
    "word unknown": (edited("k=5", "k=5 kk=5"), "unknown 'kk' in the case line; known: m, n, k"),
    "word twice": (edited("k=5", "k=5 k=6"), "the case line has k=… twice"),
    "no equals": (edited("k=5", "k5"), "'k5' in the case line is not of the form name=value"),
    "no value": (edited("k=5", "k="), "'k=' in the case line is not of the form"),
    "no number": (edited("k=5", "k=five"), "'k=five' in the case line: k is a number"),
    "two signs": (edited("k=5", "k=--5"), "'k=--5' in the case line: k is a number"),
    "no ASCII digit": (edited("k=5", "k=²"), "'k=²' in the case line: k is a number"),
    "fraction": (edited("k=5", "k=5.0"), "'k=5.0' in the case line: k is a number"),
    "no word": (edited("out=bf16", "out=16"), "'out=16' in the case line: out is a word"),
    "outside the domain": (edited("k=5", "k=0"), "k=0 xoff=1 ypad=0: outside the domain"),
    "unknown option": (edited("bf16", "fp64"), "out=fp64: it is fp32 or bf16"),
    "unknown regime": (edited("wide", "given"), "regime is one of small, wide"),
    "unknown side": (edited("lower", "left"), "side is one of upper, lower"),
    "negative seed": (edited("seed=77", "seed=-1"), "seed=-1 in the case line: seeds are 0 to"),
    "large seed": (edited("seed=77", f"seed={2**32}"), "seeds are 0 to 4294967295"),
}


@pytest.mark.parametrize(("line", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_line_is_one_clear_line(line: str, message: str):
    with pytest.raises(BadInput) as caught:
        cases.parse(line, SUBJECT)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
