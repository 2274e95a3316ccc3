"""Campaigns: the budget is kept, every case is judged once, and nothing judged is no success."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lanecheck import campaign, trial
from lanecheck.campaign import Budget, fuzz
from lanecheck.cli import app
from lanecheck.trial import Result, Target, Trial

HEALTHY = Target("second_subject:SUBJECT")
WRONG = Target("second_subject:DROPS_LAST_K")


class Inline:
    """An executor without processes; ``clock`` moves on by a second a trial."""

    def __init__(self) -> None:
        self.trials: list[Trial] = []
        self.clock = 0.0

    def run(self, target: Target, work: Iterable[Trial]) -> Iterator[Result]:
        for each in work:
            self.trials.append(each)
            self.clock += 1.0
            yield trial.run(each)


def test_a_budget_of_cases_is_spent_exactly():
    executor = Inline()
    result = fuzz(HEALTHY, Budget(25), 0, executor, batch=10)
    assert [each.indices for each in executor.trials] == [range(10), range(10, 20), range(20, 25)]
    assert result.cases == result.judged["execution"] == 25
    assert result.failures == []


def test_a_budget_of_seconds_ends_the_campaign_whatever_the_cases(monkeypatch: pytest.MonkeyPatch):
    executor = Inline()
    monkeypatch.setattr(campaign.time, "perf_counter", lambda: executor.clock)
    result = fuzz(HEALTHY, Budget(cases=1, seconds=3), 0, executor, batch=2)
    assert len(executor.trials) == 3
    assert result.cases == 6
    assert result.seconds == 3


@pytest.mark.parametrize("budget", [Budget(0), Budget(seconds=0.0)])
def test_an_empty_budget_judges_nothing(budget: Budget):
    result = fuzz(HEALTHY, budget, 0, Inline())
    assert result.cases == 0
    assert not result.judged


def test_nothing_judged_is_a_failure_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    words = ["fuzz", "--subject", "second_subject:SUBJECT", "--workers", "1", "--budget", "0s"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1, done.output


def test_progress_is_told_the_running_total():
    seen: list[int] = []
    fuzz(HEALTHY, Budget(25), 0, Inline(), lambda total: seen.append(total.cases), batch=10)
    assert seen == [10, 20, 25]


def test_failures_do_not_depend_on_the_batch():
    whole, parts = (fuzz(WRONG, Budget(40), 5, Inline(), batch=batch) for batch in (40, 7))
    assert whole.failures == parts.failures
    assert whole.judged == parts.judged
    lines = [failure.line for failure in whole.failures]
    assert lines == sorted(lines)


def test_another_seed_is_another_campaign():
    one, other = (fuzz(WRONG, Budget(40), seed, Inline()) for seed in (1, 2))
    assert {f.line for f in one.failures}.isdisjoint(f.line for f in other.failures)
