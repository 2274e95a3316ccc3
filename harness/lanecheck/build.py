"""Subject × arch or host variant → a shared library, cached by the content of everything that went into it.

The subject owns the recipe: which flags, which sources. Here is the rest: which compiler, an overlay of
changed files (how faults get into the source), the cache, and building many at a time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, TypeVar

from lanecheck.errors import BadInput, CannotRun, LanecheckError
from lanecheck.groups import Groups
from lanecheck.matrix import Arch
from lanecheck.toolchain import Toolchain, cache_root

FORMAT = 1  # of the cache; a new number forgets everything
TIMEOUT = 900.0  # seconds; a mutant may keep a compiler busy for ever
NO_OVERLAY: Mapping[str, str] = MappingProxyType({})
LEFTOVERS = shutil.ignore_patterns(
    ".git", ".nox", ".venv", ".lanecheck", "__pycache__", ".*_cache", "*.egg-info"
)
"""What tools leave in a folder, and no kernel needs."""

Commands = list[list[str]]
T = TypeVar("T")


class Recipe(Protocol):
    """How a subject's library is compiled. A module with these names will do."""

    @property
    def root(self) -> Path:
        """The folder with the CUDA sources; everything below it is hashed."""

    @property
    def twins(self) -> Sequence[Path]:
        """Folders of host twins: reports name their callers instead."""

    def device(self, nvcc: Path, gencode: Sequence[str], source: Path, out: Path) -> list[str]:
        """The command that compiles ``source`` to a shared library ``out``.

        ``source`` is ``root`` or a changed copy of it; each ``gencode`` is a value of nvcc's option.
        Pass ``-Xptxas=-v``, so that the inspection knows of spills.
        """

    def host(
        self,
        cxx: Path,
        flags: Sequence[str],
        include: Sequence[Path],
        source: Path,
        out: Path,
    ) -> list[str]:
        """The command that compiles ``source`` for the CPU to an object file ``out``."""


@dataclass(frozen=True)
class Built:
    """A library, and how it came about."""

    path: Path
    key: str
    seconds: float  # that the compilers took, now or when it was put in the cache
    cached: bool
    log: str
    commands: tuple[tuple[str, ...], ...]  # with {source}, {out}, {nvcc} … in place of paths


class BuildFailed(LanecheckError):
    """The compiler refused; the message has its first error, ``log`` all it said."""

    def __init__(self, label: str, log: str) -> None:
        super().__init__(f"{label} does not compile: {first_error(log)}")
        self.label = label
        self.log = log


def unfit(cxx: Path, part: str, log: str) -> CannotRun:
    """A part of Lanecheck itself does not compile: that says nothing of a kernel."""
    return CannotRun(
        f"{cxx} does not compile Lanecheck's own {part} ({first_error(log)}): "
        "set CXX to another g++ or clang++"
    )


def build_device(
    recipe: Recipe,
    arch: Arch,
    toolchain: Toolchain,
    overlay: Mapping[str, str] = NO_OVERLAY,
) -> Built:
    """The library of one arch. ``overlay`` maps names of files below ``recipe.root`` to new text."""
    nvcc = toolchain.nvcc
    return _build(
        _Plan(
            label=arch.name,
            root=recipe.root.resolve(),
            overlay=overlay,
            commands=lambda source, out: [recipe.device(nvcc, arch.gencode, source, out)],
            places={"nvcc": nvcc},
            ingredients=(f"nvcc {toolchain.nvcc_version}", toolchain.cxx_version),
        ),
        toolchain.compile_environment,
    )


