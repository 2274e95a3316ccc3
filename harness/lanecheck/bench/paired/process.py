"""What one fresh process of a comparison does with one arm: build it, show it correct, or time it.

``python -m lanecheck.bench.paired.process`` reads a task as JSON from standard input and writes the answer to
standard output; whatever else would be printed there goes to standard error. The kernel is the arm's,
the harness that of the process which asks: so both arms meet the same benchmark.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from lanecheck.bench import correctness
from lanecheck.bench.host import Host
from lanecheck.bench.model import Telemetry, doubt
from lanecheck.bench.paired import machine_code
from lanecheck.bench.paired.pairing import named
from lanecheck.bench.paired.record import Code, Values
from lanecheck.bench.paired.tasks import TASK, Answer, Build, Offer, Show, Shown, Task, Time, Timed
from lanecheck.bench.placing import Device, Placed, operands, place
from lanecheck.bench.plan import BenchSubject, Workload
from lanecheck.bench.silicon import Silicon
from lanecheck.bench.timing import interleave
from lanecheck.build import build_device, build_host, tree
from lanecheck.errors import BadInput, LanecheckError
from lanecheck.inspect import inspect
from lanecheck.subject import Params, Subject, load
from lanecheck.toolchain import Toolchain
from lanecheck.trial import Target


def main() -> None:
    """Do the task; a mistake of the user's is one line and an exit code."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the kernel or a compiler prints
    try:
        answer = done(TASK.validate_json(sys.stdin.read()))
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
    subject, package = _own(task)
    offer = {
        kind: None if method is None else named(method)
        for kind, method in {
            "gate": _asked(subject, "gate_params", task.device),
            "bench": _asked(subject, "bench_params"),
        }.items()
    }
    if subject.recipe is None:
        code = Code(gpu=None, library=None, files=_files(package, None))
        return Offer(library=None, code=code, **offer)
    tools, gpu = Toolchain(), None
    if task.arch:
        library = build_device(subject.recipe, task.arch, tools)
        gpu = inspect(library, task.arch, tools, subject.instructions).sass_sha256
    else:
        library = build_host(subject.recipe, "plain", tools)
    code = Code(
        gpu=gpu,
        library=machine_code.digest(library.path),
        files=_files(package, subject.recipe.root),
    )
    return Offer(library=str(library.path), code=code, **offer)


def shown(task: Show) -> Shown:
    """Judge the config, then launch it over the operands that will be timed."""
    subject, _ = _own(task)
    device = _device(task)
    library = Path(task.library) if task.library else None
    target = Target(task.subject, task.device, (task.capability,), library, task.arch)
    if reason := doubt(correctness.judge(subject, task.params, target, task.seed)):
        return Shown(doubt=reason, output=None)
    placed, _ = _placed(subject, task.params, device, task)
    placed.launches[0](0)
    device.check()
    return Shown(doubt=None, output=placed.digest())


def timed(task: Time) -> Timed:
    """Every config's operands are laid out before the first is timed."""
    subject, _ = _own(task)
    device, all_placed, drawing = _device(task), {}, 0.0
    for name, params in task.configs.items():
        all_placed[name], seconds = _placed(subject, params, device, task)
        drawing += seconds
    samples = {name: device.clock.prepare(each.launches) for name, each in all_placed.items()}
    before = device.reading() if isinstance(device, Silicon) else None
    taken = interleave(samples, task.rounds, random.Random(task.order))
    after = device.reading() if isinstance(device, Silicon) else None
    device.check()
    return Timed(
        medians_us={name: median(times) for name, times in taken.items()},
        outputs={name: each.digest() for name, each in all_placed.items()},
        telemetry=Telemetry(before=before, after=after) if before and after else None,
        drawing_s=drawing,
    )


def _own(task: Task) -> tuple[BenchSubject, Path]:
    """The subject, and the folder or file of its package: the arm's, and no other that is installed."""
    subject, folder = load(task.subject), Path(task.folder).resolve()
    top = task.subject.partition(":")[0].partition(".")[0]
    file = Path(str(sys.modules[top].__file__)).resolve()
    if not file.is_relative_to(folder):
        raise BadInput(f"{top} was imported from {file}, not from the arm's {folder}")
    if not hasattr(subject, "traffic"):
        raise BadInput(
            f"subject '{subject.name}' has no traffic(): see lanecheck.bench.plan.BenchSubject"
        )
    found: BenchSubject = subject  # type: ignore[assignment]
    return found, file.parent if file.name == "__init__.py" else file


def _files(package: Path, sources: Path | None) -> dict[str, str]:
    """Digests of the package's files, without those that the library is compiled from."""
    if package.is_file():
        return {package.name: hashlib.sha256(package.read_bytes()).hexdigest()}
    compiled = sources.resolve() if sources else None
    return {
        name: digest
        for name, digest in tree(package).items()
        if compiled is None or not (package / name).is_relative_to(compiled)
    }


def _asked(subject: Subject, method: str, *given: str) -> Sequence[Params] | None:
    """What an optional method returns."""
    found: Callable[..., Sequence[Params]] | None = getattr(subject, method, None)
    return None if found is None else found(*given)


def _device(task: Show | Time) -> Device:
    library = Path(task.library) if task.library else None
    if task.device == "host":
        return Host(library, task.capability)
    if library is None:
        raise BadInput("a subject that is a callable is compared with --device host")
    return Silicon(library)


def _placed(
    subject: BenchSubject, params: Values, device: Device, task: Show | Time
) -> tuple[Placed, float]:
    """On the device; and the seconds that drawing took."""
    workload, start = Workload.of(subject, params, task.seed), time.monotonic()
    values = operands(workload, Path(task.operands))
    drawing = time.monotonic() - start
    return place(workload, values, device), drawing


def _say(error: LanecheckError) -> int:
    print(" ".join(str(error).split()), file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    main()
