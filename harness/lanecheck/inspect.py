"""Facts read from the binary: what was asked for is in it, nothing else is, and nothing spills.

A kernel can be right and still not be the one that was meant: built for an arch that was not asked for,
spilling registers in one instantiation, or without the instruction it is all about. None of that shows in
its results, so it is read from the machine code.

PTX has no machine code. It is assembled for the newest capability that its arch lists, as the driver would
do it, and what comes out is held to the same rules.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from lanecheck.build import BuildFailed, Built, run
from lanecheck.errors import BadInput, CannotRun
from lanecheck.matrix import Arch
from lanecheck.toolchain import Toolchain

_THIS = Path(__file__)


class _Fact(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Function(_Fact):
    """One kernel in the machine code of one arch. Sizes are bytes; None is unknown."""

    name: str
    code: str  # sm_90a
    registers: int
    stack: int
    shared: int  # static
    spill_stores: int | None
    spill_loads: int | None
    instructions: dict[str, int]  # required pattern → how often
    sass_sha256: str

    @property
    def spilled(self) -> int:
        return (self.spill_stores or 0) + (self.spill_loads or 0)


class Inspection(_Fact):
    arch: str
    machine_codes: tuple[str, ...]  # sm_90a
    ptx_codes: tuple[str, ...]  # compute_80
    assembled_for: str | None  # PTX only: what ptxas made machine code for
    functions: tuple[Function, ...]
    sass_sha256: str
    problems: tuple[str, ...]


def inspect(
    built: Built,
    arch: Arch,
    toolchain: Toolchain,
    required: Sequence[str] = (),
) -> Inspection:
    """Read a library. ``problems`` of the result is empty if it is what ``arch`` asks for.

    Each of ``required`` is a regular expression that some instruction of every kernel must match. The answer
    is kept beside the library: sixty kernels take three seconds to disassemble, and ten more where PTX has to
    be assembled first.
    """
    _check_patterns(required)
    tool = str(toolchain.cuobjdump)
    question = (built.key, arch.model_dump_json(), *required, tool, _THIS.read_text("utf-8"))
    answer = built.path.parent / f"inspection-{_digest(question)[:16]}.json"
    try:
        return Inspection.model_validate_json(answer.read_bytes())
    except (OSError, ValueError):
        result = _inspect(built, arch, toolchain, required)
        _write(answer, result.model_dump_json(indent=1))
        return result


def _inspect(built: Built, arch: Arch, toolchain: Toolchain, required: Sequence[str]) -> Inspection:
    entries, log, assembled = parse_cuobjdump(_cuobjdump(toolchain, built.path)), built.log, None
    present = [entry.code for entry in entries]
    if arch.role == "fallback" and set(arch.codes) <= set(present):
        assembled = _newest(arch)
        text, log = _assemble(built.path, arch.name, assembled, toolchain)
        entries = parse_cuobjdump(text)
    spills = parse_ptxas(log)
    functions = _functions(entries, spills, required)
    return Inspection(
        arch=arch.name,
        machine_codes=_unique(code for code in present if code.startswith("sm_")),
        ptx_codes=_unique(code for code in present if code.startswith("compute_")),
        assembled_for=assembled,
        functions=functions,
        sass_sha256=_digest(f"{f.code} {stable(f.name)} {f.sass_sha256}" for f in functions),
        problems=(
            *wrong_codes(arch, present),
            *judge(functions, required, demangle(f.name for f in functions)),
            *_spilling_helpers(spills),
        ),
    )


# Rules ----------------------------------------------------------------------------------------


def wrong_codes(arch: Arch, present: Iterable[str]) -> Iterator[str]:
    """What was asked for and is absent, and what is present unasked."""
    asked, found = set(arch.codes), set(present)
    for code in sorted(asked - found):
        yield f"{arch.name}: {code} was asked for and is not in the library: {_list(found)} is"
    for code in sorted(found - asked):
        yield f"{arch.name}: {code} is in the library and was not asked for: {_list(asked)} was"


def judge(
    functions: Sequence[Function],
    required: Sequence[str],
    names: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """What is wrong with the machine code, one line for each rule and code. ``names`` are for the reader."""
    readable = names or {}

    def some(broken: Sequence[Function], of: Sequence[Function]) -> str:
        first = readable.get(broken[0].name, broken[0].name)
        return f"{len(broken)} of {len(of)} kernels, first {first}"

    if not functions:
        yield "the library holds no kernel"
    for code in _unique(function.code for function in functions):
        here = [function for function in functions if function.code == code]
        if unknown := [function for function in here if function.spill_stores is None]:
            yield f"{code}: spills unknown in {some(unknown, here)}: compile with -Xptxas=-v"
        if spilling := sorted((f for f in here if f.spilled), key=lambda f: -f.spilled):
            worst = spilling[0]
            yield (
                f"{code}: registers spill in {some(spilling, here)} "
                f"({worst.spill_stores} bytes stored, {worst.spill_loads} loaded)"
            )
        for pattern in required:
            if lacking := [function for function in here if not function.instructions[pattern]]:
                yield f"{code}: no instruction matches {pattern!r} in {some(lacking, here)}"


def _spilling_helpers(log: Mapping[tuple[str, str], Spills]) -> Iterator[str]:
    """Functions that kernels call have no entry of their own in the binary, but in the compiler's output."""
    for (code, name), spills in log.items():
        if not spills.kernel and spills.spill_stores + spills.spill_loads:
            yield f"{code}: registers spill in {demangle([name]).get(name, name)}, which kernels call"


