"""Trials: a plain description of work in, a plain result out; what a worker process does."""

from __future__ import annotations

import ctypes
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from lanecheck import cases, oracles, sight, simt
from lanecheck.cases import Case
from lanecheck.cuda_memory import CudaMemory
from lanecheck.errors import LanecheckError
from lanecheck.memory import HeapMemory, Memory, SimtMemory
from lanecheck.observation import POISON, Observation, Problem, Run, is_large
from lanecheck.subject import Bits, Buffer, Params, Subject, Tensor, load, recipe_of
from lanecheck.tensorcore import TensorCore, model_for
from lanecheck.values import draw_values
from lanecheck.verdict import Outcome, Verdict

#: How often a case that was wrong on a GPU is repeated, before the kernel is blamed or the device.
REPETITIONS = 3


@dataclass(frozen=True)
class Target:
    """What runs and on what.

    Attributes:
        subject: ``module:ATTRIBUTE``.
        device: ``host`` or ``cuda``.
        capabilities: compute capabilities whose tensor cores each case is run with (host), or the
            device's own (cuda).
        library: the built library, None for a callable.
        variant: which build of it: plain, hooks, asan; or the arch for cuda.
        gpus: the UUIDs of the GPUs, for cuda; a trial runs on one of them.
    """

    subject: str
    device: str = "host"
    capabilities: tuple[str, ...] = ("9.0",)
    library: Path | None = None
    variant: str = "plain"
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trial:
    """Cases for one process: explicit lines, or a run of a campaign's indices.

    Attributes:
        thorough: let a diagnosis cost what it may, for cases that are looked at rather than counted.
    """

    target: Target
    lines: tuple[str, ...] = ()
    seed: int = 0
    indices: range = range(0)
    thorough: bool = False

    def cases(self, subject: Subject) -> Iterator[Case]:
        yield from (cases.parse(line, subject) for line in self.lines)
        yield from (cases.case(subject, self.seed, index) for index in self.indices)

    def singly(self) -> list[Trial]:
        """The same work, one case a trial."""
        subject = load(self.target.subject)
        return [Trial(self.target, (case.line,)) for case in self.cases(subject)]


@dataclass(frozen=True)
class Failure:
    """One case of which an oracle said something else than that it passes."""

    line: str
    capability: str
    verdict: Verdict


@dataclass
class Result:
    """What a trial saw.

    Attributes:
        cases: how many ran. blind: how many of them are no evidence, see :mod:`lanecheck.sight`.
        judged: verdicts by oracle. compared: output elements compared bit for bit, by oracle.
        failures: what is wrong. reordered: what is right, in another order than the declared one.
    """

    cases: int = 0
    blind: int = 0
    launches: int = 0
    seconds: float = 0.0
    judged: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    reordered: list[Failure] = field(default_factory=list)

    def add(self, other: Result) -> None:
        """Merge another trial's result into this one."""
        self.cases += other.cases
        self.blind += other.blind
        self.launches += other.launches
        self.seconds += other.seconds
        self.judged += other.judged
        self.compared += other.compared
        self.failures += other.failures
        self.reordered += other.reordered


def run(trial: Trial) -> Result:
    """Run every case of ``trial`` in this process."""
    subject = load(trial.target.subject)
    result = Result()
    start = time.perf_counter()
    for case in trial.cases(subject):
        for _ in judged(subject, case, trial.target, result, thorough=trial.thorough):
            pass
    result.seconds = time.perf_counter() - start
    return result


