"""The benchmark's figures beside those of Nsight Compute, which shares neither clock nor arithmetic with it.

ncu watches a process of its own (:mod:`lanecheck.bench.launches`) that launches the same library over
operands drawn from the same seed, on the GPU that timed the row. It reads the DRAM's counters and the GPU's
own time stamps, the clocks left as they are: first of each kernel alone, its caches flushed; then of the
timed chain, whole replays of its graph, the caches left as they are, too.

- Bytes stand against the traffic. More: something is read twice from DRAM. Fewer: the formula counts what a
  launch need not move. Outputs that are still in the L2 when their kernel ends count as if they were written.
- Time stands between the cold chain's median, which hides a kernel's start and end, and that of a launch
  alone between two events, which shows them and the events besides: on an H200 it is 2 µs above the one and
  2 µs below the other, whatever the size.
- What the chain reads from DRAM, a launch, stands against what one launch alone reads, whose caches were
  flushed: the rest is found in the L2, so it says how cold the timed chain was. The time of such a replay
  says nothing: between two the GPU idles, and its clocks change.

Figures further apart than :data:`TOLERANCE`, or a chain that is less than :data:`COLD`, void no row: the
disagreement does not say who is right. But they are no verified figures either, so the run fails.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

from lanecheck import groups
from lanecheck.bench.launches import PREFIX, Asked
from lanecheck.bench.model import BenchRecord, Row, Timing
from lanecheck.bench.plan import held_bytes
from lanecheck.bench.profiled import Profiled
from lanecheck.bench.rig import COLD_SINGLE
from lanecheck.bench.spread import Spread
from lanecheck.errors import CannotRun
from lanecheck.gpu import Gpu, unit
from lanecheck.subject import load, title
from lanecheck.toolchain import candidates

TOLERANCE = 0.02
"""Of bytes and of time: figures that are further apart disagree."""
COLD = 0.95
"""The share of a lone launch's reads that the timed chain makes from DRAM, at least. An H200's L2 holds a
tenth of the rotation: if it kept whatever it can, 0.9 would be left to read, but it leaves 0.98 and more.
Half of that tenth lies apart from both."""
SHAPES = 3
"""Rows of a run that are measured."""
LAUNCHES = 10
"""Of each, the first of which loads the kernel and does not count."""
REPLAYS = 5
"""Of each chain, which is warmed up before."""
TIME_LIMIT = 300.0
"""Seconds in which ncu must have measured a shape, one way or the other; it takes some ten."""

READ, WRITTEN, TIME = METRICS = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "gpu__time_duration.sum",
)
OPTIONS = (
    *("--profile-from-start", "off", "--clock-control", "none"),
    *("--csv", "--print-units", "base", "--metrics", ",".join(METRICS)),
)
ALONE = ("--cache-control", "all")
CHAINED = ("--cache-control", "none", "--graph-profiling", "graph")
_UNITS = {READ: {"byte"}, WRITTEN: {"byte"}, TIME: {"ns", "nsecond"}}
_FORBIDDEN = "ERR_NVGPUCTRPERM"
# Of ncu itself, not that what it watched left with an exit code.
_ERROR = re.compile(r"==ERROR== +((?!The application returned).+)")


@dataclass(frozen=True)
class Ncu:
    """The program and its version."""

    path: Path
    version: str


@dataclass(frozen=True)
class Counted:
    """What ncu counted of one launch, over all its kernels: bytes read from and written to DRAM, and
    microseconds. Of a chain's launch, the graph's share.

    Attributes:
        results: of ncu's, one a kernel; one a graph.
    """

    results: int
    read: int
    written: int
    us: float


@dataclass(frozen=True)
class Agreement:
    """A row beside what ncu measured of it: its bytes over the traffic, its time over the cold chain's, and
    what that chain reads from DRAM over what one launch alone reads."""

    row: Row
    timing: Timing
    found: Profiled

    @property
    def of_traffic(self) -> float:
        written = max(self.found.written_bytes, self.found.output_bytes or 0)
        return (self.found.read_bytes + written) / self.row.traffic.bytes

    @property
    def traffic_agrees(self) -> bool:
        return _agrees(self.of_traffic)

    @property
    def of_chain(self) -> float:
        return self.found.time_us.median / self.timing.subject.time_us.median

    @property
    def of_alone(self) -> float | None:
        """Its time over that of one launch between two events; None if there is none."""
        alone = self.timing.mode(COLD_SINGLE)
        return self.found.time_us.median / alone.time_us.median if alone else None

    @property
    def time_agrees(self) -> bool:
        """Whether ncu's time lies between the chain's and that of a launch alone, or within the tolerance."""
        chain, alone = self.of_chain, self.of_alone
        return _agrees(chain) or (alone is not None and (chain > 1 > alone or _agrees(alone)))

    @property
    def from_dram(self) -> float | None:
        """What the chain reads from DRAM over what a launch alone does; None where nobody counted."""
        chain = self.found.chain_read_bytes
        alone = self.found.read_bytes  # none at all is a doubt of its own
        return chain / alone if chain is not None and alone else None

    @property
    def is_cold(self) -> bool:
        """Whether the chain reads so much of that, or nobody counted."""
        return self.from_dram is None or self.from_dram >= COLD

    @property
    def doubts(self) -> list[str]:
        """What disagrees, in words."""
        name = title(self.row.params)
        found = []
        if not self.traffic_agrees:
            found.append(f"{name}: ncu counts {self.of_traffic:.3f} of the traffic's bytes")
        if not self.time_agrees:
            alone = "" if self.of_alone is None else f", {self.of_alone:.3f} of a launch's alone"
            found.append(f"{name}: ncu's time is {self.of_chain:.3f} of the cold chain's{alone}")
        if not self.is_cold:
            share = f"{self.from_dram:.3f} of what a launch alone reads"
            found.append(f"{name}: the timed chain is warm: {share} comes from DRAM")
        return found


def _agrees(ratio: float) -> bool:
    """Whether two figures of this ratio agree."""
    return abs(ratio - 1) <= TOLERANCE


def agreements(record: BenchRecord) -> list[Agreement]:
    """Every row of which ncu's figures are known, as they were measured."""
    rows = {str(row.params): row for row in record.rows}
    beside = [(rows[str(found.params)], found) for found in record.profiled]
    return [Agreement(row, row.timing, found) for row, found in beside if row.timing]