def _check_patterns(patterns: Iterable[str]) -> None:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadInput(f"{pattern!r} is not a regular expression: {error}") from None


# What the tools print -------------------------------------------------------------------------


class Usage(_Fact):
    registers: int = 0
    stack: int = 0
    shared: int = 0


class Entry(_Fact):
    """One cubin or PTX text of a fat binary."""

    code: str  # sm_90a, or compute_80 for PTX
    usage: dict[str, Usage] = {}
    sass: dict[str, tuple[str, ...]] = {}  # function → instructions


class Spills(_Fact):
    """What ``ptxas -v`` says of a function, which the binary no longer tells."""

    kernel: bool
    spill_stores: int
    spill_loads: int
    shared: int = 0  # without the kilobyte that the system reserves from sm_90 on


def parse_cuobjdump(text: str) -> list[Entry]:
    """The output of ``cuobjdump -res-usage -sass`` for a library or a cubin.

    The listing of files (``--list-elf``) is no help: it calls an sm_100f cubin sm_100.
    """
    entries: list[Entry] = []
    kind, code, function = "elf", "", ""
    usage: dict[str, Usage] = {}
    sass: dict[str, list[str]] = {}

    def close() -> None:
        if code:
            listing = {name: tuple(lines) for name, lines in sass.items()}
            entries.append(Entry(code=code, usage=dict(usage), sass=listing))
        usage.clear()
        sass.clear()

    for line in text.splitlines():
        if instruction := _INSTRUCTION.match(line):
            sass[function].append(" ".join(instruction[1].split()))
        elif header := re.match(r"Fatbin (elf|ptx) code:", line):
            close()
            kind, code = header[1], ""
        elif (found := re.match(r"arch = sm_(\w+)", line)) and not code:
            code = f"{'sm' if kind == 'elf' else 'compute'}_{found[1]}"
        elif (found := re.match(r"\s*code for (sm_\w+)", line)) and not code:
            code = found[1]  # a bare cubin has no other heading
        elif found := re.match(r"\s*Function : (\S+)", line):
            function = found[1]
            sass[function] = []
        elif found := re.match(r" Function (\S+):$", line):
            function = found[1]
        elif found := re.match(r"\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)", line):
            registers, stack, shared = map(int, found.groups())
            usage[function] = Usage(registers=registers, stack=stack, shared=shared)
    close()
    return entries


_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(\S.*?)\s*;")


def parse_ptxas(log: str) -> dict[tuple[str, str], Spills]:
    """What ``ptxas -v`` said, by (sm code, function)."""
    found: dict[tuple[str, str], Spills] = {}
    kernels: set[str] = set()
    code = function = ""
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)' for '(\w+)'", line):
            kernels.add(match[1])
            code = match[2]
        elif match := re.search(r"Function properties for (\S+)", line):
            function = match[1].strip("'")
        elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stores, loads = map(int, match.groups())
            found[code, function] = Spills(
                kernel=function in kernels, spill_stores=stores, spill_loads=loads
            )
        elif (match := re.search(r"Used \d+ registers.*?(\d+) bytes smem", line)) and function:
            spills = found[code, function]
            found[code, function] = spills.model_copy(update={"shared": int(match[1])})
    return found


