"""Base against head: both built, both shown correct, then paired in fresh processes; see :mod:`.gate`.

Nothing is timed where nothing can differ: the same machine code under the same host code is SAME.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Protocol

from lanecheck.bench.journal import Journal
from lanecheck.bench.paired.fresh import ProcessLost
from lanecheck.bench.paired.journal import LOG, outputs
from lanecheck.bench.paired.pairing import ARMS, SIDES, ArmName, Side, Turn, schedule
from lanecheck.bench.paired.prepared import Prepared, Processes
from lanecheck.bench.paired.record import (
    Entry,
    LostRecord,
    PairingRecord,
    ProcessRecord,
    ShownRecord,
    StateRecord,
    only,
)
from lanecheck.bench.paired.tasks import Shown, Timed

ROUNDS = 10
STATES = 5
"""Processes of base that say, before those that count, how long the least launch takes."""
RETRIES = 3
"""How often a process that is lost may be repeated, in one invocation."""


class Listener(Protocol):
    """Hears how far a comparison is."""

    def stage(self, title: str, total: float | None = None) -> None: ...
    def advance(self, done: float, note: str = "") -> None: ...
    def end(self, summary: str, good: bool | None = True) -> None: ...


def compare(
    comparison: Prepared,
    processes: Processes,
    log: Path,
    listener: Listener,
    force: bool = False,
) -> PairingRecord:
    """The verdict on head.

    Args:
        log: of every process; a comparison that was cut goes on from there.
        force: time even code that does not differ.

    Raises:
        BadInput: if the log is of another comparison.
    """
    header = comparison.header
    entries: Sequence[Entry] = ()
    refusal, wrong = None, False
    if header.changes or force:
        with LOG.opened(log, header) as journal:
            refusal, wrong = _shown(comparison, processes, journal, listener)
            if refusal is None:
                refusal = _timed(comparison, processes, journal, listener)
                entries = journal.entries
    created = datetime.now(timezone.utc).replace(microsecond=0)
    return PairingRecord.of(header, entries, refusal, created, wrong)


def seconds_each(comparison: Prepared, processes: Processes) -> float:
    """Seconds a process takes, from the second of two of base that count for nothing: the first waits for
    imports that those after it share.

    Raises:
        CannotRun: if one does not answer.
    """
    for _ in range(2):
        start = time.monotonic()
        processes.time(comparison.time("base", 0))
    return time.monotonic() - start


def _shown(
    comparison: Prepared, processes: Processes, journal: Journal[Entry], listener: Listener
) -> tuple[str | None, bool]:
    """Have what the journal lacks judged; why something is not shown correct, or None; and whether it is
    shown wrong."""
    every = [(side, config) for side in SIDES for config in comparison.configs]
    missing = [each for each in every if each not in outputs(journal.entries)]
    listener.stage("correct", len(every))
    with closing(processes.show([comparison.show(*each) for each in missing])) as answers:
        for side, config in missing:
            listener.advance(len(outputs(journal.entries)), f"{side} {config}")
            try:
                found = next(answers)
            except ProcessLost as error:
                found = Shown(doubt=str(error), output=None)
            if found.output is None:
                doubt = f"{side} is not shown correct, so nothing is timed: {config}: {found.doubt}"
                listener.end(doubt, False)
                return doubt, found.wrong
            journal.append(ShownRecord(arm=side, config=config, output=found.output))
    listener.end(f"{len(comparison.configs)} configs of base and of head")
    return None, False


def _timed(
    comparison: Prepared, processes: Processes, journal: Journal[Entry], listener: Listener
) -> str | None:
    """Run the processes that the journal lacks; why that came to an end too soon, or None."""
    turns = schedule(comparison.header.pairs, comparison.header.seed)
    resumed = len(only(ProcessRecord, journal.entries))
    listener.stage("processes", len(turns))
    try:
        state = _state(comparison, processes, journal) if resumed < len(turns) else None
    except ProcessLost as error:
        refusal = f"the GPU's usual state was not found: {error}"
        listener.end(refusal, False)
        return refusal
    for index, turn in enumerate(turns):
        listener.advance(index, _left(only(ProcessRecord, journal.entries), len(turns)))
        if index < resumed:
            continue
        for _ in range(1 + RETRIES):
            try:
                found = _process(comparison, processes, turn, index, outputs(journal.entries))
                _refuse_another_state(found, state)
                journal.append(found)
                break
            except ProcessLost as error:
                reason = str(error)
                journal.append(
                    LostRecord(pair=turn.pair, kind=turn.kind, side=turn.side, reason=reason)
                )
        else:
            whose = f"process {index + 1}, of {ARMS[turn.arm]},"
            refusal = f"{whose} was lost {1 + RETRIES} times: {reason}"
            listener.end(refusal, False)
            return refusal
    repeated = only(LostRecord, journal.entries)
    listener.end(
        f"{len(turns)} processes"
        + (f", {resumed} from the log" if resumed else "")
        + (f", {len(repeated)} repeated: {repeated[-1].reason}" if repeated else "")
    )
    return None


def _process(
    comparison: Prepared,
    processes: Processes,
    turn: Turn,
    index: int,
    outputs: Mapping[tuple[Side, str], str],
) -> ProcessRecord:
    """Raises ProcessLost if the process does not count."""
    start = time.monotonic()
    found = _answer(comparison, processes, turn.arm, index)
    code: Side = "head" if turn.arm == "head" else "base"
    wrong = [
        config
        for config in comparison.configs
        if found.outputs.get(config) != outputs[code, config]
    ]
    if wrong:
        raise ProcessLost(f"{wrong[0]}: other outputs than those that were shown correct")
    return ProcessRecord(
        pair=turn.pair,
        kind=turn.kind,
        side=turn.side,
        medians_us=found.medians_us,
        telemetry=found.telemetry,
        seconds=time.monotonic() - start,
        least_us=found.least_us,
    )


def _answer(comparison: Prepared, processes: Processes, arm: ArmName, order: int) -> Timed:
    """Raises ProcessLost if there is none, or the GPU was held back."""
    found = processes.time(comparison.time(arm, order))
    if found.held_back:
        raise ProcessLost(f"the GPU was held back: {', '.join(found.held_back)}")
    return found


def _state(
    comparison: Prepared, processes: Processes, journal: Journal[Entry]
) -> StateRecord | None:
    """The GPU's usual state, of base's processes as they will be timed; None for host execution.

    Measured anew when a log is gone on with.

    Raises:
        ProcessLost: if such processes are lost again and again, or the state is not that of the log.
    """
    if comparison.place.device == "host":
        return None
    least: list[float] = []
    failed = 0
    while len(least) < STATES:
        try:
            found = _answer(comparison, processes, "base", len(least) + failed)
            assert found.least_us, "of a GPU that was not held back"
            least.append(found.least_us)
        except ProcessLost:
            failed += 1
            if failed > RETRIES:
                raise
    state = StateRecord(least_us=tuple(least))
    logged = next(iter(only(StateRecord, journal.entries)), None)
    if logged and logged.refuses(state.usual_us):
        raise ProcessLost(
            f"the GPU's least launch takes {state.usual_us:.2f} µs, in the log {logged.usual_us:.2f}: "
            "begin anew with another --log"
        )
    if not logged:
        journal.append(state)
    return logged or state


def _refuse_another_state(found: ProcessRecord, state: StateRecord | None) -> None:
    """Raises ProcessLost if the process met another state of the GPU. The least launch decides, which is
    the same in both arms."""
    if state and found.least_us and state.refuses(found.least_us):
        raise ProcessLost(
            f"the GPU served it otherwise: its least launch takes {found.least_us:.2f} µs, usually "
            f"{state.usual_us:.2f}"
        )


def _left(done: Sequence[ProcessRecord], total: int) -> str:
    if not done:
        return ""
    return f"{(total - len(done)) * median(each.seconds for each in done):.0f} s left"