def build_host(
    recipe: Recipe,
    variant: str,
    toolchain: Toolchain,
    overlay: Mapping[str, str] = NO_OVERLAY,
) -> Built:
    """The library that runs the same sources on the CPU, in one of ``lanecheck.simt.VARIANTS``."""
    from lanecheck import simt

    if variant not in simt.VARIANTS:
        raise BadInput(f"unknown host variant {variant!r}; known: {', '.join(simt.VARIANTS)}")
    cxx, home = toolchain.cxx, Path(simt.__file__).parent
    flags = simt.VARIANTS[variant].adapted(str(cxx))
    environment = {**toolchain.environment, "LC_ALL": "C"}
    ingredients = (toolchain.cxx_version, json.dumps(tree(home)))

    of_runtime = _Plan(
        label=f"runtime-{variant}",
        root=home,
        commands=lambda source, out: [
            [
                *(str(cxx), *flags.runtime_flags, "-fPIC", f"-I{simt.INCLUDE}"),
                *("-c", str(simt.RUNTIME), "-o", str(out)),
            ]
        ],
        places={"cxx": cxx, "simt": home},
        ingredients=ingredients,
        suffix=".o",
    )
    try:
        runtime = _build(of_runtime, environment)
    except BuildFailed as failure:
        raise unfit(cxx, "runtime", failure.log) from failure

    root = recipe.root.resolve()

    def commands(source: Path, out: Path) -> Commands:
        kernel = out.with_suffix(".o")
        # A copy that is gone tomorrow is no place to point a reader of a report to.
        mapped = [*flags.compile_flags, f"-ffile-prefix-map={source}={root}"]
        link = [str(cxx), "-shared", str(kernel), str(runtime.path), *flags.link_flags]
        return [
            recipe.host(cxx, mapped, [simt.INCLUDE], source, kernel),
            [*link, "-o", str(out)],
        ]

    return _build(
        _Plan(
            label=f"host-{variant}",
            root=root,
            overlay=overlay,
            commands=commands,
            places={"cxx": cxx, "simt": home, "runtime": runtime.path},
            ingredients=(*ingredients, runtime.key),
        ),
        environment,
    )


def build_all(jobs: Iterable[Callable[[], T]], workers: int | None = None) -> list[T | BuildFailed]:
    """Run builds side by side. A failed one is a result like the others, so it does not hide them."""

    def attempt(job: Callable[[], T]) -> T | BuildFailed:
        try:
            return job()
        except BuildFailed as failure:
            return failure

    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        futures = [pool.submit(attempt, job) for job in jobs]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            _COMPILERS.stop()
            raise


# Keys -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """Everything that decides what a library will be."""

    label: str
    root: Path
    commands: Callable[[Path, Path], Commands]  # of source and out
    places: Mapping[str, Path]  # paths that differ between machines and mean the same
    ingredients: Sequence[str]  # what else goes in, by version or content
    overlay: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ".so"

    def portable(self, source: Path, out: Path) -> tuple[tuple[str, ...], ...]:
        """The commands without the paths of this machine."""
        places = {"source": source, "root": self.root, "out": out.with_suffix(""), **self.places}
        by_length = sorted(places.items(), key=lambda place: -len(str(place[1])))

        def stripped(word: str) -> str:
            for name, path in by_length:
                word = word.replace(str(path), f"{{{name}}}")
            return word

        return tuple(tuple(map(stripped, command)) for command in self.commands(source, out))

    def key(self) -> str:
        sources = tree(self.root)
        for name, text in self.overlay.items():
            if name not in sources:
                raise BadInput(f"overlay names {name}, which is not a file below {self.root}")
            sources[name] = _digest(text.encode())
        commands = self.portable(self.root, Path("/nowhere/out"))
        facts = [FORMAT, self.label, sources, commands, list(self.ingredients)]
        return _digest(json.dumps(facts, sort_keys=True).encode())


def tree(root: Path) -> dict[str, str]:
    """The digest of every file below a folder, by its name relative to it, without what tools leave there."""
    names = (path.relative_to(root) for path in sorted(root.rglob("*")) if path.is_file())
    return digests(root, (name for name in names if not LEFTOVERS(str(root), [*name.parts])))


def digests(folder: Path, names: Iterable[Path]) -> dict[str, str]:
    """The digest of each of these files, which lie in a folder, by its name relative to it."""
    return {name.as_posix(): _digest((folder / name).read_bytes()) for name in names}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# Cache ----------------------------------------------------------------------------------------


