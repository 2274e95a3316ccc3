"""The smallest case that still shows a failure, found by hypothesis."""

from __future__ import annotations

import random

import hypothesis
from hypothesis.errors import NoSuchExample

from lanecheck import cases, oracles
from lanecheck.cases import Case
from lanecheck.subject import load
from lanecheck.trial import Target, observe


def smallest(target: Target, start: str, examples: int = 300) -> str:
    """Shrink the failing case ``start``; runs in the calling process.

    Args:
        target: what fails. start: the line of a case that fails.
        examples: how many cases hypothesis may try.

    Returns:
        The line of the simplest failing case found, ``start`` if none is simpler.
    """
    subject = load(target.subject)

    def fails(case: Case) -> bool:
        return any(
            verdict.wrong
            for _, observation in observe(subject, case, target)
            for verdict in oracles.judge(observation)
        )

    settings = hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    try:
        found = hypothesis.find(
            cases.strategy(subject), fails, settings=settings, random=random.Random(0)
        )
    except NoSuchExample:
        return start
    return found.line
