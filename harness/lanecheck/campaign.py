"""Campaigns: many cases against one target, within a budget of cases or of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from lanecheck.executor import Executor
from lanecheck.trial import Result, Target, Trial

BATCH = 100


@dataclass(frozen=True)
class Budget:
    """How much to run: a number of cases, or seconds if given."""

    cases: int = 10_000
    seconds: float | None = None


def fuzz(
    target: Target,
    budget: Budget,
    seed: int,
    executor: Executor,
    progress: Callable[[Result], None] = lambda total: None,
    batch: int = BATCH,
) -> Result:
    """Run cases 0, 1, 2 … of campaign ``seed`` until the budget is spent.

    Args:
        progress: called with the running total after every trial.
        batch: cases a trial.

    Returns:
        The merged result; ``seconds`` is wall time.
    """
    total, start = Result(), time.perf_counter()

    def work() -> Iterator[Trial]:
        at = 0
        while True:
            if budget.seconds is not None:
                if time.perf_counter() - start >= budget.seconds:
                    return
                end = at + batch
            else:
                end = min(at + batch, budget.cases)
                if at >= end:
                    return
            yield Trial(target, seed=seed, indices=range(at, end))
            at = end

    return collect(executor.run(target, work()), total, progress)


def collect(
    results: Iterable[Result],
    total: Result,
    progress: Callable[[Result], None] = lambda total: None,
) -> Result:
    """Add results to ``total`` as they come, its notes by line in the end.

    Args:
        progress: called with the running total after each; its ``seconds`` are wall time.
    """
    start = time.perf_counter()
    for result in results:
        total.add(result)
        total.seconds = time.perf_counter() - start
        progress(total)
    for notes in (total.failures, total.reordered):
        notes.sort(key=lambda note: note.line)
    return total
