"""What one fresh process of a comparison does with one arm: build it, show it correct, or time it.

:func:`respond` is given the task by :mod:`.parent`: in a child of it, or alone. The answer goes to standard
output, and whatever else would be printed there to standard error. The kernel is the arm's, the harness that
of the process which asks: so both arms meet the same benchmark.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from lanecheck.bench import correctness, telemetry
from lanecheck.bench.correctness import Expected
from lanecheck.bench.cuda_rig import CudaRig
from lanecheck.bench.device import described
from lanecheck.bench.doubts import OF_TIMES, Facts, doubts
from lanecheck.bench.host_rig import HostRig
from lanecheck.bench.inquiry import inquire
from lanecheck.bench.judgement import doubt
from lanecheck.bench.machine import Absent, Environment, Reading, Telemetry
from lanecheck.bench.paired import machine_code
from lanecheck.bench.paired.pairing import named
from lanecheck.bench.paired.record import Code, Values
from lanecheck.bench.paired.tasks import TASK, Answer, Build, Offer, Show, Shown, Task, Time, Timed
from lanecheck.bench.plan import BenchSubject, Copies, Workload, benchable, lay_out
from lanecheck.bench.rig import Array, Rig
from lanecheck.bench.timing import GRAPH_LAUNCHES, interleave, sampled
from lanecheck.build import build_device, build_host, digests
from lanecheck.errors import BadInput, CannotRun, LanecheckError
from lanecheck.subject import Params, Subject, file_of, load, origin, sources
from lanecheck.toolchain import Toolchain
from lanecheck.trial import Target
from lanecheck.verdict import Outcome

_LEAST = ""  # beside the names of configs


def respond(task: str) -> None:
    """Do the task, which is JSON; a mistake of the user's is one line and an exit code."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the kernel or a compiler prints
    try:
        answer = done(TASK.validate_json(task))
    except LanecheckError as error:
        sys.exit(_say(error))
    answers.write(answer.model_dump_json())
    answers.close()


def done(task: Task) -> Answer:
    """The answer to a task, worked out in this process."""
    if isinstance(task, Build):
        return built(task)
    return shown(task) if isinstance(task, Show) else timed(task)


def built(task: Build) -> Offer:
    """Raises BuildFailed, or BadInput if the subject is not the arm's."""
    subject = _own(task)
    files = sources(task.subject, subject)
    if file := file_of(task.subject):  # what a launch imports is not loaded yet
        beside = file.parent.rglob("*.py")
        files |= digests(file.parent, sorted(each.relative_to(file.parent) for each in beside))
    gate, bench = (
        None if asked is None else named(asked)
        for asked in (
            _asked(subject, "gate_params", task.device),
            _asked(subject, "bench_params"),
        )
    )
    offer = partial(Offer, gate=gate, bench=bench, environment=_environment(task))
    if subject.recipe is None:
        code = Code(gpu=None, library=None, files=files)
        return offer(library=None, code=code)
    tools, gpu = Toolchain(), None
    if task.arch:
        library = build_device(subject.recipe, task.arch, tools)
        gpu = machine_code.gpu_digest(library.path, tools)
    else:
        library = build_host(subject.recipe, "plain", tools)
    code = Code(
        gpu=gpu,
        library=machine_code.digest(library.path),
        files=files,
    )
    return offer(library=str(library.path), code=code)


def shown(task: Show) -> Shown:
    """Judge the config, then launch it over the operands that will be timed."""
    subject = _own(task)
    rig = _rig(task)
    workload = Workload(subject, task.params, task.seed)
    library = Path(task.library) if task.library else None
    target = Target(task.subject, task.device, (task.capability,), library, task.arch)
    judgements, expected = correctness.shown(workload, target, rig)
    if expected is None:
        wrong = any(each.outcome is not Outcome.PASS for each in judgements)
        return Shown(doubt=doubt(judgements), output=None, wrong=wrong)
    if task.device == "cuda":  # on a host the gate is only exercised
        found = doubts(_facts(workload, expected, rig))
        if said := "; ".join(str(each) for each in found if each.fault not in OF_TIMES):
            return Shown(doubt=said, output=None)
    return Shown(doubt=None, output=_digest(expected.outputs))


