"""The one-way arrow: the harness knows no kernel, and a kernel needs no harness."""

from __future__ import annotations

import ast
import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lanecheck

HARNESS = Path(lanecheck.__file__).parent
KERNEL = Path(__file__).parents[2] / "kernel" / "packed_gemv"
#: All but the one that runs the command line, and the one that is written in Triton.
MODULES = [
    module.name
    for module in pkgutil.walk_packages([str(HARNESS)], "lanecheck.")
    if module.name not in ("lanecheck.__main__", "lanecheck.bench.peers.skinny_kernels")
]


def imported(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, or in a literal that it imports by name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module
            case ast.Call(args=[ast.Constant(value=str(name)), *_]) if "import" in ast.unparse(
                node.func
            ):
                yield name


def packages(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imported(path)}


def test_the_scan_sees_every_way_to_import(tmp_path: Path):
    path = tmp_path / "sample.py"
    path.write_text(
        "import a.b, c as d\nfrom e.f import g\nfrom . import own\n"
        "def late():\n    import h\n    importlib.import_module('i.j')\n    __import__('k')\n"
    )
    assert packages(path) == {"a", "c", "e", "h", "i", "k"}


def test_no_source_of_the_harness_imports_a_kernel():
    sources = sorted(HARNESS.rglob("*.py"))
    assert len(sources) > 30
    assert [path.name for path in sources if "packed_gemv" in packages(path)] == []


def test_importing_all_of_the_harness_imports_no_kernel_and_no_torch():
    code = (
        "import importlib, json, sys\n"
        f"for name in {MODULES!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert "lanecheck" in loaded
    assert not {"packed_gemv", "torch"} & set(loaded)


@pytest.mark.skipif(not KERNEL.is_dir(), reason="the harness alone is checked out")
def test_no_source_of_the_kernel_imports_the_harness_but_its_subject():
    sources = sorted(KERNEL.rglob("*.py"))
    importing = [path for path in sources if "lanecheck" in packages(path)]
    assert importing == [KERNEL / "subject.py"]
