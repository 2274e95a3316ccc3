"""Real input: a subject's kernel runs inside a real model, and every call is judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from lanecheck.cases import Case
from lanecheck.reports.model import RealRecord
from lanecheck.reports.results import campaign_record
from lanecheck.subject import Bits, Params, load
from lanecheck.trial import Result, Target, judged

#: Runs one call on the device and gives its outputs' bits back to the model.
Call = Callable[[Params, Mapping[str, Bits]], Mapping[str, Bits]]


@dataclass(frozen=True)
class RealRun:
    """What a model made of the kernel's outputs.

    Attributes:
        model: its name. layers: how many of its layers ran on the kernel.
        cosines: of each of its final outputs against those of the unmodified model.
    """

    model: str
    layers: int
    cosines: list[float]


class Missing(Exception):
    """The model is not installed; the message says what to install."""


class RealInput(Protocol):
    """A subject that can run inside a real model."""

    def real(self, call: Call) -> RealRun:
        """Run the model, every one of its layers through ``call``. Raises :class:`Missing`."""


def judge_real(target: Target) -> RealRecord | str:
    """Run the subject's model with host execution in this process and judge every call.

    Returns:
        The record, or why there is none.
    """
    subject = load(target.subject)
    if not hasattr(subject, "real"):
        return "the subject has no real input"
    result, start = Result(), time.perf_counter()

    def call(params: Params, inputs: Mapping[str, Bits]) -> Mapping[str, Bits]:
        given: dict[str, int | str] = {"regime": "given", "side": "upper", "seed": result.cases}
        case = Case(subject.name, {**params, **given})
        *_, last = judged(subject, case, target, result, inputs)
        return last.outputs

    try:
        run = subject.real(call)
    except Missing as reason:
        return str(reason)
    result.seconds = time.perf_counter() - start
    return RealRecord(
        model=run.model,
        layers=run.layers,
        cosines=run.cosines,
        campaign=campaign_record(result, target, 0),
    )
