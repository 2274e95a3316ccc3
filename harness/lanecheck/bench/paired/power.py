"""How often the gate errs: its false alarms and its power, from simulated runs of the whole gate.

A simulated run is a row of processes of identical code in the order they ran, two of them adjacent a
pair. Half of the pairs are the control. Base and head are given to the two processes of a pair by the
toss of a coin, as on the GPU, and a slow-down multiplies head's medians.

Processes come from a recording or are drawn. In a recording neighbours are alike, as clocks and
temperatures drift: so only processes that ran one after the other are paired, and whole pairs are drawn.
That keeps what a pair sees of the drift. Correlation between pairs is lost, and does not matter:
the coin makes the signs of the differences independent given their sizes, which is all the test uses.

The intervals of the rates cover the simulation alone. How well a recording speaks for its machine
depends on how many processes it holds, and no number of simulated runs adds to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

from lanecheck.bench.paired.gate import (
    MARGIN,
    VERDICTS,
    Floats,
    SignedRank,
    Verdict,
    decide,
    pairs_needed,
)
from lanecheck.errors import BadInput

SLOW_DOWNS = (0.0, 0.01, 0.02, 0.05)
"""Of head; the first is identical code."""


@dataclass(frozen=True)
class Rate:
    """A share of simulated runs, and its exact 95 % interval (Clopper & Pearson 1934)."""

    share: float
    low: float
    high: float

    @classmethod
    def of(cls, count: int, runs: int) -> Rate:
        interval = binomtest(count, runs).proportion_ci(method="exact")
        return cls(count / runs, float(interval.low), float(interval.high))


def recorded(
    medians: Mapping[str, Sequence[float]], pairs: int, runs: int, rng: np.random.Generator
) -> Floats:
    """Runs made of recorded processes, none of them twice in a run.

    Args:
        medians: by config, medians of processes of identical code, in one unit and in the order they
            ran; equal indices are one process, so that configs stay as correlated as they were.
        pairs: in each of the two arms.
        runs: how many.
        rng: draws the pairs.

    Returns:
        Log medians, shape (runs, configs, 4 · pairs), in the order of the processes of a run.

    Raises:
        BadInput: if configs differ in their processes, there are too few, or a median is no time.
    """
    lengths = {len(series) for series in medians.values()}
    if len(lengths) != 1:
        raise BadInput("every config needs a median of every recorded process")
    (processes,) = lengths
    if processes <= 4 * pairs:
        raise BadInput(
            f"{processes} recorded processes; two arms of {pairs} pairs need {4 * pairs + 1}"
        )
    times = np.array([*medians.values()])
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise BadInput("a recorded median is not a positive number")
    # Pairs start at even processes or at odd ones; the last process may be left over.
    starts = np.tile(np.arange(0, processes - 2, 2), (runs, 1))
    starts = rng.permuted(starts, axis=1)[:, : 2 * pairs] + rng.integers(2, size=(runs, 1))
    indices = np.stack([starts, starts + 1], axis=-1).reshape(runs, -1)
    return np.log(times)[:, indices].swapaxes(0, 1)


def lognormal(
    noise: float, configs: int, pairs: int, runs: int, rng: np.random.Generator
) -> Floats:
    """Runs of independent processes whose log medians are normal with deviation ``noise``.

    The other arguments and the result are those of :func:`recorded`.
    """
    return rng.normal(0, noise, (runs, configs, 4 * pairs))


def rates(
    processes: Floats, rng: np.random.Generator, margin: float = MARGIN
) -> dict[float, dict[Verdict, Rate]]:
    """How often the gate as a whole gives each verdict, by slow-down.

    At 0 the rates of SLOW and FAST are the false alarms; at the others that of SLOW is the power. One
    config alone is slowed, each in its turn, which is where the adjustment over configs costs most.

    Args:
        processes: log medians, shape (runs, configs, 4 · pairs), in the order of the processes.
        rng: tosses the coins; they are the same at every slow-down.
        margin: the gate's.

    Raises:
        BadInput: if the gate could not speak with so few pairs.
    """
    runs, configs, count = processes.shape
    if count // 4 < pairs_needed(configs):
        raise BadInput(
            f"{count // 4} pairs, but {configs} gated configs need {pairs_needed(configs)}"
        )
    coins = rng.choice([-1.0, 1.0], (runs, 1, count // 2))
    differences = coins * (processes[..., 1::2] - processes[..., 0::2])
    change, control = differences[..., 0::2], SignedRank.of(differences[..., 1::2])
    one = np.arange(runs)[:, None] % configs == np.arange(configs)
    found = {}
    for slow_down in SLOW_DOWNS:
        slowed = change + (one * np.log1p(slow_down))[..., None]
        verdicts = decide(SignedRank.of(slowed), control, configs, margin).min(axis=-1)
        counts = np.bincount(verdicts, minlength=len(VERDICTS)).tolist()
        found[slow_down] = {v: Rate.of(n, runs) for v, n in zip(VERDICTS, counts)}
    return found
