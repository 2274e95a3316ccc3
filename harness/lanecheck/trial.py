"""Trials: a plain description of work in, a plain result out; what a worker process does."""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lanecheck import cases, oracles, simt
from lanecheck.cases import Case
from lanecheck.errors import LanecheckError
from lanecheck.memory import CudaMemory, HeapMemory, Memory, SimtMemory
from lanecheck.observation import POISON, Observation, Problem
from lanecheck.subject import Bits, Buffer, Subject, Tensor, load, recipe_of
from lanecheck.tensorcore import TensorCore, model_for
from lanecheck.values import draw_values
from lanecheck.verdict import Verdict


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
        gpu: the UUID of the GPU, for cuda.
    """

    subject: str
    device: str = "host"
    capabilities: tuple[str, ...] = ("9.0",)
    library: Path | None = None
    variant: str = "plain"
    gpu: str = ""


@dataclass(frozen=True)
class Trial:
    """Cases for one process: explicit lines, or a run of a campaign's indices."""

    target: Target
    lines: tuple[str, ...] = ()
    seed: int = 0
    indices: range = range(0)

    def cases(self, subject: Subject) -> Iterator[Case]:
        yield from (cases.parse(line, subject) for line in self.lines)
        yield from (cases.case(subject, self.seed, index) for index in self.indices)

    def singly(self) -> list[Trial]:
        """The same work, one case a trial."""
        subject = load(self.target.subject)
        return [Trial(self.target, (case.line,)) for case in self.cases(subject)]


@dataclass(frozen=True)
class Failure:
    """One case that an oracle judged wrong."""

    line: str
    capability: str
    verdict: Verdict


@dataclass
class Result:
    """What a trial saw. ``judged`` counts verdicts by oracle."""

    cases: int = 0
    launches: int = 0
    seconds: float = 0.0
    judged: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Result) -> None:
        """Merge another trial's result into this one."""
        self.cases += other.cases
        self.launches += other.launches
        self.seconds += other.seconds
        self.judged += other.judged
        self.failures += other.failures


def run(trial: Trial) -> Result:
    """Run every case of ``trial`` in this process."""
    subject = load(trial.target.subject)
    result = Result()
    start = time.perf_counter()
    for case in trial.cases(subject):
        for _ in judged(subject, case, trial.target, result):
            pass
    result.seconds = time.perf_counter() - start
    return result


def judged(
    subject: Subject,
    case: Case,
    target: Target,
    result: Result,
    inputs: Mapping[str, Bits] | None = None,
) -> Iterator[Observation]:
    """:func:`observe` a case, let every oracle judge it, and count into ``result``."""
    result.cases += 1
    for capability, observation in observe(subject, case, target, inputs):
        result.launches += 1
        for verdict in oracles.judge(observation):
            result.judged[verdict.oracle] += 1
            if verdict.wrong:
                result.failures.append(Failure(case.line, capability, verdict))
        yield observation


def observe(
    subject: Subject, case: Case, target: Target, inputs: Mapping[str, Bits] | None = None
) -> Iterator[tuple[str, Observation]]:
    """Run one case once for each of the target's capabilities.

    Args:
        inputs: bits by name; drawn from the case's seed if not given.
    """
    inputs = draw_inputs(subject, case) if inputs is None else inputs
    packed = subject.derive(case.params, inputs)
    for capability in target.capabilities:
        core = model_for(capability)
        yield capability, _observe(subject, case, target, core, inputs, packed)


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


def _observe(
    subject: Subject,
    case: Case,
    target: Target,
    core: TensorCore,
    inputs: Mapping[str, Bits],
    packed: Mapping[str, Bits],
) -> Observation:
    with _placed(subject, case, target, core, {**inputs, **packed}) as (regions, launch):
        problems = launch()
        outputs, strays = {}, {}
        for name, (tensor, region, view) in regions.items():
            if tensor.role != "output":
                continue
            outputs[name] = view.copy()
            view[...] = POISON[tensor.dtype]
            strays[name] = int((region.view(tensor.item) != POISON[tensor.dtype]).sum())
        return Observation(subject, case, core, inputs, outputs, strays, tuple(problems))


@contextmanager
def launcher(subject: Subject, case: Case, target: Target) -> Iterator[Callable[[], list[Problem]]]:
    """The case's launch alone, to be called any number of times; each returns its problems."""
    inputs = draw_inputs(subject, case)
    values = {**inputs, **subject.derive(case.params, inputs)}
    core = model_for(target.capabilities[0])
    with _placed(subject, case, target, core, values) as (_, launch):
        yield launch


_Regions = dict[str, tuple[Tensor, npt.NDArray[np.uint8], Bits]]


@contextmanager
def _placed(
    subject: Subject,
    case: Case,
    target: Target,
    core: TensorCore,
    values: Mapping[str, Bits],
) -> Iterator[tuple[_Regions, Callable[[], list[Problem]]]]:
    """The case's tensors in guarded memory, poisoned and then filled, and the launch over them."""
    library, memory = _open(target)
    if isinstance(library, simt.HostLibrary):
        library.configure(
            schedule_seed=case.seed,
            model=core.name,
            resident_ctas=1 + case.seed % 8,
            preempt=case.seed % 3 == 0,
            poison_seed=case.seed,
        )
    cdll = library.cdll if isinstance(library, simt.HostLibrary) else library
    side = str(case.params["side"])
    try:
        buffers: dict[str, Buffer] = {}
        regions: _Regions = {}
        for tensor in subject.tensors(case.params):
            if tensor.role == "source":
                continue
            given = values.get(tensor.name)
            size = tensor.span * tensor.item.itemsize
            address, region = memory.allocate(
                tensor.name, size, tensor.align, side, given is not None
            )
            region.view(tensor.item)[:] = POISON[tensor.dtype]
            view = tensor.view(region)
            if given is not None:
                view[...] = given
            offset = tensor.offset * tensor.item.itemsize
            buffers[tensor.name] = Buffer(address + offset, view)
            regions[tensor.name] = (tensor, region, view)

        def launch(stream: int) -> str | None:
            try:
                return subject.launch(cdll, case.params, buffers, stream)
            except LanecheckError:
                raise
            except (Exception, SystemExit) as error:
                return f"{type(error).__name__}: {error}"

        yield regions, lambda: memory.run(launch)
    finally:
        memory.release()


@lru_cache(maxsize=8)
def _open(target: Target) -> tuple[simt.HostLibrary | ctypes.CDLL | None, Memory]:
    if target.library is None:
        return None, HeapMemory()
    if target.device == "host":
        library = simt.HostLibrary(target.library, recipe_of(load(target.subject)).twins)
        return library, SimtMemory(library)
    return ctypes.CDLL(str(target.library)), CudaMemory()
