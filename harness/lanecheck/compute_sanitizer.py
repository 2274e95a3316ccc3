"""NVIDIA's compute-sanitizer over many cases: a process for each of its tools, and a verdict from its report.

The tools see what the harness around a launch cannot. memcheck: an access outside every tensor, or outside
shared memory. initcheck: a read of global memory that nobody wrote. racecheck: two accesses to shared memory
that no barrier orders. synccheck: a barrier or a warp-wide operation with the wrong threads. None of them
looks at a result, or for races in global memory. :mod:`lanecheck.sanitized` is the process that they watch.

On an H200, synccheck of CUDA 13.0 is silent about a ``__syncthreads`` in a branch that part of a warp takes,
and about threads that return before one. The former hangs, which :data:`TIME_LIMIT` turns into a finding.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

from lanecheck import groups
from lanecheck.errors import CannotRun
from lanecheck.sanitized import PREFIX
from lanecheck.subject import load, recipe_of
from lanecheck.toolchain import candidates
from lanecheck.trial import Target

#: The tools, and the options each is given.
TOOLS: Mapping[str, tuple[str, ...]] = {
    # Allocations lie close together: without padding a miss by a row lands in the next tensor.
    "memcheck": ("--padding", "65536"),
    "racecheck": (),
    "initcheck": (),
    "synccheck": (),
}
TIME_LIMIT = 300.0  # seconds in which every tool must have ended

_SUMMARY = re.compile(
    r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)\b", re.MULTILINE
)
# The frame of a report, and what it says of the process rather than of the kernel.
_FRAME = re.compile(
    r"=+ (COMPUTE-SANITIZER|\w+ SUMMARY|(Error: )?(Target application|process|couldn't))|=+ {2,}|=+ *$"
)
_UNSUPPORTED = re.compile(r"=+ .*?((?:Device not supported|Internal Sanitizer Error).*)")
_PLACE = re.compile(r" in (?:\S*/)?([^\s/]+:\d+)")
_GLOBAL = re.compile(r"(?:__global__.*|host access.*?)\b(?:to|Address) (0x[0-9a-f]+)")


@dataclass(frozen=True)
class Finding:
    """What a tool found first.

    Attributes:
        case: the case that was running, by its number. evidence: what the tool says, in one sentence.
    """

    case: int
    evidence: str


@dataclass(frozen=True)
class Reading:
    """A tool's report, read.

    Attributes:
        done: whether every case was launched. errors: how many the tool counts, None without a count.
        finding: the first of them, or why the launches came to an end.
    """

    done: bool
    errors: int | None
    finding: Finding | None


@dataclass(frozen=True)
class Checked:
    """What one tool says of a list of cases.

    Attributes:
        cases: how many there are. errors: how many it counts.
        line, evidence: of the first finding; empty without one.
    """

    tool: str
    cases: int
    errors: int
    line: str = ""
    evidence: str = ""


def find(environment: Mapping[str, str] = os.environ) -> Path:
    """The program.

    Raises:
        CannotRun: if there is none.
    """
    for path in candidates("compute-sanitizer", environment):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise CannotRun(
        "no compute-sanitizer on this machine: it is part of the CUDA toolkit, and a package of its own: "
        "pip install nvidia-cuda-sanitizer-api"
    )


def check(
    program: Path, tools: Sequence[str], target: Target, lines: Sequence[str]
) -> list[Checked]:
    """What each of the tools says of the cases, all of which run in one process for each.

    A tool that finds something is then given the case in which it did, alone, so that the evidence is of
    one case, and the line that goes with it shows it again.

    Raises:
        CannotRun: if a tool does not work on this machine.
    """
    found = _run(program, target, {tool: lines for tool in tools})
    cases = {
        tool: lines[reading.finding.case] for tool, reading in found.items() if reading.finding
    }
    again = _run(program, target, {tool: [line] for tool, line in cases.items()})
    return [_checked(tool, len(lines), found[tool], cases.get(tool), again) for tool in tools]


def read(output: str, sources: Collection[str] = ()) -> Reading:
    """What a tool, and the process it watched, wrote to one stream.

    Args:
        sources: names of the subject's files, of which one is named rather than a header of CUDA's.
    """
    case, tensors, done, finding = 0, "", False, None
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if line.startswith(PREFIX):
            word, _, rest = line.removeprefix(PREFIX).strip().partition(" ")
            if word == "case":
                index, _, tensors = rest.partition(" ")
                case = int(index)
            elif word == "failed" and finding is None:
                finding = Finding(case, rest)
            done |= word == "done"
        elif finding is None and line.startswith("==") and not _FRAME.match(line):
            report = takewhile(lambda text: re.match(r"=+ {2,}\S", text), lines[number + 1 :])
            finding = Finding(case, _evidence([line, *report], tensors, sources))
    counts = [int(count) for count in _SUMMARY.findall(output)]
    return Reading(done, counts[0] if counts else None, finding)


def _evidence(report: Sequence[str], tensors: str, sources: Collection[str]) -> str:
    """A report's first line, without addresses; where in the source, and which byte of which tensor."""
    first, *details = (re.sub("^=+ +", "", line).rstrip(".") for line in report)
    whole = " ".join([first, *details])
    if first.startswith("Host API") and details:
        first = details[0]  # what is wrong with the copy
    text = re.sub(r" at .*| to 0x\w+", "", first)
    places = dict.fromkeys(_PLACE.findall(whole))
    own = [place for place in places if place.partition(":")[0] in sources] or list(places)
    if own:
        text += " at " + " and ".join(own[: 2 if "Race" in first else 1])
    if found := _GLOBAL.search(whole):
        text += _byte(int(found[1], 16), tensors)
    return text