def judged(
    subject: Subject,
    case: Case,
    target: Target,
    result: Result,
    inputs: Mapping[str, Bits] | None = None,
    thorough: bool = False,
) -> Iterator[Observation]:
    """:func:`observe` a case, let every oracle judge it, and count into ``result``.

    Args:
        inputs: bits by name; drawn from the case's seed if not given.
        thorough: let a diagnosis cost what it may.
    """
    inputs = draw_inputs(subject, case) if inputs is None else inputs
    result.cases += 1
    blind = not is_large(inputs) and sight.unseen(subject, case.params, inputs) is not None
    result.blind += blind
    for capability, observation in observe(subject, case, target, inputs):
        result.launches += len(observation.runs)
        verdicts = oracles.judge(observation, thorough=thorough)
        if target.device == "cuda" and any(verdict.wrong for verdict in verdicts):
            verdicts = _repeated(verdicts, lambda: observe(subject, case, target, inputs))
        for verdict in verdicts:
            result.judged[verdict.oracle] += 1
            result.compared[verdict.oracle] += 0 if blind else verdict.compared
            if verdict.outcome is not Outcome.PASS:
                notes = result.failures if verdict.wrong else result.reordered
                notes.append(Failure(case.line, capability, verdict))
        yield observation


def _repeated(
    verdicts: list[Verdict], again: Callable[[], Iterator[tuple[str, Observation]]]
) -> list[Verdict]:
    """The verdicts on a case that is wrong on a GPU, in the light of :data:`REPETITIONS` of it."""
    wrong = sum(
        any(verdict.wrong for _, observation in again() for verdict in oracles.judge(observation))
        for _ in range(REPETITIONS)
    )
    outcome = Outcome.FAIL if wrong else Outcome.SUSPECT
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    text = f"; wrong in {wrong} of {REPETITIONS} repetitions" + (f" on {gpu}" if gpu else "")
    return [
        replace(verdict, outcome=outcome, evidence=verdict.evidence + text)
        if verdict.wrong
        else verdict
        for verdict in verdicts
    ]


def observe(
    subject: Subject, case: Case, target: Target, inputs: Mapping[str, Bits] | None = None
) -> Iterator[tuple[str, Observation]]:
    """Run one case on each of the target's capabilities, under each colour of poison.

    Args:
        inputs: bits by name; drawn from the case's seed if not given.
    """
    inputs = draw_inputs(subject, case) if inputs is None else inputs
    values = operands(subject, case.params, inputs)
    for capability in target.capabilities:
        core = model_for(capability)

        def launch(params: Params, inputs: Mapping[str, Bits], core: TensorCore = core) -> Run:
            other = Case(case.subject, {**case.params, **params})
            values = operands(subject, params, inputs)
            (run,) = _runs(subject, other, target, core, values, colours=1)
            return run

        runs = tuple(_runs(subject, case, target, core, values, colours=len(POISON)))
        yield capability, Observation(subject, case, core, inputs, runs, launch)


def draw_inputs(subject: Subject, case: Case) -> dict[str, Bits]:
    """The values of a case's inputs, as bits by name."""
    rng = np.random.default_rng(case.seed)
    terms = subject.terms(case.params)
    regime = str(case.params["regime"])
    return {
        tensor.name: draw_values(regime, tensor.shape, terms, rng)
        for tensor in subject.tensors(case.params)
        if tensor.role in ("input", "source")
    }


def operands(subject: Subject, params: Params, inputs: Mapping[str, Bits]) -> dict[str, Bits]:
    """What a launch is given, as bits by name: the inputs, and the packed tensors derived from them."""
    return {**inputs, **subject.derive(params, inputs)}


class Schedule(TypedDict):
    """How host execution goes about a launch: arguments of
    :meth:`~lanecheck.simt.HostLibrary.configure`."""

    schedule_seed: int
    resident_ctas: int
    preempt: bool
    poison_seed: int


def schedule(case: Case, colour: int) -> Schedule:
    """Of the case's launch under this colour of poison."""
    seed = case.seed + colour
    return Schedule(
        schedule_seed=seed,
        resident_ctas=1 + seed % 8,
        preempt=seed % 3 == 0,
        poison_seed=seed,
    )


def keeps_workspace(case: Case) -> bool:
    """Whether the second launch finds its workspaces as the first left them, or poisoned again."""
    return not case.seed >> 8 & 1


