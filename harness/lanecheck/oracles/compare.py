"""Bitwise comparison of outputs, and the sentence that says where they part."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from lanecheck.errors import BadInput
from lanecheck.subject import Bits


def check_names(outputs: Mapping[str, object], expected: Mapping[str, object]) -> None:
    """Refuse to compare with less than all outputs: a comparison of nothing is no pass."""
    if outputs.keys() != expected.keys():
        writes, expects = (", ".join(sorted(names)) or "nothing" for names in (outputs, expected))
        raise BadInput(f"the subject writes {writes}, but expects {expects}")


def first_difference(outputs: Mapping[str, Bits], expected: Mapping[str, Bits]) -> str | None:
    """None if all bits are equal, otherwise a sentence on the first element that differs.

    Raises:
        BadInput: if the subject does not expect exactly its outputs, each in its own shape.
    """
    check_names(outputs, expected)
    for name, want in expected.items():
        got = outputs[name]
        if got.shape != want.shape or got.dtype != want.dtype:
            raise BadInput(
                f"the subject writes {name} as {got.dtype}{list(got.shape)}, "
                f"but expects {want.dtype}{list(want.shape)}"
            )
        differs = got != want
        if differs.any():
            at = first(differs)
            where = ", ".join(map(str, at))
            return (
                f"{name}[{where}] is {_shown(got[at])}, expected {_shown(want[at])} "
                f"({differs.sum()} of {got.size} elements differ)"
            )
    return None


def first(differs: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    """The index of the first true element."""
    return tuple(map(int, np.argwhere(differs)[0]))


def _shown(bits: np.generic) -> str:
    width = bits.dtype.itemsize
    wide = np.uint32(int(bits) << (16 if width == 2 else 0))
    return f"{wide.view(np.float32):.9g} (0x{int(bits):0{2 * width}X})"
