"""How often the gate errs: its false alarms and its power, from simulated runs of the whole gate.

A simulated run is a row of processes of identical code in the order they ran, two of them adjacent a
pair. Half of the pairs are the control. Base and head are given to the two processes of a pair by the
toss of a coin, as on the GPU, and a slow-down multiplies head's medians. So a pair of the control is as one
of base and head; which checkout a process was of is not looked at.

Processes come from recordings or are drawn. In a recording neighbours are alike, as clocks and
temperatures drift: so only processes that ran one after the other are paired, and whole pairs are drawn.
That keeps what a pair sees of the drift. Correlation between pairs is lost, and does not matter:
the coin makes the signs of the differences independent given their sizes, which is all the test uses.

Two processes of different recordings are never a pair, but one run draws pairs of all recordings. Where
these are of several GPUs, the rates are those of their mixture: a noisier one finds less.

The coin makes the false alarms keep their level, so they say nothing of whether the place of an arm,
base's folder or another one, biases its times. That is the business of each comparison's control, of real
comparisons of identical code, which are counted beside the rates, and of :func:`by_place`, which leaves
every pair as it was.

The intervals of the rates cover the simulation alone. How well recordings speak for their machine
depends on how many processes they hold, and no number of simulated runs adds to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from lanecheck.bench.paired.gate import (
    MARGIN,
    VERDICTS,
    Floats,
    SignedRank,
    Verdict,
    decide,
    pairs_needed,
)
from lanecheck.bench.paired.rates import Rate, Simulated
from lanecheck.errors import BadInput

SLOW_DOWNS = (0.0, 0.01, 0.02, 0.05)
"""Of head; the first is identical code."""
AT_ONCE = 1000
"""Simulated runs that are held in memory together, about."""
NORMAL = 1.4826
"""Standard deviation over median absolute deviation, of normal noise."""

Medians = Mapping[str, Sequence[float]]
"""By config, medians of processes of identical code, in one unit and in the order they ran; equal indices
are one process, so that configs stay as correlated as they were."""
Counts = npt.NDArray[np.int64]
"""Runs, by slow-down, config that is slowed, and verdict: in the orders of SLOW_DOWNS and of VERDICTS."""


def simulate(
    recordings: Sequence[Medians], pairs: int, runs: int, seed: int
) -> tuple[Simulated, ...]:
    """The gate's rates at each of SLOW_DOWNS, from runs that are made of recorded processes.

    The arguments are those of :func:`recorded`; the seed decides everything that is drawn.

    Raises:
        BadInput: as :func:`recorded` and :func:`counts` do.
    """
    rng = np.random.default_rng(seed)
    names = [*recordings[0]]
    chunk = len(names) * max(1, AT_ONCE // len(names))  # whole turns of the configs
    sizes = [min(chunk, runs - start) for start in range(0, runs, chunk)]
    found = sum(counts(recorded(recordings, pairs, size, rng), rng) for size in sizes)
    return rates(np.asarray(found), names)


def recorded(
    recordings: Sequence[Medians], pairs: int, runs: int, rng: np.random.Generator
) -> Floats:
    """Runs made of recorded processes, none of them twice in a run.

    Args:
        recordings: of the same configs.
        pairs: in each of the two arms.
        runs: how many.
        rng: draws the pairs.

    Returns:
        Log medians, shape (runs, configs, 4 · pairs), in the order of the processes of a run.

    Raises:
        BadInput: if configs differ in their processes, there are too few, or a median is no time.
    """
    logs = [_logs(recording, recordings[0]) for recording in recordings]
    sizes = [each.shape[1] for each in logs]
    # In each recording the pairs of a run start at even processes or at odd ones.
    fewest = sum((size - 1) // 2 for size in sizes)
    if fewest < 2 * pairs:
        raise BadInput(
            f"{sum(sizes)} recorded processes make {fewest} pairs of neighbours; two arms of {pairs} "
            f"pairs need {2 * pairs}: add another recording, of another --seed, or give fewer --pairs"
        )
    owners = np.repeat(np.arange(len(sizes)), [size - 1 for size in sizes])
    within = np.concatenate([np.arange(size - 1) for size in sizes])
    parity = rng.integers(2, size=(runs, len(sizes)))
    order = rng.random((runs, len(within)))
    order[within % 2 != parity[:, owners]] = np.inf
    drawn = np.argsort(order, axis=1)[:, : 2 * pairs]
    starts = (np.cumsum([0, *sizes[:-1]])[owners] + within)[drawn]
    indices = np.stack([starts, starts + 1], axis=-1).reshape(runs, -1)
    return np.concatenate(logs, axis=1)[:, indices].swapaxes(0, 1)


def lognormal(
    noise: float, configs: int, pairs: int, runs: int, rng: np.random.Generator
) -> Floats:
    """Runs of independent processes whose log medians are normal with deviation ``noise``.

    The other arguments and the result are those of :func:`recorded`.
    """
    return rng.normal(0, noise, (runs, configs, 4 * pairs))


def counts(processes: Floats, rng: np.random.Generator, margin: float = MARGIN) -> Counts:
    """How often the gate as a whole gives each verdict, by slow-down.

    One config alone is slowed, each in its turn, which is where the adjustment over configs costs most.

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
    slowed = np.arange(runs) % configs
    one = slowed[:, None] == np.arange(configs)
    found = np.zeros((len(SLOW_DOWNS), configs, len(VERDICTS)), np.int64)
    for by_config, slow_down in zip(found, SLOW_DOWNS):
        slower = change + (one * np.log1p(slow_down))[..., None]
        verdicts = decide(SignedRank.of(slower), control, configs, margin).min(axis=-1)
        np.add.at(by_config, (slowed, verdicts), 1)
    return found