def _build(plan: _Plan, environment: Mapping[str, str]) -> Built:
    """The library of a plan, from the cache or the compiler.

    Each file of an entry appears in one rename, ``facts.json`` last, and nothing is ever taken away: a reader
    never sees half of an entry, and two processes that build the same key replace like by like.
    """
    key = plan.key()
    entry = cache_root(environment) / "build" / key
    if (found := _read(entry, plan, key, cached=True)) is not None:
        return found
    with workplace(entry.parent, key[:16]) as work:
        files = _compile(plan, work, environment)
        entry.mkdir(exist_ok=True)
        for file in files:
            file.replace(entry / file.name)
    built = _read(entry, plan, key, cached=False)
    if built is None:
        raise CannotRun(f"{entry} was removed while it was written: run again")
    return built


@contextmanager
def workplace(folder: Path, name: str) -> Iterator[Path]:
    """A new folder inside one of the cache, gone afterwards: a file that is moved from there to its place
    appears in one rename.

    Raises:
        CannotRun: if the cache cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=folder, prefix=f"{name}.", suffix=".part"))
    except OSError as error:
        raise CannotRun(
            f"cannot write to {folder} ({error.strerror}): set LANECHECK_CACHE to another folder"
        ) from None
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _read(entry: Path, plan: _Plan, key: str, cached: bool) -> Built | None:
    path = entry / f"{plan.label}{plan.suffix}"
    try:
        facts = json.loads((entry / "facts.json").read_text("utf-8"))
        log = (entry / "log.txt").read_text("utf-8")
    except (OSError, ValueError):
        return None
    if not path.is_file():
        return None
    commands = tuple(tuple(command) for command in facts["commands"])
    return Built(path, key, facts["seconds"], cached, log, commands)


def _compile(plan: _Plan, work: Path, environment: Mapping[str, str]) -> list[Path]:
    """Make the files of an entry, in the order in which they may appear."""
    source = plan.root
    if plan.overlay:
        source = work / "source"
        shutil.copytree(plan.root, source, ignore=LEFTOVERS)
        for name, text in plan.overlay.items():
            (source / name).write_text(text, encoding="utf-8")
    out = work / f"{plan.label}{plan.suffix}"
    log, seconds = "", 0.0
    for command in plan.commands(source, out):
        status, said, took = run(command, work, environment)
        log += said.replace(f"{source}/", "").replace(f"{work}/", "")
        seconds += took
        if status:
            raise BuildFailed(plan.label, log)
    if not out.is_file():
        raise BuildFailed(plan.label, f"{log}\nerror: the command did not write {out.name}")
    log_file, facts_file = work / "log.txt", work / "facts.json"
    log_file.write_text(log, encoding="utf-8")
    facts = {"seconds": round(seconds, 3), "commands": plan.portable(source, out)}
    facts_file.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return [out, log_file, facts_file]


# Running --------------------------------------------------------------------------------------

_COMPILERS = Groups()


def run(
    command: Sequence[str], cwd: Path, environment: Mapping[str, str], timeout: float = TIMEOUT
) -> tuple[int, str, float]:
    """Exit status, output and seconds of a command. On a time-out its children die with it."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise CannotRun(f"{command[0]} does not run ({error.strerror})") from None
        late = ""
        with _COMPILERS.watched(process):
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                late = f"\nerror: stopped after {timeout:.0f} s\n"
        output.seek(0)
        said = output.read().decode("utf-8", "replace") + late
    return process.returncode, said, time.monotonic() - start


_ERROR = re.compile(r"\berror\b|\bfatal\b|undefined reference|cannot find", re.IGNORECASE)


def first_error(log: str) -> str:
    """The line of a compiler's output that says what is wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    found = next((line for line in lines if _ERROR.search(line)), None)
    return (found or (lines or ["the compiler says nothing"])[-1])[:300]
