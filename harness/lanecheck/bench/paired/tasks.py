"""What a comparison asks a fresh process of an arm, and what that answers: plain, and JSON on the way."""

from __future__ import annotations

from typing import Annotated, Literal, Optional, Union

from pydantic import Field, TypeAdapter

from lanecheck.bench.machine import Environment, Telemetry
from lanecheck.bench.paired.record import Code, Microseconds, Values
from lanecheck.bench.strict import Strict
from lanecheck.matrix import Arch

Device = Literal["host", "cuda"]


class _OfSubject(Strict):
    """
    Attributes:
        subject: ``module:ATTRIBUTE``.
        folder: which the subject's package must come from.
    """

    subject: str
    folder: str


class Build(_OfSubject):
    """Build the arm's library for this arch, or for host execution."""

    task: Literal["build"] = "build"
    device: Device
    arch: Optional[Arch]


class Offer(Strict):
    """
    Attributes:
        library: where it lies; None for a subject that is a callable.
        gate: the configs that the subject wants gated on this device, by name; None if it does not say.
        bench: those that it wants benchmarked; None if it does not say.
        environment: the GPU and what drives it; None for host execution, and without torch.
    """

    library: Optional[str]
    code: Code
    gate: Optional[dict[str, Values]]
    bench: Optional[dict[str, Values]]
    environment: Optional[Environment] = None


class _OfLibrary(_OfSubject):
    """
    Attributes:
        capability: of the GPU, or of the tensor core that host execution computes with.
        seed: of the operands' values.
    """

    library: Optional[str]
    device: Device
    arch: str
    capability: str
    seed: int


class Show(_OfLibrary):
    """Have the oracles judge a config, and compute once what will be timed."""

    task: Literal["show"] = "show"
    params: Values


class Shown(Strict):
    """
    Attributes:
        doubt: why the config is not shown to be right; None if it is.
        output: digest of what it computed from the operands that will be timed; None if in doubt.
        wrong: whether an oracle found it wrong, which is more than a doubt.
    """

    doubt: Optional[str]
    output: Optional[str]
    wrong: bool = False


class Time(_OfLibrary):
    """Sample every config once a round, in an order drawn anew.

    Attributes:
        configs: parameters by name.
        order: seed of the rounds' orders.
    """

    task: Literal["time"] = "time"
    configs: dict[str, Values] = Field(min_length=1)
    rounds: int = Field(ge=1)
    order: int


class Timed(Strict):
    """
    Attributes:
        held_back: what held the GPU back in some round; of a round in which something did, no sample counts.
        medians_us: of the rounds that count, microseconds a launch.
        least_us: the same of the least launch there is; None for host execution.
        outputs: as in :class:`Shown`, by config, after the last launch.
        telemetry: before and after; None for host execution.
    """

    medians_us: dict[str, Microseconds]
    held_back: tuple[str, ...]
    least_us: Optional[Microseconds]
    outputs: dict[str, str]
    telemetry: Optional[Telemetry]


Task = Union[Build, Show, Time]
Answer = Union[Offer, Shown, Timed]
TASK: TypeAdapter[Task] = TypeAdapter(Annotated[Task, Field(discriminator="task")])