def by_place(change: Floats, control: Floats, pairs: int, runs: int, seed: int) -> Simulated | None:
    """Runs of identical code whose pairs stand as they were: no coin hides a bias of place.

    A run draws pairs of all recordings, none twice. So each is as good as a comparison of its own if pairs
    are alike, and its alarms are neither too many nor too few on the average; drawn with replacement they
    would be too many, for what a pool has by chance, every run would have. But the runs share their pairs,
    and together are no more evidence than those that the pairs make at once. A bias that differs from
    recording to recording is averaged: only the real comparisons show it.

    Args:
        change: log ratios, head over base as they were, shape (configs, pairs). control: of the controls.
        pairs: in each of the two arms of a run.

    Returns:
        None if there are too few pairs.
    """
    if min(change.shape[1], control.shape[1]) < pairs:
        return None
    rng = np.random.default_rng(seed)

    def drawn(pool: Floats, size: int) -> SignedRank:
        chosen = np.argsort(rng.random((size, pool.shape[1])), axis=1)[:, :pairs]
        return SignedRank.of(pool[:, chosen].swapaxes(0, 1))

    found = np.zeros((1, len(VERDICTS)), np.int64)
    for start in range(0, runs, AT_ONCE):
        size = min(AT_ONCE, runs - start)
        verdicts = decide(drawn(change, size), drawn(control, size), len(change), MARGIN)
        np.add.at(found[0], verdicts.min(axis=-1), 1)
    return _at(0.0, found, ())


def rates(found: Counts, configs: Sequence[str]) -> tuple[Simulated, ...]:
    """At 0 the rates of SLOW and FAST are the false alarms; at the others that of SLOW is the power.

    Args:
        configs: their names, in the order of ``found``.
    """
    return tuple(_at(slow_down, each, configs) for slow_down, each in zip(SLOW_DOWNS, found))


def _at(slow_down: float, by_config: Counts, configs: Sequence[str]) -> Simulated:
    totals = by_config.sum(axis=0).tolist()
    found, missed = {}, {}
    for name, row in zip(configs, by_config.tolist() if slow_down else ()):
        if of := sum(row):
            alarms = row[VERDICTS.index(Verdict.INSUFFICIENT)]
            slow = row[VERDICTS.index(Verdict.SLOW)]
            found[name], missed[name] = Rate.of(slow, of), of - slow - alarms
    return Simulated(
        slow_down=slow_down,
        verdicts={verdict: Rate.of(n, sum(totals)) for verdict, n in zip(VERDICTS, totals)},
        found=found,
        missed=missed,
    )


def noise(recordings: Sequence[Medians]) -> dict[str, float]:
    """By config, how much two neighbours differ: the robust standard deviation of their log ratio.

    NORMAL times the median absolute log ratio, about 0, over all neighbours of each recording: blind to
    rare outliers, which the ranks of the test hardly see either. √2 of that of one process, where
    neighbours are independent.
    """
    logs = [_logs(recording, recordings[0]) for recording in recordings]
    ratios = np.concatenate([np.diff(each) for each in logs], axis=1)
    return dict(zip(recordings[0], (NORMAL * np.median(np.abs(ratios), axis=1)).tolist()))


def _logs(recording: Medians, first: Medians) -> Floats:
    """Shape (configs, processes), the configs in the order of the first recording."""
    if recording.keys() != first.keys() or len({len(each) for each in recording.values()}) != 1:
        raise BadInput("every config needs a median of every recorded process")
    times = np.array([recording[name] for name in first], float)
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise BadInput("a recorded median is not a positive number")
    return np.log(times)
