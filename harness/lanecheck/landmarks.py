"""Landmarks: cases that a subject names because chance would not draw them.

Tuned configurations, shapes of real models, sizes at which an index overflows. Each runs as any case does,
with values drawn by its seed; a large one is judged by :data:`lanecheck.oracles.AT_FULL_SIZE`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from lanecheck.campaign import collect
from lanecheck.cases import Case
from lanecheck.errors import BadInput
from lanecheck.executor import Executor
from lanecheck.observation import LARGE
from lanecheck.subject import Params, Subject, load
from lanecheck.trial import Result, Target, Trial
from lanecheck.values import REGIMES


class Landmarked(Protocol):
    """A subject that names landmarks."""

    def landmarks(self, device: str) -> Mapping[str, Iterable[Params]]:
        """The subject's own axes of each, by group.

        Args:
            device: ``host`` or ``cuda``; some are too large for the host.
        """


def groups(subject: Subject, device: str) -> dict[str, list[Case]]:
    """A subject's landmarks by group, each with a seed of its own; regimes take turns.

    Raises:
        BadInput: if it names none.
    """
    named = getattr(subject, "landmarks", None)
    if named is None:
        raise BadInput(f"subject '{subject.name}' names no landmarks: it has no method landmarks()")
    found = {
        group: [_case(subject, params, index) for index, params in enumerate(each)]
        for group, each in named(device).items()
    }
    if not found:
        raise BadInput(f"subject '{subject.name}' names no landmarks for --device {device}")
    return found


def run(
    target: Target,
    chosen: list[Case],
    executor: Executor,
    progress: Callable[[Result], None] = lambda total: None,
) -> Result:
    """Run these cases; ``progress`` is called with the running total after every trial."""
    return collect(executor.run(target, _trials(target, chosen)), Result(), progress)


def _case(subject: Subject, params: Params, index: int) -> Case:
    size = _size(subject, params)
    # Of a large case nothing but bits is predicted, and ordinary values leave none of them blind.
    regime = "normal" if size > LARGE else REGIMES[index % len(REGIMES)]
    side = ("upper", "lower")[index // len(REGIMES) % 2]
    return Case(subject.name, {**params, "regime": regime, "side": side, "seed": index})


def _trials(target: Target, chosen: list[Case]) -> Iterator[Trial]:
    subject = load(target.subject)
    lines: list[str] = []
    held = 0
    for case in chosen:
        size = _size(subject, case.params)
        if lines and held + size > LARGE:
            yield Trial(target, tuple(lines))
            lines, held = [], 0
        lines.append(case.line)
        held += size
    if lines:
        yield Trial(target, tuple(lines))


def _size(subject: Subject, params: Params) -> int:
    """Elements of the inputs."""
    roles = ("input", "source")
    return sum(math.prod(t.shape) for t in subject.tensors(params) if t.role in roles)
