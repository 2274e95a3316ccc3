"""One run: every shape of a subject, judged, raced against its ceilings and its peers, and doubted."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from lanecheck.bench import correctness, plan, telemetry
from lanecheck.bench.ceiling import COPY, Ceiling, build, copying
from lanecheck.bench.correctness import Ordinary
from lanecheck.bench.cuda_rig import CudaRig
from lanecheck.bench.inquiry import inquire
from lanecheck.bench.journal import Kind
from lanecheck.bench.model import (
    Absent,
    BenchHeader,
    BenchRecord,
    Environment,
    Measurement,
    Row,
    RowEntry,
    Telemetry,
    Timing,
    Traffic,
    disturbed,
    doubt,
)
from lanecheck.bench.peers import PEERS, Unavailable
from lanecheck.bench.plan import Workload
from lanecheck.bench.rig import COLD_CHAIN, COLD_SINGLE, WARM_CHAIN, Rig
from lanecheck.bench.timing import (
    GRAPH_LAUNCHES,
    Chain,
    Clock,
    Launch,
    sampled,
    undisturbed,
    warms,
)
from lanecheck.build import tree
from lanecheck.errors import CannotRun
from lanecheck.gpu import unit
from lanecheck.subject import Params, load
from lanecheck.toolchain import Toolchain
from lanecheck.trial import Target

ROUNDS = 30
MODE_ROUNDS = 10
"""Samples of each of the subject's other modes."""


def _differences(first: BenchHeader, second: BenchHeader) -> list[str]:
    names = BenchHeader.model_fields
    return [name for name in names if getattr(first, name) != getattr(second, name)]


LOG = Kind("a benchmark", BenchHeader, TypeAdapter(RowEntry), _differences)


def run(
    reference: str,
    library: Path,
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    log: Path,
    toolchain: Toolchain | None = None,
    on_row: Callable[[Row], None] = lambda row: None,
) -> BenchRecord:
    """Benchmark a subject on this machine's current CUDA device.

    Args:
        reference: the subject, ``module:ATTRIBUTE``.
        library: its library, built for this device.
        rounds: samples of every contender.
        seed: of values, and of the order of contenders.
        log: of every row; a run that was cut goes on from it.
        toolchain: compiles the read ceiling.
        on_row: called with each row as it is done.

    Raises:
        CannotRun: if there is no CUDA device here, or something cannot be launched on it.
        BadInput: if the subject does not say what to time, or the log is of another run.
    """
    torch = cuda_torch()
    subject = plan.benchable(load(reference))
    environment, uuid = describe(torch)
    target = Target(reference, "cuda", (environment.capability,), library)
    ceiling = Ceiling(build(environment.capability, toolchain or Toolchain()), environment.sms)
    rng = random.Random(seed)

    before = telemetry.read(uuid)
    header = headed(subject.name, library, uuid, rounds, seed)
    with telemetry.watch(uuid) as held_back, LOG.opened(log, header) as journal:
        rig = CudaRig(ctypes.CDLL(str(library)), environment.l2_bytes, held_back)
        for params in subject.bench_params():
            if any(entry.row.params == params for entry in journal.entries):
                continue
            start = time.monotonic()
            workload = Workload.of(subject, params, seed)
            enter = partial(rivals, ceiling, rig.clock, rng, workload)
            found = row(params, workload, target, rig, enter, rounds, rng)
            journal.append(RowEntry(seconds=time.monotonic() - start, row=found))
            on_row(found)
            gc.collect()  # operands that a cycle still holds would fill the GPU within a few rows
            torch.cuda.empty_cache()
        rows = [entry.row for entry in journal.entries]
    return BenchRecord(
        subject=subject.name,
        library_sha256=header.library_sha256,
        seed=seed,
        rounds=rounds,
        environment=environment,
        telemetry=Telemetry(before=before, after=telemetry.read(uuid)),
        rows=tuple(rows),
    )


def headed(subject: str, library: Path, uuid: str, rounds: int, seed: int) -> BenchHeader:
    """What decides whether a log's rows may be used again.

    Args:
        subject: its name. uuid: of the GPU, as the driver or as torch writes it.
    """
    return BenchHeader(
        subject=subject,
        benchmark=hashlib.sha256(json.dumps(tree(Path(__file__).parent)).encode()).hexdigest(),
        library_sha256=hashlib.sha256(library.read_bytes()).hexdigest(),
        unit=unit(uuid),
        rounds=rounds,
        seed=seed,
    )


@dataclass(frozen=True)
class Contender:
    """Something to time: a launch for each copy of its operands."""

    name: str
    launches: Sequence[Launch]
    detail: str = ""


