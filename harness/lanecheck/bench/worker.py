"""What the process of one GPU does: benchmark the shapes that it is asked for."""

from __future__ import annotations

import gc
import random
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from lanecheck.bench import plan, race, telemetry
from lanecheck.bench.asking import Asking
from lanecheck.bench.ceiling import Ceiling
from lanecheck.bench.cuda_rig import CudaRig
from lanecheck.bench.device import cuda_torch, described
from lanecheck.bench.log import RowEntry
from lanecheck.bench.machine import Environment, Telemetry
from lanecheck.bench.plan import Workload
from lanecheck.gpu import unit
from lanecheck.subject import Params, load
from lanecheck.trial import Target

_OPEN = ExitStack()
"""What stays open until the process ends."""


@dataclass(frozen=True)
class Bench:
    """What every shape of a run has in common.

    Attributes:
        reference: the subject, ``module:ATTRIBUTE``.
        library: its build for the GPU. ceiling: that of the reading loops.
        rounds: samples of every contender.
        seed: of values, and of the order of contenders.
    """

    reference: str
    library: Path
    ceiling: Path
    rounds: int
    seed: int


def environment() -> Environment:
    """This process's GPU and what drives it.

    Raises:
        CannotRun: if torch is not here, or sees none.
    """
    return described()[0]


def benchmark(bench: Bench, params: Params, asking: Asking) -> RowEntry:
    """One shape.

    Raises:
        Exception: if something cannot be launched; then this process is of no more use.
        BadInput: if the subject does not count its traffic rightly.
    """
    start, torch = time.monotonic(), cuda_torch()
    found, uuid = described()
    rig, ceiling, held_back = _instruments(bench)
    target = Target(bench.reference, "cuda", (found.capability,), bench.library)
    rng = random.Random(f"{bench.seed} {params}")
    workload = Workload(plan.benchable(load(bench.reference)), params, bench.seed)
    enter = partial(race.rivals, ceiling, rig, workload, asking, rng)
    before = telemetry.read(uuid)
    row = race.row(workload, target, rig, enter, bench.rounds, rng, held_back)
    read = Telemetry(before=before, after=telemetry.read(uuid))
    del workload, enter
    gc.collect()  # operands that a cycle still holds would fill the GPU within a few rows
    if torch.cuda.memory_reserved() > found.memory_bytes // 2:
        torch.cuda.empty_cache()
    row = row.model_copy(update={"unit": unit(uuid), "telemetry": read})
    return RowEntry(
        seconds=time.monotonic() - start,
        environment=found,
        row=row,
        asked=asking.names,
    )


@cache
def _instruments(bench: Bench) -> tuple[CudaRig, Ceiling, race.HeldBack]:
    """Made once: what a rig calls the device's own state is that of its beginning."""
    found, uuid = described()
    rig, ceiling = CudaRig(bench.library, found.l2_bytes), Ceiling(bench.ceiling, found.sms)
    gc.freeze()  # torch's own objects: looking through them took a tenth of a second a shape
    return rig, ceiling, _OPEN.enter_context(telemetry.watch(uuid))
