"""How this kernel's library is compiled: sources and flags, and nothing about where or for whom.

The wheel build and Lanecheck's subject both call it. ``source`` is the folder the CUDA sources lie
in: :attr:`root`, or a copy of it with some files replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

root = Path(__file__).parent / "csrc"
twins = (root / "host",)

_STANDARD = "-std=c++17"
_SOURCE = "launch.cu"
_BINDING = "torch_binding.cpp"
_STABLE_ABI = "0x020a000000000000"  # torch 2.10, the oldest that the binding runs under


def device(nvcc: Path, gencode: Sequence[str], source: Path, out: Path) -> list[str]:
    """Compile the kernel for ``gencode`` (values of nvcc's option) into the library ``out``."""
    return [*_shared(nvcc, gencode, source), str(source / _SOURCE), "-o", str(out)]


def torch_library(
    nvcc: Path, gencode: Sequence[str], source: Path, torch: Path, stub: Path, out: Path
) -> list[str]:
    """Compile the kernel and its torch operator into ``out``, for ``torch.ops.load_library``.

    Needs the headers and ``libtorch_cpu`` of any torch from 2.10 on, CPU-only ones included; the
    result runs under any torch with CUDA from 2.10 on, whatever its Python.

    Args:
        torch: the folder of the installed ``torch`` package. stub: what :func:`torch_stub` made.
    """
    return [
        *_shared(nvcc, gencode, source),
        *("-DUSE_CUDA", f"-DTORCH_TARGET_VERSION={_STABLE_ABI}", "-isystem", f"{torch}/include"),
        *(str(source / _SOURCE), str(source / _BINDING)),
        # torch opens its libraries RTLD_LOCAL, so what resolves a symbol is a DT_NEEDED entry.
        *("-Xlinker=--no-as-needed,-z,defs", f"-L{torch}/lib", "-ltorch_cpu", str(stub)),
        *("-o", str(out)),
    ]


def torch_stub(cxx: Path, out: Path) -> list[str]:
    """Link a stand-in for ``libtorch_cuda.so`` into ``out``, for a torch without CUDA.

    It has the name and the one symbol that the operator needs from there.
    """
    return [
        *(str(cxx), "-shared", "-nostdlib", "-x", "c", "/dev/null"),
        "-Wl,-soname,libtorch_cuda.so,--defsym=aoti_torch_get_current_cuda_stream=0",
        *("-o", str(out)),
    ]


def host(
    cxx: Path, flags: Sequence[str], include: Sequence[Path], source: Path, out: Path
) -> list[str]:
    """Compile the same sources for host execution into the object file ``out``.

    ``host/`` comes first on the include path, so that ``<ptx.cuh>`` is the host twin.
    """
    folders = (source / "host", source, *include)
    return [
        *(str(cxx), "-x", "c++", _STANDARD, "-fPIC", "-fvisibility=hidden", *flags),
        *(f"-I{folder}" for folder in folders),
        *("-c", str(source / _SOURCE), "-o", str(out)),
    ]


def _shared(nvcc: Path, gencode: Sequence[str], source: Path) -> list[str]:
    targets = [f"-gencode={code}" for code in gencode]
    return [
        *(str(nvcc), _STANDARD, "-O3", "-fmad=false", "-shared", "-cudart=static"),
        *("-Xptxas=-v", "-lineinfo"),
        "-Xlinker=-s",  # symbols name a temporary file: no build would repeat another's bytes
        *("-Xcompiler=-fPIC,-fvisibility=hidden", "-diag-suppress=20208", *targets),
        f"-I{source}",
    ]
