"""The scoreboard: a fault is caught only by an oracle that was to notice it, and only by the fault."""

from __future__ import annotations

from collections import Counter

import pytest

from lanecheck.faults.catalogue import Fault
from lanecheck.faults.scoreboard import Score

FAULT = Fault(
    id="swap",
    title="swapped",
    models="a swap",
    report="none",
    file="k.cuh",
    rewrites=[{"rule": {"pattern": "a"}, "fix": "b"}],
    variants=["plain"],
    caught_by=["integers", "bits"],
)


@pytest.mark.parametrize(
    ("noticed", "healthy", "killed", "silent"),
    [
        ({}, True, False, ["integers", "bits"]),
        ({"bits": 3}, True, True, ["integers"]),
        ({"bits": 3, "integers": 1}, True, True, []),
        ({"process": 60}, True, False, ["integers", "bits"]),  # it does not even run
        ({"execution": 60}, True, False, ["integers", "bits"]),  # for another reason
        ({"bits": 3}, False, False, ["integers"]),  # the healthy kernel fails those cases too
    ],
)
def test_killed_is_noticed_by_an_expected_oracle_and_not_by_the_healthy_kernel(
    noticed, healthy, killed, silent
) -> None:
    score = Score(FAULT, cases=60, noticed=Counter(noticed), healthy=healthy)
    assert (score.killed, score.silent) == (killed, silent)
