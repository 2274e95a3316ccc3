"""One shape: judged, raced against its ceilings and its peers, timed in other modes, and doubted."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from lanecheck.bench import correctness, plan
from lanecheck.bench.asking import Asking
from lanecheck.bench.ceiling import Ceiling
from lanecheck.bench.correctness import Expected
from lanecheck.bench.cuda_rig import CudaRig
from lanecheck.bench.inquiry import inquire
from lanecheck.bench.machine import Absent
from lanecheck.bench.model import Measurement, Row, Timing, Traffic, disturbed
from lanecheck.bench.peers import PEERS, Peer, Product, Unavailable
from lanecheck.bench.plan import Workload, lay_out
from lanecheck.bench.rig import COLD_CHAIN, COLD_SINGLE, WARM_CHAIN, Rig
from lanecheck.bench.timing import (
    GRAPH_LAUNCHES,
    Chain,
    Launch,
    interleave,
    sampled,
    warms,
    without_rest,
)
from lanecheck.trial import Target

HeldBack = Callable[[], Sequence[str]]
MODE_ROUNDS = 10
"""Samples of each of the subject's other modes."""


@dataclass(frozen=True)
class Contender:
    """Something to time: a launch for each copy of its operands.

    Attributes:
        ready_s: seconds in which a peer was compiled, tuned and checked.
        at_work: while its code runs outside the race, so that what does not end is its fault.
    """

    name: str
    launches: Sequence[Launch]
    detail: str = ""
    ready_s: float | None = None
    at_work: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True)
class Rivals:
    """Who races against the subject over one shape."""

    ceiling: Contender
    copy: Contender
    peers: Sequence[Contender] = ()
    absent: Sequence[Absent] = ()


class Untimed(Exception):
    """Why a shape has no times although it was found correct."""


def row(
    workload: Workload,
    target: Target,
    rig: Rig,
    enter: Callable[[int], Rivals],
    rounds: int,
    rng: random.Random,
    held_back: HeldBack = tuple,
) -> Row:
    """One shape; it is timed only if it was found correct.

    Args:
        target: of one capability, the rig's.
        enter: the rivals, over so many copies of the workload's operands.
        held_back: what holds the device back now.
    """
    judgements, expected = correctness.shown(workload, target, rig)
    timing, untimed = None, None
    if expected:
        try:
            timing = timed(workload, expected, rig, enter, rounds, rng, held_back)
        except Untimed as reason:
            untimed = str(reason)
    traffic = Traffic(formula=plan.FORMULA, bytes=workload.bytes)
    return Row.of(dict(workload.params), traffic, judgements, timing, untimed)


def timed(
    workload: Workload,
    expected: Expected,
    rig: Rig,
    enter: Callable[[int], Rivals],
    rounds: int,
    rng: random.Random,
    held_back: HeldBack,
) -> Timing:
    """Race everyone, time the subject in its other modes, and measure what would cast doubt on it all.

    Raises:
        Untimed: if the device was held back in every round.
    """
    count = rig.copies(workload.bytes)
    copies, entered = lay_out(workload, rig, expected.inputs, count), enter(count)
    subject = Contender(workload.subject.name, copies.launches)
    persisting = rig.persisting_bytes()
    fixed = subject, entered.ceiling, entered.copy
    chains = [rig.chain(each.launches) for each in fixed]
    peers, absent = [], [*entered.absent]
    for peer in entered.peers:
        with peer.at_work():
            try:
                chain = rig.chain(peer.launches)
            except Exception as reason:  # others' code fails in ways of its own; the race goes on
                absent.append(Absent(name=peer.name, reason=f"it fails in a chain: {reason}"))
                continue
            chain.enqueue()
            rig.settle()
        chains.append(chain)
        peers.append(peer)
    taken = interleave(
        {str(index): sampled(chain) for index, chain in enumerate(chains)},
        rounds,
        rng,
        held_back,
    )
    if taken.discarded == rounds:
        raise Untimed(disturbed(taken.discarded, rounds, taken.reasons))
    otherwise, without = modes(workload, subject, chains[0], rig, rng, held_back)
    facts = inquire(workload, copies, chains[0], expected, rig, persisting)
    own, ceiling, copy, *others = (
        Measurement.of(each.name, times, workload.bytes, each.detail, each.ready_s)
        for each, times in zip((*fixed, *peers), taken.times.values())
    )
    timing = Timing.of(
        method=rig.methods[COLD_CHAIN],
        copies=count,
        subject=own,
        ceiling=ceiling,
        peers=others,
        absent=[*absent, *without],
        copy_ceiling=copy,
        modes=otherwise,
        discarded=taken.discarded,
        held_back=taken.reasons,
        facts=facts,
    )
    return timing if timing.steady else unrested(timing, chains, rng)


