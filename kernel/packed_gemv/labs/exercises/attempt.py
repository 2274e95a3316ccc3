"""A reader's file: load it, call its function, and say in words what fails where."""

from __future__ import annotations

import runpy
import traceback
from collections.abc import Callable
from typing import Any

from packed_gemv.labs.exercises.model import Coding, Verdict

_ELSEWHERE = {
    "permute": "In numpy, torch's permute is called transpose.",
    "contiguous": "In numpy, torch's x.contiguous() is np.ascontiguousarray(x).",
    "new_zeros": "In numpy, torch's w.new_zeros(shape) is np.zeros(shape, w.dtype).",
}


class Unusable(ValueError):
    """A file that does not define the function."""


def attempt(coding: Coding, path: str) -> Verdict:
    """Judge the function in the file at ``path``.

    Raises:
        Unusable: if there is no such function to call.
    """
    function = _load(coding.name, path)
    try:
        return coding.check(function)
    except (Exception, SystemExit) as error:
        return Verdict(False, f"{coding.name} failed{_line(error, path)}: {_told(error)}")


def _load(name: str, path: str) -> Callable[..., Any]:
    try:
        function = runpy.run_path(path).get(name)
    except OSError as error:
        raise Unusable(f"cannot read {path}: {error.strerror or error}") from None
    except (Exception, SystemExit) as error:
        raise Unusable(f"{path} does not run{_line(error, path)}: {_told(error)}") from None
    if not callable(function):
        raise Unusable(f"{path} defines no function {name}")
    return function  # type: ignore[no-any-return]


def _line(error: BaseException, path: str) -> str:
    """`` in line 7``, the last line of the reader's own that the error came through."""
    if isinstance(error, SyntaxError):
        return f" in line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    return f" in line {lines[-1]}" if lines else ""


def _told(error: BaseException) -> str:
    message = " ".join(str(error).split())
    told = f"{type(error).__name__}" + (f": {message}" if message else "")
    if isinstance(error, AttributeError) and error.name in _ELSEWHERE:
        return f"{told}. {_ELSEWHERE[error.name]}"
    if isinstance(error, ValueError) and "cannot reshape" in message:
        return f"{told}. Does each piece divide its index? N and K need not be whole blocks: pad first."
    return told
