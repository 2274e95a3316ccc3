"""The second subject: right results pass every oracle; each wrong variant is noticed by its own."""

from __future__ import annotations

import pytest
from second_subject import FATAL_K

from lanecheck import trial
from lanecheck.trial import Result, Target, Trial

CASES = 120


def judged(variant: str) -> Result:
    target = Target(f"second_subject:{variant}", capabilities=("8.0", "9.0"))
    return trial.run(Trial(target, seed=0, indices=range(CASES)))


@pytest.mark.parametrize("variant", ["SUBJECT", "PREDICTING"])
def test_right_results_fail_nothing_and_every_oracle_had_its_say(variant: str):
    result = judged(variant)
    assert result.failures == []
    assert result.cases == CASES
    assert result.judged["execution"] == result.judged["poison"] == 2 * CASES
    assert result.launches == 2 * 2 * CASES
    assert result.judged["integers"] > CASES / 3
    assert result.judged["bits"] == (2 * CASES if variant == "PREDICTING" else 0)


@pytest.mark.parametrize(
    ("variant", "oracles"),
    [
        ("DROPS_LAST_K", {"integers", "specials", "probes"}),
        ("SWAPS_TWO_ROWS", {"integers", "specials", "probes"}),
        (
            "LEAVES_AN_ELEMENT",
            {"integers", "poison", "specials", "stability", "relations", "probes"},
        ),
        ("FLIPS_LOWEST_BIT", {"integers", "bits", "probes"}),
        ("WRITES_INTO_GAP", {"poison"}),
        ("WRITES_PAST_END", {"execution"}),
        ("WRITES_BEFORE_START", {"execution"}),
        ("WRITES_INTO_INPUT", {"execution"}),
    ],
)
def test_a_wrong_variant_is_noticed_by_these_oracles_and_no_other(variant: str, oracles: set[str]):
    assert {failure.verdict.oracle for failure in judged(variant).failures} == oracles


@pytest.mark.parametrize("variant", ["RAISES", "EXITS_POLITELY"])
def test_an_exception_is_a_failure_of_the_cases_that_raise_it(variant: str):
    failures = judged(variant).failures
    assert {failure.verdict.oracle for failure in failures} == {"execution"}
    assert all(f" k={FATAL_K} " in failure.line for failure in failures)


@pytest.mark.parametrize(
    ("variant", "oracle"),
    [
        ("DROPS_LAST_K", "integers"),
        ("FLIPS_LOWEST_BIT", "bits"),
        ("LEAVES_AN_ELEMENT", "poison"),
        ("WRITES_PAST_END", "execution"),
    ],
)
def test_what_is_wrong_in_every_case_is_noticed_in_every_case(variant: str, oracle: str):
    result = judged(variant)
    noticed = [failure for failure in result.failures if failure.verdict.oracle == oracle]
    assert len(noticed) == result.judged[oracle] > 0
