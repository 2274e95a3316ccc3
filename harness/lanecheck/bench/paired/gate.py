"""Whether head is slower than base: the verdict of paired processes, exact at any number of pairs.

The independent unit is the process. A pair is two fresh processes on one GPU, one of base and one of
head, in an order drawn anew; its difference is d = log(head's median / base's median). The random
order alone makes d symmetric about the log of the true change, whatever the noise of a process and
however the clocks drift, and symmetry is all that the signed-rank test of Wilcoxon (1945) assumes.

Test and bounds are one thing, seen twice (Hodges & Lehmann 1963): W+, the sum of the ranks of the
positive differences, is the number of positive Walsh averages (d_i + d_j) / 2, i <= j; so the changes
that the test does not reject end at an order statistic of these averages.

Ties and zeros, which a timer's ticks do make, count against the claim: only averages strictly above
zero count. That is W+ with every zero taken as negative and every tie broken in disfavour, so p is the
largest that any way to break them gives: never too small for any symmetric distribution, and exact
without ties. Midranks would be sharper, but their null distribution changes with the shift that is
tested, and then no fixed order statistic is the bound; scipy.stats.wilcoxon has no exact null for them
either, short of enumerating signs.

The control is base again over base: pairs made the same way, of two checkouts of base. It answers for the
procedure: whatever tells the second checkout from the first would also pass for a change of head's.

Over all gated configs the chance that unchanged code is called SLOW anywhere is at most ALPHA (Holm
1979), and that it is called FAST likewise. The margin is the business of each config alone: one whose
true change is just the margin is called SLOW with a chance of at most ALPHA.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ALPHA = 0.01
"""Level of each one-sided test."""
MARGIN = 0.005
"""Smaller changes of the time count as none; a ratio, 0.005 is 0.5 %.

A wider one finds fewer slow-downs, a narrower one shows equality less often. What this one does, by
:func:`.power.counts` of :func:`.power.lognormal` for 12 pairs and 20 gated configs: with processes whose log
medians have a standard deviation of 0.6 %, a slow-down of one config by 2 % is found in 96 of 100 runs, with
0.75 % in 83, with 1 % in 51; with 0.2 %, unchanged code is SAME in 85. A test holds these figures.
"""


class Verdict(str, Enum):
    """Of one config; the overall verdict is the first in this order that any config has.

    SLOW stands whatever another config lacks. INSUFFICIENT comes next: what was not measured may be
    slow. FAST before SAME: nothing is worse and something is better.
    """

    SLOW = "SLOW"
    INSUFFICIENT = "INSUFFICIENT"
    AMBIGUOUS = "AMBIGUOUS"
    FAST = "FAST"
    SAME = "SAME"


VERDICTS = tuple(Verdict)


@dataclass(frozen=True)
class Pairs:
    """One config's differences, log ratios of medians, one a pair.

    Attributes:
        change: head over base.
        control: base again over base, in pairs made the same way.
    """

    change: Sequence[float]
    control: Sequence[float]


@dataclass(frozen=True)
class Estimate:
    """What the pairs say of head's time over base's, less 1: above 0, head is slower.

    Attributes:
        pairs: how many.
        effect: the Hodges–Lehmann estimate, the median of the Walsh averages.
        low: the one-sided lower bound, at confidence 1 - ALPHA.
        high: the upper one.
        p: exact one-sided p of "no change", against the side that the pairs lean to.
        p_holm: the same, adjusted for all gated configs.
    """

    pairs: int
    effect: float
    low: float
    high: float
    p: float
    p_holm: float


@dataclass(frozen=True)
class Comparison:
    """A verdict, its cause in one sentence, and the numbers; None where nothing was estimated."""

    verdict: Verdict
    cause: str
    estimate: Estimate | None = None


def differences(base: Iterable[float], head: Iterable[float]) -> tuple[float, ...]:
    """log(head / base), one a pair; not finite where a median is not finite and above 0.

    Rounded to 1e-12, far below any timer, so that equal ratios stay ties.

    Args:
        base: medians of base's processes, one a pair, in any unit.
        head: of head's, in the same unit.

    Raises:
        ValueError: if there are not as many of one as of the other.
    """
    medians = np.array([*zip(base, head, strict=True)], float).reshape(-1, 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(medians)
        return tuple(np.round(logs[:, 1] - logs[:, 0], 12).tolist())


def pairs_needed(configs: int) -> int:
    """Pairs with which SLOW is possible: if all are positive, Holm's smallest p is configs · 2^-pairs."""
    return math.ceil(math.log2(configs / ALPHA))


