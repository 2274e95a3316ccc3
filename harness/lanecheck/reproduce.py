"""A case as a folder that runs without Lanecheck and without Python, to hand to somebody else.

It holds the kernel's sources, what executes them on a CPU, the inputs and the expected outputs as raw
files, and a program that launches through the kernel's own interface and compares. What is particular to
the kernel comes from its subject, as C++.
"""

from __future__ import annotations

import math
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from lanecheck.build import NO_OVERLAY
from lanecheck.cases import Case
from lanecheck.errors import BadInput
from lanecheck.observation import POISON
from lanecheck.simt import INCLUDE, VARIANTS
from lanecheck.simt.library import MODELS, SIDES
from lanecheck.subject import Bits, Params, Subject, Tensor, load, recipe_of
from lanecheck.tensorcore import TensorCore, model_for
from lanecheck.trial import Target, draw_inputs, keeps_workspace, operands, schedule

_PROGRAM = Path(__file__).with_suffix(".cpp")
_SIMT = INCLUDE.parent
_ROLES = {"input": "input", "packed": "input", "output": "output", "workspace": "workspace"}


@runtime_checkable
class Reproducible(Protocol):
    """A subject whose launch can be written down in C++."""

    def reproduction(self, params: Params) -> str:
        """C++ that defines ``int launch()``: it launches the kernel once, through its C interface, on the
        null stream, and returns a CUDA error code. ``void* buffer(const char* name)`` is there for it: the
        address of a tensor's first element, null if the case has no such tensor."""


def check(subject: Subject, folder: Path) -> None:
    """Refuse what :func:`export` could not do.

    Raises:
        BadInput: if the folder is not an empty one, or the subject cannot be reproduced.
    """
    recipe_of(subject)
    if not isinstance(subject, Reproducible):
        raise BadInput(f"subject '{subject.name}' has no reproduction() to export")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"--export {folder}: it is not an empty folder")


def export(
    case: Case,
    target: Target,
    folder: Path,
    command: str,
    overlay: Mapping[str, str] = NO_OVERLAY,
) -> None:
    """Write ``case`` as a standalone reproduction; the case is not run.

    Args:
        target: whose subject, capabilities and host variant are meant.
        folder: made if it does not exist.
        command: the ``lanecheck replay`` line that does the same.
        overlay: changed source files, by name below the recipe's root.

    Raises:
        BadInput: as :func:`check`, or if the subject predicts no bits.
    """
    subject = load(target.subject)
    check(subject, folder)
    assert isinstance(subject, Reproducible)
    inputs = draw_inputs(subject, case)
    given = operands(subject, case.params, inputs)
    tensors = [t for t in subject.tensors(case.params) if t.role != "source"]
    cores = list({core.name: core for core in map(model_for, target.capabilities)}.values())
    expected = {core.name: subject.predict(case.params, inputs, core) for core in cores}

    data = folder / "data"
    for tensor in tensors:
        if _ROLES[tensor.role] == "input":
            _write(data / f"{tensor.name}.bin", given[tensor.name])
    for core, outputs in expected.items():
        if outputs is None:
            raise BadInput(f"subject '{subject.name}' predicts no bits to compare with")
        for name, bits in outputs.items():
            _write(data / "expected" / core / f"{name}.bin", bits)

    unwanted = shutil.ignore_patterns("__pycache__", "*.py")
    shutil.copytree(recipe_of(subject).root, folder / "kernel", ignore=unwanted)
    shutil.copytree(_SIMT, folder / "simt", ignore=unwanted)
    for name, text in overlay.items():
        (folder / "kernel" / name).write_text(text, "utf-8")
    shutil.copy(_PROGRAM, folder / "main.cpp")
    facts = _facts(case, tensors, cores)
    (folder / "case.h").write_text(f"{facts}\n{subject.reproduction(case.params)}", "utf-8")
    variant = target.variant if target.device == "host" else "plain"
    (folder / "build.sh").write_text(_build(subject, variant), "utf-8")
    (folder / "README.txt").write_text(_readme(case, command, variant, overlay), "utf-8")


def _write(path: Path, bits: Bits) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bits.astype(bits.dtype.newbyteorder("<")).tobytes())


