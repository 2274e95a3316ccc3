"""One run: every shape of a subject, judged, then raced against its ceiling and its peers."""

from __future__ import annotations

import ctypes
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lanecheck.bench import correctness, plan, telemetry
from lanecheck.bench.ceiling import Ceiling, build
from lanecheck.bench.model import (
    Absent,
    BenchRecord,
    Environment,
    Judgement,
    Measurement,
    Row,
    Telemetry,
    Timing,
    Traffic,
    doubt,
)
from lanecheck.bench.peers import PEERS, Unavailable
from lanecheck.bench.plan import Workload
from lanecheck.bench.timing import METHOD, Clock, CudaGraphClock, Launch, copies, interleave
from lanecheck.errors import CannotRun
from lanecheck.subject import load
from lanecheck.toolchain import Toolchain
from lanecheck.trial import Target

ROUNDS = 30


def run(
    reference: str,
    library: Path,
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    toolchain: Toolchain | None = None,
    on_row: Callable[[Row], None] = lambda row: None,
) -> BenchRecord:
    """Benchmark a subject on this machine's current CUDA device.

    Args:
        reference: the subject, ``module:ATTRIBUTE``.
        library: its library, built for this device.
        rounds: samples of every contender.
        seed: of values, and of the order of contenders.
        toolchain: compiles the read ceiling.
        on_row: called with each row as it is done.

    Raises:
        CannotRun: if there is no CUDA device here, or something cannot be launched on it.
        BadInput: if the subject does not say what to time.
    """
    torch = cuda_torch()
    subject = plan.benchable(load(reference))
    environment, uuid = describe(torch)
    target = Target(reference, "cuda", (environment.capability,), library)
    ceiling = Ceiling(build(environment.capability, toolchain or Toolchain()), environment.sms)
    compiled = ctypes.CDLL(str(library))
    clock, rng = CudaGraphClock(), random.Random(seed)

    before, rows = telemetry.read(uuid), []
    for params in subject.bench_params():
        workload = Workload.of(subject, params, seed)
        judgements = correctness.judge(subject, params, target, seed)

        def enter(workload: Workload = workload) -> Lineup:
            return line_up(workload, compiled, ceiling, clock, environment.l2_bytes, rng)

        rows.append(row(params, workload.bytes, judgements, enter, clock, rounds, rng))
        on_row(rows[-1])
        torch.cuda.empty_cache()
    return BenchRecord(
        subject=subject.name,
        library_sha256=hashlib.sha256(library.read_bytes()).hexdigest(),
        seed=seed,
        rounds=rounds,
        environment=environment,
        telemetry=Telemetry(before=before, after=telemetry.read(uuid)),
        rows=tuple(rows),
    )


@dataclass(frozen=True)
class Contender:
    """Something to time: a launch for each copy of its operands."""

    name: str
    launches: Sequence[Launch]
    detail: str = ""


@dataclass(frozen=True)
class Lineup:
    """Who races over one shape."""

    copies: int
    subject: Contender
    ceiling: Contender
    peers: Sequence[Contender] = ()
    absent: Sequence[Absent] = ()

    @property
    def contenders(self) -> list[Contender]:
        return [self.subject, self.ceiling, *self.peers]


def row(
    params: Mapping[str, int | str],
    size: int,
    judgements: Sequence[Judgement],
    enter: Callable[[], Lineup],
    clock: Clock,
    rounds: int,
    rng: random.Random,
) -> Row:
    """One shape of ``size`` bytes a launch; it is timed only if it was found correct."""
    timing = None if doubt(judgements) else race(enter(), size, clock, rounds, rng)
    return Row.of(dict(params), Traffic(formula=plan.FORMULA, bytes=size), judgements, timing)


def race(lineup: Lineup, size: int, clock: Clock, rounds: int, rng: random.Random) -> Timing:
    """Time everyone, interleaved; ``size`` is the bytes that each launch must move."""
    samples = {each.name: clock.prepare(each.launches) for each in lineup.contenders}
    taken = interleave(samples, rounds, rng)
    subject, ceiling, *peers = (
        Measurement.of(each.name, taken[each.name], size, each.detail) for each in lineup.contenders
    )
    return Timing.of(
        method=METHOD,
        copies=lineup.copies,
        subject=subject,
        ceiling=ceiling,
        peers=peers,
        absent=lineup.absent,
    )


def line_up(
    workload: Workload,
    library: ctypes.CDLL,
    ceiling: Ceiling,
    clock: Clock,
    l2: int,
    rng: random.Random,
) -> Lineup:
    """The subject, its ceiling and every peer that can take part, on the current CUDA device."""
    turns = copies(workload.bytes, l2)
    geometry, reads = ceiling.best(workload.bytes, turns, clock, rng)
    peers, absent = [], []
    for peer in PEERS:
        try:
            peers.append(Contender(peer.name, peer.launches(workload, turns)))
        except Unavailable as reason:
            absent.append(Absent(name=peer.name, reason=str(reason)))
    return Lineup(
        copies=turns,
        subject=Contender(workload.subject.name, plan.subject_launches(workload, library, turns)),
        ceiling=Contender("read ceiling", reads, str(geometry)),
        peers=peers,
        absent=absent,
    )


def cuda_torch() -> Any:
    """Torch, with a CUDA device.

    Raises:
        CannotRun: if this machine lacks either.
    """
    try:
        import torch
    except ImportError:
        raise CannotRun("lanecheck bench needs torch with CUDA: pip install torch") from None
    if not torch.cuda.is_available():
        raise CannotRun("lanecheck bench needs a CUDA GPU, and torch sees none on this machine")
    return torch


def describe(torch: Any) -> tuple[Environment, str]:
    """The current device and its UUID."""
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    driver, memory_clock = telemetry.driver_and_memory_clock(str(gpu.uuid))
    environment = Environment(
        gpu=gpu.name,
        capability=f"{gpu.major}.{gpu.minor}",
        sms=gpu.multi_processor_count,
        l2_bytes=gpu.L2_cache_size,
        memory_bytes=gpu.total_memory,
        memory_clock_mhz=memory_clock,
        driver=driver,
        torch=str(torch.__version__),
        cuda=str(torch.version.cuda),
    )
    return environment, str(gpu.uuid)