def _functions(
    entries: Iterable[Entry],
    log: Mapping[tuple[str, str], Spills],
    required: Sequence[str],
) -> tuple[Function, ...]:
    patterns = {pattern: re.compile(pattern) for pattern in required}
    functions = []
    for entry in entries:
        for name, sass in sorted(entry.sass.items()):
            usage, spills = entry.usage.get(name, Usage()), log.get((entry.code, name))
            functions.append(
                Function(
                    name=name,
                    code=entry.code,
                    registers=usage.registers,
                    stack=usage.stack,
                    shared=spills.shared if spills else usage.shared,
                    spill_stores=spills.spill_stores if spills else None,
                    spill_loads=spills.spill_loads if spills else None,
                    instructions={
                        pattern: sum(1 for line in sass if compiled.search(line))
                        for pattern, compiled in patterns.items()
                    },
                    sass_sha256=_digest(map(stable, sass)),
                )
            )
    return tuple(functions)


# Running the tools ----------------------------------------------------------------------------


def _cuobjdump(toolchain: Toolchain, path: Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        command = [str(toolchain.cuobjdump), "-res-usage", "-sass", str(path)]
        # cuobjdump looks for nvdisasm on PATH.
        tools = {"PATH": f"{toolchain.nvdisasm.parent}:{toolchain.environment.get('PATH', '')}"}
        status, said, _ = run(command, Path(folder), {**toolchain.environment, **tools})
    if status and "does not contain device code" not in said:
        last = [line for line in said.splitlines() if line.strip()][-1:] or ["it says nothing"]
        raise CannotRun(f"cuobjdump cannot read {path} ({last[0].strip()}): build it again")
    return said


def _assemble(path: Path, label: str, code: str, toolchain: Toolchain) -> tuple[str, str]:
    """Machine code made from the PTX in a library, as cuobjdump prints it; and what ptxas said."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        extract = [str(toolchain.cuobjdump), "-xptx", "all", str(path)]
        _, said, _ = run(extract, work, toolchain.environment)
        options = dict(re.findall(r"ptxas options\s+\d+: (\S+\.ptx)(.*)", said))
        texts, logs = [], []
        for i, ptx in enumerate(sorted(work.glob("*.ptx"))):
            cubin = work / f"{i}.cubin"
            kept = [o for o in shlex.split(options.get(ptx.name, "")) if not o.startswith("-arch")]
            command = [
                str(toolchain.ptxas),
                *kept,
                "-v",
                f"-arch={code}",
                str(ptx),
                "-o",
                str(cubin),
            ]
            status, log, _ = run(command, work, toolchain.compile_environment)
            if status:
                raise BuildFailed(f"{label} for {code}", log.replace(f"{folder}/", ""))
            texts.append(_cuobjdump(toolchain, cubin))
            logs.append(log)
    return "\n".join(texts), "\n".join(logs)


def _newest(arch: Arch) -> str:
    newest = max(arch.loads_on, key=lambda cc: [int(part) for part in cc.split(".")])
    return f"sm_{newest.replace('.', '')}"


def demangle(names: Iterable[str]) -> dict[str, str]:
    """What the source calls each function, without its parameters; as it is where no c++filt is found."""
    wanted = list(names)
    if not wanted or not (tool := shutil.which("c++filt")):
        return {}
    done = subprocess.run(
        [tool, "--no-params"], input="\n".join(wanted), capture_output=True, text=True, check=False
    )
    return dict(zip(wanted, done.stdout.splitlines(), strict=False))


def _write(path: Path, text: str) -> None:
    """Write a file in one rename, or not at all where the folder cannot be written."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(text)
        Path(file.name).replace(path)
    except OSError:
        return


# Small things ---------------------------------------------------------------------------------


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def stable(text: str) -> str:
    """Code without the hash of the source's path that names in anonymous namespaces hold."""
    return re.sub(r"(GLOBAL__N__|INTERNAL_)[0-9a-f]{8}_", r"\1", text)


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _list(codes: Iterable[str]) -> str:
    return ", ".join(sorted(codes)) or "nothing"
