"""Bitwise comparison of outputs, and the sentence that says where they part."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lanecheck.errors import BadInput
from lanecheck.subject import Bits


def first_difference(outputs: Mapping[str, Bits], expected: Mapping[str, Bits]) -> str | None:
    """None if all bits are equal, otherwise a sentence on the first element that differs.

    Raises:
        BadInput: if the subject does not expect exactly its outputs, each in its own shape.
    """
    if outputs.keys() != expected.keys():
        raise BadInput(f"the subject writes {_listed(outputs)}, but expects {_listed(expected)}")
    for name, want in expected.items():
        got = outputs[name]
        if got.shape != want.shape or got.dtype != want.dtype:
            raise BadInput(
                f"the subject writes {name} as {got.dtype}{list(got.shape)}, "
                f"but expects {want.dtype}{list(want.shape)}"
            )
        differs = got != want
        if differs.any():
            at = tuple(np.argwhere(differs)[0])
            where = ", ".join(map(str, at))
            return (
                f"{name}[{where}] is {_shown(got[at])}, expected {_shown(want[at])} "
                f"({differs.sum()} of {got.size} elements differ)"
            )
    return None


def _listed(arrays: Mapping[str, Bits]) -> str:
    return ", ".join(sorted(arrays)) or "nothing"


def _shown(bits: np.generic) -> str:
    width = bits.dtype.itemsize
    wide = np.uint32(int(bits) << (16 if width == 2 else 0))
    return f"{wide.view(np.float32):.9g} (0x{int(bits):0{2 * width}X})"
