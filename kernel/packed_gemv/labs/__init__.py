"""Small programs that show the packed layout and the kernel's walk; numpy is all they need.

``python -m packed_gemv.labs.configs`` (lab 0) shows how configurations cut K;
``python -m packed_gemv.labs.fragments`` (lab 2) shows what each lane holds and loads, and that the
answer is right. ``packed_gemv.labs.pictures`` and ``packed_gemv.labs.page`` write the same as SVG
files and as a page for a browser. ``kernel/LAYOUT.md`` tells it in order.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

WIDTH = 80


class Parser(argparse.ArgumentParser):
    """An argument parser that answers a mistake with one line and exit code 2."""

    def __init__(self, prog: str, description: str, example: str) -> None:
        super().__init__(
            prog=f"python -m {prog}",
            description=description,
            epilog=f"Example: python -m {prog} {example}",
            formatter_class=_Help,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog.rpartition('.')[2]}: {message}\n")


class _Help(argparse.HelpFormatter):
    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{**options, "width": WIDTH - 2})


def show(lines: Iterable[str]) -> None:
    """Print ``lines``; a reader that has seen enough, such as ``head``, may leave early."""
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def at_least_one(text: str) -> int:
    """An argument that counts something."""
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return value


def counted(count: int, noun: str) -> str:
    """``1 block``, ``2 blocks``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def runs(numbers: list[int]) -> str:
    """Rising integers as ``0-3, 5, 7-8``."""
    parts: list[range] = []
    for number in numbers:
        if parts and parts[-1].stop == number:
            parts[-1] = range(parts[-1].start, number + 1)
        else:
            parts.append(range(number, number + 1))
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts) or "none"
