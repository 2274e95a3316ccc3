"""What a comparison is of, before anything is timed: the arms, built, and their configs that are gated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from lanecheck.bench.paired.arms import Arm
from lanecheck.bench.paired.fresh import ProcessLost
from lanecheck.bench.paired.pairing import ARMS, SIDES, ArmName, Side, gated
from lanecheck.bench.paired.record import ArmRecord, Header, Values
from lanecheck.bench.paired.tasks import Build, Offer, Show, Shown, Time, Timed
from lanecheck.bench.paired.timing_code import timing_code
from lanecheck.errors import BadInput, CannotRun
from lanecheck.matrix import Arch


class Processes(Protocol):
    """Answers tasks, each in a fresh process. Raises ProcessLost if there is no answer."""

    def build(self, task: Build) -> Offer: ...
    def show(self, tasks: Sequence[Show]) -> Generator[Shown, None, None]: ...
    def time(self, task: Time) -> Timed: ...


@dataclass(frozen=True)
class Place:
    """Where a comparison runs.

    Attributes:
        arch: what is built; None for host execution.
        capability: of the GPU, or of the tensor core that host execution computes with.
        machine: the GPU's name, or what the host is.
        unit: digest of the GPU's identifier; empty for host execution.
    """

    device: Literal["host", "cuda"]
    arch: Arch | None
    capability: str
    machine: str
    unit: str = ""


@dataclass(frozen=True)
class Prepared:
    """The arms, built, and everything that decides what a comparison of them is."""

    header: Header
    place: Place
    arms: dict[ArmName, Arm]
    libraries: dict[ArmName, str | None]

    @property
    def configs(self) -> list[str]:
        return [*self.header.base.configs]

    @property
    def log(self) -> str:
        """A file name that no other code has, nor the same on another GPU."""
        keys = (_digest(arm.code)[:12] for arm in (self.header.base, self.header.head))
        return "-".join(filter(None, (*keys, self.place.device, self.place.unit))) + ".jsonl"

    def show(self, side: Side, config: str) -> Show:
        """The task that shows a config of an arm correct."""
        return Show(**self._of(side), params=self._arm(side).configs[config])

    def time(self, arm: ArmName, order: int) -> Time:
        """The task that times an arm's configs, in an order that is drawn from ``order``."""
        configs, rounds = self._arm(arm).configs, self.header.rounds
        return Time(**self._of(arm), configs=configs, rounds=rounds, order=order)

    def _arm(self, arm: ArmName) -> ArmRecord:
        return self.header.head if arm == "head" else self.header.base

    def _of(self, arm: ArmName) -> dict[str, Any]:
        """What both tasks have."""
        return {
            "subject": self.header.subject,
            "folder": str(self.arms[arm].folder),
            "library": self.libraries[arm],
            "device": self.place.device,
            "arch": self.header.arch,
            "capability": self.place.capability,
            "seed": self.header.seed,
        }


def prepared(
    arms: tuple[Arm, Arm, Arm],
    place: Place,
    subject: str,
    processes: Processes,
    *,
    pairs: int,
    rounds: int,
    seed: int | None,
) -> Prepared:
    """Build the arms, and find out what is gated.

    Args:
        arms: base, head and base again.
        seed: of values and of the order; drawn from the code and the configs of base and head if None.

    Raises:
        CannotRun: if one cannot be built, or base again is not base.
        BadInput: if neither base nor head says what to time, or one has no such subject.
    """
    named = dict(zip(ARMS, arms))
    offers: dict[ArmName, Offer] = {}
    for name, arm in named.items():
        task = Build(subject=subject, folder=str(arm.folder), device=place.device, arch=place.arch)
        try:
            offers[name] = processes.build(task)
        except ProcessLost as error:
            kind = BadInput if error.mistake else CannotRun
            raise kind(f"{ARMS[name]} ({arm.given}): {error}") from None
    if others := [*offers["base"].code.changes(offers["again"].code)]:
        raise CannotRun(
            f"{ARMS['again']} ({arms[0].given}) differs from the first in {', '.join(others)}: "
            "its folder changed meanwhile, or its code depends on where it lies"
        )
    configs = dict(zip(SIDES, _gated(offers["base"], offers["head"], subject)))
    base, head = (
        ArmRecord(
            given=named[side].given,
            commit=named[side].commit,
            code=offers[side].code,
            configs=configs[side],
        )
        for side in SIDES
    )
    header = Header(
        subject=subject,
        benchmark=_digest(timing_code(Path(__file__).parents[2])),
        device=place.device,
        arch=place.arch.name if place.arch else "plain",
        machine=place.machine,
        unit=place.unit,
        environment=offers["base"].environment,
        seed=_drawn(base, head) if seed is None else seed,
        pairs=pairs,
        rounds=rounds,
        base=base,
        head=head,
    )
    libraries = {name: offer.library for name, offer in offers.items()}
    return Prepared(header, place, named, libraries)


def _gated(base: Offer, head: Offer, subject: str) -> tuple[dict[str, Values], dict[str, Values]]:
    """Each arm's configs; those of the benchmark, if neither names any for the gate."""
    configs = gated(base.gate, head.gate)
    if not configs[0]:
        configs = gated(base.bench, head.bench)
    if not configs[0]:
        raise BadInput(f"subject '{subject}' has neither gate_params() nor bench_params()")
    return configs


def _drawn(base: ArmRecord, head: ArmRecord) -> int:
    """A seed that the same code and configs have again, and that other ones need not have."""
    parts = [arm.model_dump(include={"code", "configs"}) for arm in (base, head)]
    return int(_digest({"arms": parts})[:8], 16)


def _digest(content: BaseModel | Mapping[str, Any]) -> str:
    plain = content.model_dump() if isinstance(content, BaseModel) else content
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