def _facts(workload: Workload, expected: Expected, rig: Rig) -> Facts:
    """Of launches as they will be timed."""
    copies = lay_out(workload, rig, expected.inputs, rig.copies(workload.bytes))
    persisting = rig.persisting_bytes()
    return inquire(workload, copies, rig.chain(copies.launches), expected, rig, persisting)


def timed(task: Time) -> Timed:
    """Every config's operands are laid out before the first is timed, and its outputs poisoned: so that what
    is in them afterwards was computed by the launches that were timed."""
    subject = _own(task)
    rig = _rig(task)
    laid_out = {name: _laid_out(subject, each, rig, task) for name, each in task.configs.items()}
    samples = {name: sampled(rig.chain(each.launches)) for name, (_, each) in laid_out.items()}
    for workload, each in laid_out.values():
        each.poison(workload, rig)
    rig.settle()
    if least := rig.least():
        samples[_LEAST] = sampled(rig.chain([least] * GRAPH_LAUNCHES))
    before, order = _reading(task), random.Random(task.order)
    with _watch(task) as held_back:
        taken = interleave(samples, task.rounds, order, held_back)
    after = _reading(task)
    rig.settle()
    medians = {name: median(times) for name, times in taken.times.items() if times}
    return Timed(
        held_back=taken.reasons,
        least_us=medians.pop(_LEAST, None),
        medians_us=medians,
        outputs={
            name: _digest_of_copies(each.outputs(workload))
            for name, (workload, each) in laid_out.items()
        },
        telemetry=Telemetry(before=before, after=after) if before and after else None,
    )


def _own(task: Task) -> BenchSubject:
    """The subject: the arm's, and no other that is installed."""
    subject, folder = load(task.subject), Path(task.folder).resolve()
    file = origin(task.subject)
    if file is None or not file.is_relative_to(folder):
        raise BadInput(f"{task.subject} was imported from {file}, not from the arm's {folder}")
    return benchable(subject, "traffic")


def _asked(subject: Subject, method: str, *given: str) -> Sequence[Params] | None:
    """What an optional method returns."""
    found: Callable[..., Sequence[Params]] | None = getattr(subject, method, None)
    return None if found is None else found(*given)


def _rig(task: Show | Time) -> Rig:
    library = Path(task.library) if task.library else None
    if task.device == "host":
        return HostRig(library, task.capability)
    if library is None:
        raise BadInput("a subject that is a callable is compared with --device host")
    found, _ = described()
    return CudaRig(library, found.l2_bytes)


def _environment(task: Build) -> Environment | None:
    """None also where torch sees no GPU: nothing is timed there, as each process that should will say."""
    try:
        return None if task.device == "host" else described()[0]
    except CannotRun:
        return None


def _watch(task: Time) -> AbstractContextManager[Callable[[], Sequence[str]]]:
    return nullcontext(tuple) if task.device == "host" else telemetry.watch(described()[1])


def _reading(task: Time) -> Reading | Absent | None:
    return None if task.device == "host" else telemetry.read(described()[1])


def _laid_out(
    subject: BenchSubject, params: Values, rig: Rig, task: Time
) -> tuple[Workload, Copies]:
    workload = Workload(subject, params, task.seed)
    copies = rig.copies(workload.bytes)
    return workload, lay_out(workload, rig, workload.drawn(rig), copies)


def _digest_of_copies(outputs: Mapping[str, Array]) -> str:
    """Of the first copy's outputs; of none if the copies' differ."""
    if not all(bool((bits == bits[0]).all()) for bits in outputs.values()):
        return ""
    return _digest({name: bits[0] for name, bits in outputs.items()})


def _digest(outputs: Mapping[str, Array]) -> str:
    """SHA-256 of one launch's outputs."""
    total = hashlib.sha256()
    for name in sorted(outputs):
        bits = outputs[name]
        host = bits if isinstance(bits, np.ndarray) else bits.cpu().numpy()
        total.update(np.ascontiguousarray(host).tobytes())
    return total.hexdigest()


def _say(error: LanecheckError) -> int:
    print(" ".join(str(error).split()), file=sys.stderr)
    return error.exit_code