def judge(configs: Mapping[str, Pairs], margin: float = MARGIN) -> dict[str, Comparison]:
    """The verdict on each config.

    - SLOW: the lower bound is above the margin, and p, adjusted over all configs, at most ALPHA.
    - FAST: the same with base and head exchanged.
    - SAME: both bounds are within the margin, which is two one-sided tests (Schuirmann 1987). They
      need no adjustment: that all configs are the same is claimed only where each is.
    - INSUFFICIENT: fewer pairs in either arm than :func:`pairs_needed`, a difference that is not
      finite, or a control that alarms.
    - AMBIGUOUS: anything else.

    A control alarms where it finds base slower or faster than itself by whatever amount: p, adjusted
    over all configs, is at most ALPHA. In random order that is chance (at most ALPHA a side) or a
    procedure that tells a second checkout from the first; all configs share it, so all are INSUFFICIENT.
    A control of too few pairs could not alarm, and is none.

    Args:
        configs: by name; they may differ in their numbers of pairs.
        margin: on the ratio of times; 0.01 is 1 %.
    """
    gaps = {name: _gap(pairs, len(configs)) for name, pairs in configs.items()}
    compared = {name: Comparison(Verdict.INSUFFICIENT, gap) for name, gap in gaps.items() if gap}
    complete = [name for name in configs if name not in compared]
    if complete:
        changes = [configs[name].change for name in complete]
        controls = [configs[name].control for name in complete]
        change, control = SignedRank.of_each(changes), SignedRank.of_each(controls)
        verdicts = decide(change, control, len(configs), margin)
        estimates = _estimates(change, changes, len(configs))
        alarm = _alarm(complete, _estimates(control, controls, len(configs)))
        for name, position, estimate in zip(complete, verdicts, estimates):
            verdict = VERDICTS[position]
            compared[name] = Comparison(
                verdict, alarm or _cause(verdict, estimate, margin), estimate
            )
    return {name: compared[name] for name in configs}


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on head: the first, in the order of :class:`Verdict`, of any config.

    Raises:
        ValueError: if there are no configs.
    """
    return min(verdicts, key=VERDICTS.index)


class SignedRank(NamedTuple):
    """Tests and estimates; arrays of one shape (...), an entry for each sample of differences."""

    effect: Floats
    """Log ratio: the Hodges–Lehmann estimate."""
    low: Floats
    """Log ratio: the lower bound."""
    high: Floats
    """Log ratio: the upper bound."""
    slower: Floats
    """Exact one-sided p of "no change" against "slower"."""
    faster: Floats
    """… and against "faster"."""

    @classmethod
    def of(cls, differences: npt.ArrayLike) -> SignedRank:
        """Of log ratios, shape (..., n), with 2^-n at most ALPHA."""
        d = np.asarray(differences, float)
        i, j = np.triu_indices(d.shape[-1])
        walsh = np.sort((d[..., i] + d[..., j]) / 2, axis=-1)
        tail, index = _null(d.shape[-1])
        return cls(
            effect=np.median(walsh, axis=-1),
            low=walsh[..., index],
            high=walsh[..., -1 - index],
            slower=tail[np.count_nonzero(walsh > 0, axis=-1)],
            faster=tail[np.count_nonzero(walsh < 0, axis=-1)],
        )

    @classmethod
    def of_each(cls, samples: Sequence[Sequence[float]]) -> SignedRank:
        """Of samples that may differ in length: shape (len(samples),)."""
        return cls(*map(np.array, zip(*map(cls.of, samples))))


def decide(
    change: SignedRank, control: SignedRank, configs: int, margin: float
) -> npt.NDArray[np.intp]:
    """The rules of :func:`judge`, for many runs of the gate at once.

    Args:
        change: of shape (..., k), an entry for each of the k configs whose pairs are complete.
        control: the same.
        configs: all that are gated, k or more.
        margin: on the ratio of times.

    Returns:
        Shape (..., k): positions in VERDICTS, so that the least of a run is its overall verdict.
    """
    edge = np.log1p(margin)
    alarms = np.minimum(holm(control.slower, configs), holm(control.faster, configs)) <= ALPHA
    rules = {
        Verdict.INSUFFICIENT: alarms.any(axis=-1, keepdims=True),
        Verdict.SLOW: (change.low > edge) & (holm(change.slower, configs) <= ALPHA),
        Verdict.FAST: (change.high < -edge) & (holm(change.faster, configs) <= ALPHA),
        Verdict.SAME: (change.low > -edge) & (change.high < edge),
    }
    positions = [VERDICTS.index(verdict) for verdict in rules]
    return np.select([*rules.values()], positions, VERDICTS.index(Verdict.AMBIGUOUS))


def holm(p: Floats, tests: int) -> Floats:
    """p of k tests along the last axis, adjusted (Holm 1979) for a family of ``tests`` >= k.

    The tests of the family that are not in ``p`` count as 1.
    """
    order = np.argsort(p, axis=-1)
    steps = np.take_along_axis(p, order, axis=-1) * (tests - np.arange(p.shape[-1]))
    adjusted = np.empty_like(p)
    np.put_along_axis(
        adjusted, order, np.minimum(np.maximum.accumulate(steps, axis=-1), 1), axis=-1
    )
    return adjusted


@lru_cache
def _null(n: int) -> tuple[Floats, int]:
    """The signed-rank statistic W+ of n pairs without a change.

    Its generating function is the product over the ranks r of (1 + x^r) / 2; the probabilities are
    multiples of 2^-n, so exact in a double up to 50 pairs.

    Returns:
        P(W+ >= w) for w = 0 … n(n+1)/2, and the index, from 0, of the lower bound among the sorted
        Walsh averages: the largest whose left tail P(W+ <= index) is at most ALPHA.
    """
    density = np.ones(1)
    for rank in range(1, n + 1):
        density = (np.pad(density, (0, rank)) + np.pad(density, (rank, 0))) / 2
    tail = np.cumsum(density[::-1])[::-1]
    return tail, int(np.count_nonzero(tail <= ALPHA)) - 1


def _gap(pairs: Pairs, configs: int) -> str:
    """What one config's pairs lack, or an empty string."""
    needed = pairs_needed(configs)
    for arm, differences in (("", pairs.change), ("control ", pairs.control)):
        if len(differences) < needed:
            return f"{len(differences)} {arm}pairs, but {configs} gated configs need {needed}"
        if not np.isfinite(differences).all():
            return f"a median of the {arm}pairs is not a positive number"
    return ""


