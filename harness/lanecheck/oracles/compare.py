"""Bitwise comparison of outputs, and the sentence that says where they part."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lanecheck.subject import Bits


def first_difference(outputs: Mapping[str, Bits], expected: Mapping[str, Bits]) -> str | None:
    """None if all bits are equal, otherwise a sentence on the first element that differs."""
    for name, want in expected.items():
        got = outputs[name]
        differs = got != want
        if differs.any():
            at = tuple(np.argwhere(differs)[0])
            where = ", ".join(map(str, at))
            return (
                f"{name}[{where}] is {_shown(got[at])}, expected {_shown(want[at])} "
                f"({differs.sum()} of {got.size} elements differ)"
            )
    return None


def _shown(bits: np.generic) -> str:
    width = bits.dtype.itemsize
    wide = np.uint32(int(bits) << (16 if width == 2 else 0))
    return f"{wide.view(np.float32):.9g} (0x{int(bits):0{2 * width}X})"