def _facts(case: Case, tensors: Sequence[Tensor], cores: Sequence[TensorCore]) -> str:
    """The case as the tables that main.cpp reads."""

    def row(t: Tensor) -> str:
        rows, columns = t.shape[0] if t.shape else 1, math.prod(t.shape[1:])
        sizes = (t.item.itemsize, rows, columns, t.stride, t.offset, t.align)
        poison = ", ".join(f"0x{colour[t.dtype]:X}" for colour in POISON)
        numbers = ", ".join(map(str, sizes))
        return f'    {{"{t.name}", Role::{_ROLES[t.role]}, {numbers}, {{{poison}}}}},\n'

    def core_row(core: TensorCore) -> str:
        capabilities = ", ".join(cc.replace(".", "") for cc in core.evidence)
        return f'    {{"{core.name}", {MODELS[core.name]}, {{{capabilities}}}}},\n'

    def launch(colour: int) -> str:
        how = schedule(case, colour)
        return (
            f"    {{{how['schedule_seed']}u, {how['resident_ctas']}, {int(how['preempt'])}, "
            f"{how['poison_seed']}u}},\n"
        )

    launches = "".join(map(launch, range(len(POISON))))
    return (
        f"// {case.line}\n"
        f"constexpr Schedule kSchedules[] = {{\n{launches}}};\n"
        f"constexpr bool kWorkspaceStays = {str(keeps_workspace(case)).lower()};\n"
        f"constexpr int kLowerSide = {SIDES[str(case.params['side'])]};\n"
        f"constexpr Tensor kTensors[] = {{\n{''.join(map(row, tensors))}}};\n"
        f"constexpr Core kCores[] = {{\n{''.join(map(core_row, cores))}}};\n"
    )


def _build(subject: Subject, variant: str) -> str:
    """A shell script with the recipe's own commands."""
    flags, recipe = VARIANTS[variant], recipe_of(subject)
    sanitizers = [flag for flag in flags.link_flags if flag.startswith("-fsanitize")]
    kernel, include, cxx, nvcc = Path("kernel"), Path("simt/include"), Path("g++"), Path("nvcc")
    host = [
        ["g++", *flags.runtime_flags, "-c", "simt/runtime.cpp", "-o", "runtime.o"],
        recipe.host(cxx, flags.compile_flags, [include], kernel, Path("kernel.o")),
        ["g++", "kernel.o", "runtime.o", *flags.link_flags, "-o", "kernel_host.so"],
        [
            *("g++", "-std=c++17", "-O1", "-DON_HOST", *sanitizers, "-Isimt/include", "-Ikernel"),
            *("main.cpp", "kernel_host.so", "-Wl,-rpath,$ORIGIN", "-o", "host"),
        ],
    ]
    gpu = [
        recipe.device(nvcc, ["arch=compute_$SM,code=sm_$SM"], kernel, Path("kernel_gpu.so")),
        [
            *("nvcc", "-std=c++17", "-Ikernel", "main.cpp", "kernel_gpu.so"),
            *("-Xlinker", "-rpath,$ORIGIN", "-o", "gpu"),
        ],
    ]
    return f"""#!/bin/sh
# sh build.sh host      with g++, makes ./host
# sh build.sh gpu       with nvcc, makes ./gpu for the GPU of this machine
# sh build.sh gpu 90    for sm_90
set -e
cd "$(dirname "$0")"
if [ "${{1:-host}}" = host ]; then
{_script(host)}else
  SM=${{2:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)}}
{_script(gpu)}fi
"""


def _script(commands: Sequence[Sequence[str]]) -> str:
    def quoted(word: str) -> str:
        word = word.replace(str(_SIMT), "simt")
        if "$SM" in word:
            return f'"{word}"'
        return shlex.quote(word)

    return "".join(f"  {' '.join(map(quoted, command))}\n" for command in commands)


def _readme(case: Case, command: str, variant: str, overlay: Mapping[str, str]) -> str:
    changed = f", {', '.join(overlay)} changed on purpose" if overlay else ""
    settings = "".join(f"{name}={value} " for name, value in VARIANTS[variant].env.items())
    return f"""One case of {case.subject}, to run without Lanecheck. With Lanecheck it is

  {command}

On a CPU, with g++:    sh build.sh host && {settings}./host
On a GPU, with nvcc:   sh build.sh gpu && ./gpu

kernel/  the kernel's sources{changed}
simt/    what executes them on a CPU
data/    inputs, and the outputs expected of each tensor core: elements in row-major order, without gaps,
         little-endian; bf16 as 2 bytes
case.h   sizes, strides, offsets, and the launch

Both programs launch twice, with other contents of outputs and workspaces, print the first element that
differs and how many do, and end with exit code 1 if any does. ./host lays every buffer against an
inaccessible page, as Lanecheck does; ./gpu does not: its buffers are ordinary aligned allocations with the
same strides and offsets, so that an access outside of them may go unnoticed. Where ./host reports an error,
{{0x1234}} is an address of the kernel: addr2line -e kernel_host.so 0x1234
"""