@dataclass(frozen=True)
class Rivals:
    """Who races against the subject over one shape."""

    ceiling: Contender
    copy: Contender
    peers: Sequence[Contender] = ()
    absent: Sequence[Absent] = ()

    def against(self, subject: Contender) -> list[Contender]:
        """Everyone: the subject, the ceilings, the peers."""
        return [subject, self.ceiling, self.copy, *self.peers]


class Untimed(Exception):
    """Why a shape has no times although it was found correct."""


def row(
    params: Params,
    workload: Workload,
    target: Target,
    rig: Rig,
    enter: Callable[[int], Rivals],
    rounds: int,
    rng: random.Random,
) -> Row:
    """One shape; it is timed only if it was found correct.

    Args:
        params: the shape, as the subject named it.
        target: of one capability, the rig's.
        enter: the rivals, over so many copies of the workload's operands.
    """
    judgements = correctness.judge(workload.subject, params, target, workload.case.seed)
    timing, untimed = None, None
    if not doubt(judgements):
        further, ordinary = correctness.ordinary(workload, target)
        judgements += further
    if not doubt(judgements):
        try:
            timing = timed(workload, ordinary, rig, enter, rounds, rng)
        except Untimed as reason:
            untimed = str(reason)
    traffic = Traffic(formula=plan.FORMULA, bytes=workload.bytes)
    return Row.of(dict(params), traffic, judgements, timing, untimed)


def timed(
    workload: Workload,
    ordinary: Ordinary,
    rig: Rig,
    enter: Callable[[int], Rivals],
    rounds: int,
    rng: random.Random,
) -> Timing:
    """Race everyone, time the subject in its other modes, and measure what would cast doubt on it all.

    Raises:
        Untimed: if the device was held back in every round.
    """
    turns = rig.copies(workload.bytes)
    copies, entered = plan.lay_out(workload, rig, turns), enter(turns)
    subject = Contender(workload.subject.name, [copy.launch for copy in copies])
    persisting = rig.persisting_bytes()
    chains = [rig.chain(each.launches) for each in entered.against(subject)]
    taken = undisturbed(
        {str(index): sampled(chain) for index, chain in enumerate(chains)},
        rounds,
        rng,
        rig.held_back,
    )
    if taken.discarded == rounds:
        raise Untimed(disturbed(taken.discarded, rounds, taken.reasons))
    others, without = modes(workload, subject, chains[0], rig, rng)
    facts = inquire(workload, copies, chains[0], ordinary, rig, persisting)
    own, ceiling, copying, *peers = (
        Measurement.of(each.name, times, workload.bytes, each.detail)
        for each, times in zip(entered.against(subject), taken.times.values())
    )
    return Timing.of(
        method=rig.methods[COLD_CHAIN],
        copies=turns,
        subject=own,
        ceiling=ceiling,
        peers=peers,
        absent=[*entered.absent, *without],
        copy_ceiling=copying,
        modes=others,
        discarded=taken.discarded,
        held_back=taken.reasons,
        facts=facts,
    )


def modes(
    workload: Workload, subject: Contender, chain: Chain, rig: Rig, rng: random.Random
) -> tuple[list[Measurement], list[Absent]]:
    """The subject's other modes, and those that mean nothing here.

    Args:
        chain: of the subject's launches over all copies.
    """
    samples, absent = {COLD_SINGLE: rig.single(chain, subject.launches[0])}, []
    if warms(workload.held, rig.l2_bytes):
        samples[WARM_CHAIN] = sampled(rig.chain([subject.launches[0]] * GRAPH_LAUNCHES))
    else:
        reason = f"{workload.held} bytes of operands do not stay in an L2 of {rig.l2_bytes}"
        absent.append(Absent(name=WARM_CHAIN, reason=reason))
    taken = undisturbed(samples, MODE_ROUNDS, rng, rig.held_back)
    if taken.discarded == MODE_ROUNDS:
        reason = disturbed(taken.discarded, MODE_ROUNDS, taken.reasons)
        return [], [*absent, *(Absent(name=name, reason=reason) for name in samples)]
    return [
        Measurement.of(name, times, workload.bytes, rig.methods[name])
        for name, times in taken.times.items()
    ], absent


def rivals(
    ceiling: Ceiling, clock: Clock, rng: random.Random, workload: Workload, copies: int
) -> Rivals:
    """The ceilings and every peer that can take part, on the current CUDA device."""
    geometry, reads = ceiling.best(workload.bytes, copies, clock, rng)
    peers, absent = [], []
    for peer in PEERS:
        try:
            peers.append(Contender(peer.name, peer.launches(workload, copies)))
        except Unavailable as reason:
            absent.append(Absent(name=peer.name, reason=str(reason)))
    return Rivals(
        ceiling=Contender("read ceiling", reads, str(geometry)),
        copy=Contender("copy ceiling", copying(workload.bytes, copies), COPY),
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
