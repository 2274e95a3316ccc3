"""The files that what a comparison measures may depend on: a change of one ages the gate's measured rates."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from lanecheck.build import digests

_GATE = Path("bench", "paired")
_WORDS = _GATE / "table.py"
"""How an outcome is said: it changes none."""


def timing_code(package: Path) -> dict[str, str]:
    """Digests of the gate's files but its words, and of those that the process which times imports, by name.

    They are found in the source, as what is loaded differs between the processes that ask.

    Args:
        package: the folder of :mod:`lanecheck`.
    """
    found: set[Path] = set()
    new = {_GATE / "process.py"}
    while new:
        found |= new
        named = {each for file in new for each in _imported((package / file).read_bytes())}
        new = {file for file in named - found if (package / file).is_file()}
    gate = {file.relative_to(package) for file in (package / _GATE).glob("*.py")}
    found |= gate - {_WORDS}
    return digests(package, sorted(found))


@cache
def _imported(source: bytes) -> frozenset[Path]:
    """Where in the package that may be which a source imports, inside functions too. There need not be such
    a file: of ``from a import b``, b may be a module and a may be a package."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(f"{node.module}.{each.name}" for each in node.names)
    found = {Path("__init__.py")}
    for top, *parts in (name.split(".") for name in names):
        for end in range(1, len(parts) + 1) if top == "lanecheck" else ():
            home = Path(*parts[:end])
            found |= {home.with_suffix(".py"), home / "__init__.py"}
    return frozenset(found)