def _byte(address: int, tensors: str) -> str:
    """`` (byte y0+80, size 80)``: an address by the tensor that lies nearest."""
    known = [
        (name, address - int(base, 16), int(size))
        for name, base, size in re.findall(r"(\S+)=(0x[0-9a-f]+)\+(\d+)", tensors)
    ]
    if not known:
        return ""
    name, offset, size = min(known, key=lambda it: max(-it[1], it[1] - it[2] + 1, 0))
    return f" (byte {name}{offset:+d}, size {size})"


def _checked(
    tool: str, cases: int, reading: Reading, line: str | None, again: Mapping[str, Reading]
) -> Checked:
    if not reading.finding or line is None:
        return Checked(tool, cases, reading.errors or 0)
    alone = again[tool].finding
    evidence = alone.evidence if alone else f"{reading.finding.evidence}; not by this case alone"
    return Checked(tool, cases, reading.errors or 1, line, evidence)


def _run(program: Path, target: Target, work: Mapping[str, Sequence[str]]) -> dict[str, Reading]:
    """Each tool over the lines it is given, side by side."""
    root, gpu = recipe_of(load(target.subject)).root, next(iter(target.gpus), "0")
    sources = {path.name for path in root.rglob("*")}
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu, "PYTHONUNBUFFERED": "1"}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="lanecheck-")))
        running = {}
        for tool, lines in work.items():
            (folder / tool).write_text("\n".join(lines))
            watched = (target.subject, str(target.library), str(folder / tool))
            command = [
                *(str(program), "--tool", tool, "--show-backtrace", "device", *TOOLS[tool]),
                *(sys.executable, "-m", "lanecheck.sanitized", *watched),
            ]
            output = stack.enter_context((folder / f"{tool}.log").open("w+", errors="replace"))
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that the watched process ends together with the tool
            )
            stack.callback(groups.end, process)
            running[tool] = process, output
        end = time.monotonic() + TIME_LIMIT
        readings = {}
        for tool, (process, output) in running.items():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
            output.seek(0)
            ended = process.returncode is not None
            readings[tool] = _verdict(tool, output.read(), ended, sources)
        return readings


def _verdict(tool: str, output: str, ended: bool, sources: Collection[str]) -> Reading:
    """What the tool found; raises CannotRun if it cannot tell."""
    if found := _UNSUPPORTED.search(output):
        raise CannotRun(f"compute-sanitizer does not work on this machine: {found[1]}")
    reading = read(output, sources)
    if reading.finding or (reading.done and reading.errors == 0):
        return reading
    if not ended:
        last = max(0, output.count(f"{PREFIX} case") - 1)
        return Reading(False, None, Finding(last, f"no end within {TIME_LIMIT:g} s"))
    said = [line for line in output.splitlines() if line.strip() and not line.startswith("=")]
    raise CannotRun(f"{tool} came to no verdict: {said[-1] if said else 'it says nothing'}")