def find(environment: Mapping[str, str] = os.environ) -> Ncu:
    """The program, which says its version.

    Raises:
        CannotRun: if there is none that runs.
    """
    for path in candidates("ncu", environment):
        if path.is_file() and os.access(path, os.X_OK):
            return Ncu(path, _version(path))
    raise CannotRun(
        "no ncu on this machine: install Nsight Compute, which is part of the full CUDA toolkit, and put "
        "ncu on the PATH; or leave out --ncu"
    )


def chosen(rows: Sequence[Row]) -> list[Row]:
    """The :data:`SHAPES` rows that move the most bytes of those that count, each of another matrix if
    possible.

    These are the ones that ought to agree: in a small launch, start and end are more than 2 % of the time
    that it takes alone, and a chain hides them. So ncu says little of small shapes.
    """
    largest = sorted(
        (row for row in rows if row.counted),
        key=lambda row: row.traffic.bytes,
        reverse=True,
    )
    first: dict[tuple[int | str | None, ...], Row] = {}
    for row in largest:
        first.setdefault((row.params.get("n"), row.params.get("k")), row)
    others = [row for row in largest if row not in first.values()]
    return [*first.values(), *others][:SHAPES]


def profiled(
    ncu: Ncu,
    reference: str,
    library: Path,
    gpus: Sequence[Gpu],
    record: BenchRecord,
    on_row: Callable[[Row], None],
) -> BenchRecord:
    """The record, with what ncu measures of the :func:`chosen` rows.

    Args:
        reference: the subject, ``module:ATTRIBUTE``. library: what was timed. gpus: those that timed it.
        on_row: called with each row as it is done.

    Raises:
        CannotRun: if ncu does not work, may not work, or does not answer.
    """

    def counted(row: Row, chain: bool) -> list[Counted]:
        asked = Asked(
            subject=reference,
            library=library,
            params=row.params,
            seed=record.seed,
            chain=chain,
            repeats=REPLAYS if chain else LAUNCHES,
        )
        timed_on = [gpu.uuid for gpu in gpus if unit(gpu.uuid) == row.unit]
        return read(_watched(ncu, asked, (timed_on or [gpus[0].uuid])[0]), asked.repeats)

    found, subject = [], load(reference)
    for row in chosen(record.rows):
        outputs = sum(
            held_bytes(tensor) for tensor in subject.tensors(row.params) if tensor.role == "output"
        )
        alone, chain = counted(row, chain=False), counted(row, chain=True)
        found.append(summed(ncu, row, outputs, alone, chain))
        on_row(row)
    return BenchRecord.model_validate(record.model_dump() | {"profiled": tuple(found)})