def unrested(timing: Timing, chains: Sequence[Chain], rng: random.Random) -> Timing:
    """The same timing, and how long each contender takes alone, without a rest.

    Args:
        chains: of the contenders, in their order; they run in a random one.
    """
    order = rng.sample(range(len(chains)), len(chains))
    taken = {index: round(without_rest(chains[index]), 4) for index in order}
    own, ceiling, copy, *peers = (
        each.model_copy(update={"sustained_us": taken[index]})
        for index, each in enumerate(timing.contenders)
    )
    changed = {"subject": own, "ceiling": ceiling, "copy_ceiling": copy, "peers": tuple(peers)}
    return timing.model_copy(update=changed)


def modes(
    workload: Workload,
    subject: Contender,
    chain: Chain,
    rig: Rig,
    rng: random.Random,
    held_back: HeldBack,
) -> tuple[list[Measurement], list[Absent]]:
    """The subject's other modes, and those that mean nothing here.

    Args:
        chain: of the subject's launches over all copies.
    """
    samples, absent = {COLD_SINGLE: rig.single(chain, subject.launches[0])}, []
    if warms(workload.operand_bytes, rig.l2_bytes):
        samples[WARM_CHAIN] = sampled(rig.chain([subject.launches[0]] * GRAPH_LAUNCHES))
    else:
        reason = (
            f"{workload.operand_bytes} bytes of operands do not stay in an L2 of {rig.l2_bytes}"
        )
        absent.append(Absent(name=WARM_CHAIN, reason=reason))
    taken = interleave(samples, MODE_ROUNDS, rng, held_back)
    if taken.discarded == MODE_ROUNDS:
        reason = disturbed(taken.discarded, MODE_ROUNDS, taken.reasons)
        return [], [*absent, *(Absent(name=name, reason=reason) for name in samples)]
    return [
        Measurement.of(name, times, workload.bytes, rig.methods[name])
        for name, times in taken.times.items()
    ], absent


def rivals(
    ceiling: Ceiling,
    rig: CudaRig,
    workload: Workload,
    asking: Asking,
    rng: random.Random,
    copies: int,
) -> Rivals:
    """The ceilings and every peer that is asked and can take part, on the current CUDA device."""
    loop, reads = ceiling.reading(workload.bytes, copies, rig.clock, rng)
    copier, copying = ceiling.copying(workload.bytes, copies, rig.clock, rng)
    entered = [*_entered(workload, rig, asking, copies)]
    return Rivals(
        ceiling=Contender("read ceiling", reads, loop),
        copy=Contender("copy ceiling", copying, copier),
        peers=[each for each in entered if isinstance(each, Contender)],
        absent=[each for each in entered if isinstance(each, Absent)],
    )


def _entered(
    workload: Workload, rig: CudaRig, asking: Asking, copies: int
) -> Iterator[Contender | Absent]:
    if asking.peers:
        try:
            product = Product.of(workload, workload.drawn(rig))
        except Unavailable as reason:
            asking = asking.alone(str(reason))
    for peer in PEERS:
        if refusal := asking.refusal(peer):
            yield Absent(name=peer.name, reason=refusal)
            continue
        at_work = partial(asking.at_work, peer)
        with at_work():
            found = _ready(peer, product, copies, at_work)
            rig.settle()  # what its kernels did to the device is its fault, and none of who comes next
        yield found


def _ready(
    peer: Peer,
    product: Product,
    copies: int,
    at_work: Callable[[], AbstractContextManager[None]],
) -> Contender | Absent:
    start = time.monotonic()
    try:
        launches = peer.launches(product, copies)
    except Unavailable as reason:
        return Absent(name=peer.name, reason=str(reason))
    return Contender(peer.name, launches, "", time.monotonic() - start, at_work)