def _estimates(
    tests: SignedRank, samples: Sequence[Sequence[float]], configs: int
) -> list[Estimate]:
    """For each of the samples that ``tests``, of shape (len(samples),), are of."""
    effect, low, high = (np.expm1(bound) for bound in (tests.effect, tests.low, tests.high))
    leans = tests.slower <= tests.faster
    p = np.where(leans, tests.slower, tests.faster)
    p_holm = np.where(leans, holm(tests.slower, configs), holm(tests.faster, configs))
    columns = [column.tolist() for column in (effect, low, high, p, p_holm)]
    return [Estimate(len(sample), *row) for sample, *row in zip(samples, *columns)]


def _alarm(configs: Sequence[str], controls: Sequence[Estimate]) -> str:
    """Which control alarms, and how loudly; an empty string if none does."""
    worst, name = min(zip(controls, configs), key=lambda each: each[0].p_holm)
    if worst.p_holm > ALPHA:
        return ""
    return (
        f"{name}: base is {_change(worst.effect)} than itself (p = {worst.p_holm:.2g} over all "
        "configs), so the two arms are not measured alike"
    )


def _cause(verdict: Verdict, found: Estimate, margin: float) -> str:
    confidence = f"with {1 - ALPHA:.0%} confidence"
    if verdict is Verdict.SLOW:
        return f"head is {_change(found.effect)}, at least {found.low:.2%} {confidence}"
    if verdict is Verdict.FAST:
        return f"head is {_change(found.effect)}, at least {-found.high:.2%} {confidence}"
    span = f"{_change(found.low)} to {_change(found.high)}"
    if verdict is Verdict.SAME:
        return f"head equals base within {margin:.2%}: {span}, each {confidence}"
    if found.low > margin or found.high < -margin:
        least = found.low if found.low > margin else found.high
        return (
            f"{found.pairs} pairs show head at least {_change(least)} {confidence}, but over all configs p = "
            f"{found.p_holm:.2g}, where {ALPHA:g} is asked: give more --pairs"
        )
    return (
        f"{found.pairs} pairs show neither a change beyond {margin:.2%} nor equality within it: "
        f"{span}, p = {found.p_holm:.2g} over all configs"
    )


def _change(effect: float) -> str:
    return f"{abs(effect):.2%} {'slower' if effect >= 0 else 'faster'}"