def summed(
    ncu: Ncu, row: Row, outputs: int, alone: Sequence[Counted], chain: Sequence[Counted]
) -> Profiled:
    """What is recorded of a row's launches, each of which writes so many bytes of outputs: of those alone,
    the first of which does not count, and of those in each replay of the chain."""
    kept = alone[1:]
    samples = [round(each.us, 4) for each in kept]
    return Profiled(
        params=row.params,
        method=f"Nsight Compute {ncu.version}: each kernel alone, caches flushed; the chain's graph, caches "
        "kept; clocks not locked",
        kernels=alone[0].results,
        read_bytes=median_low([each.read for each in kept]),
        written_bytes=median_low([each.written for each in kept]),
        samples_us=tuple(samples),
        time_us=Spread.of(samples),
        chain_read_bytes=median_low([each.read for each in chain]),
        output_bytes=outputs,
    )


def read(output: str, repeats: int) -> list[Counted]:
    """What ncu counted a launch, in each repeat of what was asked for; from what it and the process it
    watched wrote to one stream.

    Raises:
        CannotRun: if it did not count them all; it says what to do if that is known.
    """
    lines = output.splitlines()
    launches = _launched(lines)
    results: dict[str, dict[str, float]] = {}
    table = next((at for at, line in enumerate(lines) if line.startswith('"ID",')), len(lines))
    for row in csv.DictReader(line for line in lines[table:] if line.startswith('"')):
        if row["Metric Name"] in METRICS:
            results.setdefault(row["ID"], {})[row["Metric Name"]] = _value(row)
    if not results:
        raise CannotRun(
            "ncu measured no kernel, although all were launched: put one as new as the driver on the PATH"
        )
    each, left = divmod(len(results), repeats)
    if left:
        raise CannotRun(
            f"ncu measured {len(results)} kernels in {repeats} launches, which is no whole number each"
        )
    if any(len(metrics) < len(METRICS) for metrics in results.values()):
        raise CannotRun(f"ncu left out a metric: it was asked for {', '.join(METRICS)}")
    counts = [*results.values()]
    return [
        Counted(
            results=each,
            read=int(sum(one[READ] for one in counts[at : at + each]) / launches),
            written=int(sum(one[WRITTEN] for one in counts[at : at + each]) / launches),
            us=sum(one[TIME] for one in counts[at : at + each]) / 1e3 / launches,
        )
        for at in range(0, len(counts), each)
    ]


def _value(row: Mapping[str, str]) -> float:
    """A metric in its base unit: ``"234,909,184"`` of ``byte``."""
    name, unit, text = row["Metric Name"], row["Metric Unit"], row["Metric Value"]
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        raise CannotRun(f"ncu has no {name} of this GPU: it says {text!r}") from None
    if unit not in _UNITS[name]:
        raise CannotRun(f"ncu says {name} in {unit!r}, although asked for base units: update it")
    return value


def _launched(lines: Sequence[str]) -> int:
    """Launches in each repeat, as the process that ncu watched says.

    Raises:
        CannotRun: if ncu, or that process, failed.
    """
    if any(_FORBIDDEN in line for line in lines):
        raise CannotRun(
            f"ncu may not read the GPU's counters ({_FORBIDDEN}): run as root, or have the nvidia driver "
            "loaded with NVreg_RestrictProfilingToAdminUsers=0"
        )
    errors = [found[1] for line in lines if (found := _ERROR.match(line))]
    if errors:
        raise CannotRun(f"ncu does not work on this machine: {errors[0]}")
    ours = [line.removeprefix(PREFIX).strip() for line in lines if line.startswith(PREFIX)]
    for line in ours:
        if line.startswith("done "):
            return int(line.removeprefix("done "))
    said = [line for line in lines if line.strip() and not line.startswith(("==", '"'))]
    last = ours[-1:] or said[-1:] or ["it says nothing"]
    raise CannotRun(f"what ncu watched did not launch: {last[0].removeprefix('failed ')}")


def _watched(ncu: Ncu, asked: Asked, gpu: str) -> str:
    """What ncu writes while it watches the launches on one GPU, and what they write."""
    process = subprocess.Popen(
        [
            *(str(ncu.path), *OPTIONS, *(CHAINED if asked.chain else ALONE)),
            *(sys.executable, "-m", "lanecheck.bench.launches", asked.model_dump_json()),
        ],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu, "LC_ALL": "C"},  # numbers as in English
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that the watched process ends together with ncu
    )
    try:
        output, _ = process.communicate(timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        raise CannotRun(f"ncu did not end within {TIME_LIMIT:g} s") from None
    finally:
        groups.end(process)
    return output.decode(errors="replace")


def _version(program: Path) -> str:
    try:
        done = subprocess.run(
            [str(program), "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(f"{program} does not run ({error}): put another ncu on the PATH") from None
    found = re.search(r"^Version (\S+)", done.stdout, re.MULTILINE)
    if not found:
        raise CannotRun(f"{program} --version names no version: put another ncu on the PATH")
    return found[1]
