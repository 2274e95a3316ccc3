"""Build the CUDA library of the torch operator: ``python -m packed_gemv.build --arch sm_90a``.

The library lands where :mod:`packed_gemv.ops` looks for it, in a folder named after the sources, so
that one built from other sources is never loaded. No GPU is needed, and a CPU-only torch serves.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from packed_gemv import recipe

#: Names a library to load instead of the one in the cache.
LIBRARY_VARIABLE = "PACKED_GEMV_LIBRARY"
#: Names the cache folder; by default ``~/.cache/packed_gemv``.
CACHE_VARIABLE = "PACKED_GEMV_CACHE"

_FEATURES = {
    "9.0": "sm_90a",
    "10.0": "sm_100f",
    "10.3": "sm_100f",
    "12.0": "sm_120f",
    "12.1": "sm_120f",
}


class BuildError(RuntimeError):
    """The library could not be built; the message says what is missing or quotes the compiler."""


def default_library() -> Path:
    """Where the library of these sources is looked for, and built unless told otherwise."""
    if named := os.environ.get(LIBRARY_VARIABLE):
        return Path(named)
    cache = os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "packed_gemv"
    return Path(cache) / _fingerprint() / "packed_gemv.so"


def build(archs: Sequence[str], out: Path | None = None) -> Path:
    """Compile the kernel and its operator.

    Args:
        archs: names such as ``sm_90a``, or ``native`` for the GPU of this machine.
        out: the library to write, instead of :func:`default_library`. Replaced in one step.

    Returns:
        The library.

    Raises:
        ValueError: for a name that is no arch.
        BuildError: if nvcc, g++ or torch is missing, or compilation fails.
    """
    codes = [gencode(_native() if arch == "native" else arch) for arch in archs]
    nvcc, cxx, torch = _nvcc(), _tool("g++"), _torch()
    out = default_library() if out is None else out
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        stub, library = Path(folder, "libtorch_cuda.so"), Path(folder, out.name)
        _call(recipe.torch_stub(cxx, stub))
        _call(recipe.torch_library(nvcc, codes, recipe.root, torch, stub, library))
        os.replace(library, out)
    return out


def gencode(arch: str) -> str:
    """The value of nvcc's ``-gencode`` for machine code of ``arch``, such as ``sm_90a``.

    Raises:
        ValueError: if ``arch`` has another form.
    """
    if not (match := re.fullmatch(r"sm_(\d{2,3}[af]?)", arch)):
        raise ValueError(f"arch={arch!r}: expected a name such as sm_80, sm_90a or sm_100f")
    return f"arch=compute_{match[1]},code=sm_{match[1]}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; exit code 1 if the build failed, 2 for bad arguments."""
    parser = argparse.ArgumentParser(prog="python -m packed_gemv.build", description=__doc__)
    parser.add_argument(
        *("--arch", "-a"),
        action="append",
        metavar="SM",
        help="sm_80, sm_90a, sm_100f …; repeat for several (default: native, this machine's GPU)",
    )
    parser.add_argument("--out", type=Path, help="the library to write (default: the cache)")
    options = parser.parse_args(argv)
    try:
        print(build(options.arch or ["native"], options.out))
    except ValueError as error:
        parser.error(str(error))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _fingerprint() -> str:
    digest = hashlib.sha256(Path(recipe.__file__).read_bytes())
    for source in sorted(recipe.root.iterdir()):
        if source.is_file():
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _native() -> str:
    import torch

    if not torch.cuda.is_available():
        raise BuildError("this machine has no GPU that torch can use; name an arch: --arch sm_90a")
    major, minor = torch.cuda.get_device_capability()
    return _FEATURES.get(f"{major}.{minor}", f"sm_{major}{minor}")


def _nvcc() -> Path:
    homes = (os.environ.get(variable) for variable in ("CUDA_HOME", "CUDA_PATH"))
    return _tool("nvcc", *(Path(home, "bin") for home in homes if home))


def _tool(name: str, *first: Path) -> Path:
    """``name`` from one of the folders ``first``, else from PATH."""
    places = (*(str(folder) for folder in first), None)
    found = next((path for place in places if (path := shutil.which(name, path=place))), None)
    if found is None:
        raise BuildError(f"{name} was not found; install it, or point CUDA_HOME or PATH at it")
    return Path(found)


def _torch() -> Path:
    # The folder alone: importing torch here would cost seconds for nothing.
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError("torch is not installed: pip install 'packed_gemv[torch]'")
    return Path(spec.origin).parent


def _call(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