def _runs(
    subject: Subject,
    case: Case,
    target: Target,
    core: TensorCore,
    values: Mapping[str, Bits],
    colours: int,
) -> Iterator[Run]:
    with _placed(subject, case, target, core, values) as (regions, launch):
        for colour in range(colours):
            problems = launch(colour)
            outputs, strays = {}, {}
            for name, (tensor, region, view) in regions.items():
                if tensor.role != "output":
                    continue
                poison = POISON[colour][tensor.dtype]
                outputs[name] = view.copy()
                view[...] = poison
                strays[name] = sum(int((part != poison).sum()) for part in tensor.windows(region))
            yield Run(outputs, strays, tuple(problems))
            if problems:
                return


@contextmanager
def launcher(subject: Subject, case: Case, target: Target) -> Iterator[Callable[[], list[Problem]]]:
    """The case's launch alone, to be called any number of times; each returns its problems."""
    values = operands(subject, case.params, draw_inputs(subject, case))
    core = model_for(target.capabilities[0])
    with _placed(subject, case, target, core, values) as (_, launch):
        yield lambda: launch(0)


_Regions = dict[str, tuple[Tensor, npt.NDArray[np.uint8], Bits]]


@contextmanager
def _placed(
    subject: Subject,
    case: Case,
    target: Target,
    core: TensorCore,
    values: Mapping[str, Bits],
) -> Iterator[tuple[_Regions, Callable[[int], list[Problem]]]]:
    """The case's tensors in guarded memory, and the launch over them, by colour of poison."""
    library, memory = _open(target)
    host, cdll = (
        (library, library.cdll) if isinstance(library, simt.HostLibrary) else (None, library)
    )
    try:
        buffers: dict[str, Buffer] = {}
        regions: _Regions = {}
        if host:
            host.configure(model=core.name, **schedule(case, 0))
        for tensor in subject.tensors(case.params):
            if tensor.role == "source":
                continue
            given = values.get(tensor.name)
            size = tensor.span * tensor.item.itemsize
            side = str(case.params["side"])
            address, region = memory.allocate(
                tensor.name, size, tensor.align, side, given is not None
            )
            view = tensor.view(region)
            _paint(tensor, region, 0)
            if given is not None:
                view[...] = given
            offset = tensor.offset * tensor.item.itemsize
            buffers[tensor.name] = Buffer(address + offset, view)
            regions[tensor.name] = (tensor, region, view)

        def call(stream: int) -> str | None:
            try:
                return subject.launch(cdll, case.params, buffers, stream)
            except LanecheckError:
                raise
            except (Exception, SystemExit) as error:
                return f"{type(error).__name__}: {error}"

        def launch(colour: int) -> list[Problem]:
            if colour:
                if host:
                    host.configure(model=core.name, **schedule(case, colour))
                _repaint(regions, colour, keeps_workspace(case))
            return memory.run(call)

        yield regions, launch
    finally:
        memory.release()


def _repaint(regions: _Regions, colour: int, keep: bool) -> None:
    """Poison outputs again, and workspaces unless they are to ``keep`` what the last launch left."""
    for tensor, region, _ in regions.values():
        if tensor.role == "output" or (tensor.role == "workspace" and not keep):
            _paint(tensor, region, colour)


def _paint(tensor: Tensor, region: npt.NDArray[np.uint8], colour: int) -> None:
    for part in tensor.windows(region):
        part[...] = POISON[colour][tensor.dtype]


@lru_cache(maxsize=8)
def _open(target: Target) -> tuple[simt.HostLibrary | ctypes.CDLL | None, Memory]:
    if target.library is None:
        return None, HeapMemory()
    if target.device == "host":
        library = simt.HostLibrary(target.library, recipe_of(load(target.subject)).twins)
        return library, SimtMemory(library)
    return ctypes.CDLL(str(target.library)), _device_memory()


@cache
def _device_memory() -> CudaMemory:
    """Of this process's one GPU, whichever library runs there: it keeps what it has mapped."""
    return CudaMemory()
