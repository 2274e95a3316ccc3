"""Which processes a comparison runs, in which order, and what their medians say: pure, and from a seed.

Half of the pairs are of base and head; half, the control, of base and of base again, a second checkout that
is built and timed as head is. Everything is drawn up front: which pair is which, and in which order its two
processes run. So a run that was cut goes on where it stopped, and the control meets what it controls: the
same drift of the machine, and whatever tells a second checkout from the first, such as its folder, its
library and when it was built. It does not answer for what only head has, such as a working tree's folder.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from lanecheck.bench.paired.gate import Comparison, Pairs, Verdict, differences, judge, overall
from lanecheck.errors import BadInput
from lanecheck.subject import title, whole_title

Side = Literal["base", "head"]
Kind = Literal["change", "control"]
ArmName = Literal["base", "head", "again"]
T = TypeVar("T")
SIDES: tuple[Side, Side] = ("base", "head")
ARMS: dict[ArmName, str] = {
    "base": "base",
    "head": "head",
    "again": "the second checkout of base",
}
"""What is checked out and built, in words."""


@dataclass(frozen=True)
class Turn:
    """One process.

    Attributes:
        pair: its number in the order of time, from 0.
        kind: whether the pair is of base and head, or of base and base again.
        side: on which side of the pair's difference it stands.
    """

    pair: int
    kind: Kind
    side: Side

    @property
    def arm(self) -> ArmName:
        """Which checkout runs: in a control base's second one stands where head would."""
        return "again" if (self.kind, self.side) == ("control", "head") else self.side


def schedule(pairs: int, seed: int) -> list[Turn]:
    """The processes of ``pairs`` pairs and as many controls, in the order in which they run.

    Each pair's order is a toss of its own, as the signed-rank test supposes.
    """
    rng = random.Random(seed)
    kinds: list[Kind] = ["change", "control"] * pairs
    rng.shuffle(kinds)
    return [
        Turn(pair, kind, side)
        for pair, kind in enumerate(kinds)
        for side in rng.sample(SIDES, len(SIDES))
    ]


def named(shapes: Iterable[Mapping[str, int | str]]) -> dict[str, dict[str, int | str]]:
    """Launches by what the user calls them: the sizes, or every parameter where sizes are not enough.

    Raises:
        BadInput: if two are the same.
    """
    listed = [dict(params) for params in shapes]
    for name_of in (title, whole_title):
        names = {name_of(params): params for params in listed}
        if len(names) == len(listed):
            return names
    raise BadInput("the subject names the same launch twice")


def gated(
    base: Mapping[str, T] | None, head: Mapping[str, T] | None
) -> tuple[dict[str, T], dict[str, T]]:
    """Every config that either arm names, with each arm's own parameters for it.

    An arm that does not name one runs it as the other does: so no config leaves the gate because head
    no longer lists it, and a base that is older than the list can be compared.
    """
    every = {**(base or {}), **(head or {})}
    return {**every, **(base or {})}, {**every, **(head or {})}


def compared(
    turns: Sequence[Turn], medians: Sequence[Mapping[str, float]]
) -> dict[str, Comparison]:
    """The gate's verdict on every config.

    Args:
        turns: what ran.
        medians: of each, by config, in any unit; all have the same configs.
    """
    taken = {(turn.kind, turn.pair, turn.side): found for turn, found in zip(turns, medians)}

    def of(config: str, kind: Kind) -> tuple[float, ...]:
        base, head = (
            [found[config] for (k, _, s), found in sorted(taken.items()) if (k, s) == (kind, side)]
            for side in SIDES
        )
        return differences(base, head)

    configs = medians[0] if medians else ()
    return judge({name: Pairs(of(name, "change"), of(name, "control")) for name in configs})


def concluded(configs: Mapping[str, Comparison]) -> tuple[Verdict, str]:
    """The verdict on head and its cause in one sentence; the largest change speaks for the others."""
    verdict = overall(each.verdict for each in configs.values())
    decisive = {name: each for name, each in configs.items() if each.verdict is verdict}
    name = max(decisive, key=lambda name: _size(decisive[name]))
    cause = decisive[name].cause
    if any(each.cause != cause for each in configs.values()):
        cause = f"{name}: {cause}"
    return verdict, f"{len(decisive)} of {len(configs)} configs {verdict.value}; {cause}"


def _size(comparison: Comparison) -> float:
    return abs(comparison.estimate.effect) if comparison.estimate else 0.0
