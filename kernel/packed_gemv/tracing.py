"""The way to an output element, in words: which lane and register accumulate it, what the registers of a
warp should hold at each of its mma, and which sums stand between the accumulators and the output."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from packed_gemv.config import Config
from packed_gemv.emulator import Arithmetic, Problem, WarpWalk, bf16_bits, fp32_bits, stages
from packed_gemv.fragments import (
    A_ROW,
    A_SLOT,
    B_COLUMN,
    B_SLOT,
    D_COLUMN,
    D_ROW,
    K_BLOCK,
    LANES,
    ROWS,
    TOKENS,
    real_k,
)
from packed_gemv.layout import blocks

_Array = npt.NDArray[Any]


def locate(config: Config, output: str, index: tuple[int, ...]) -> str:
    """Which lanes compute the element ``(token, row)`` of an output."""
    token, row = index
    row_block, nb, lane, register = _accumulator(token, row)
    ctas = f"CTAs ({row_block}, 0…{config.s - 1})" if config.s > 1 else f"CTA ({row_block}, 0)"
    return (
        f"{output}[{token}, {row}] is accumulator {register} of lane {lane} (g {lane >> 2}, "
        f"t {lane & 3}), token block {nb}, {ctas}"
    )


class WarpRegisters:
    """A walk of the emulator in registers of 32 bits: two values of A or B, of which the first one's place is
    the register's. On rows and tokens beyond the last nothing depends.

    Attributes:
        titles: which mma each of the L is.
        words: by operand, ``A`` and ``C`` and ``D`` ``[L, 32, 4]``, ``B`` ``[L, 32, 2]``, as uint32; masked
            where no output depends on them.
    """

    def __init__(self, problem: Problem, walk: WarpWalk, row_block: int) -> None:
        (self._m, self._k), n = problem.x.shape, problem.weights[0].n
        k_block, nb, self._mat, step = walk.place.T
        slot_k = np.stack([real_k(0), real_k(1)])[step] + K_BLOCK * k_block[:, None]  # [L, 16]
        first_row, first_token = ROWS * row_block, TOKENS * nb[:, None, None]
        self._a_rows, self._a_k = first_row + A_ROW[:, ::2], slot_k[:, A_SLOT[:, ::2]]
        self._b_tokens, self._b_k = first_token + B_COLUMN[:, ::2], slot_k[:, B_SLOT[:, ::2]]
        self._d_rows, self._d_tokens = first_row + D_ROW, first_token + D_COLUMN

        unused = (self._d_rows >= n) | (self._d_tokens >= self._m)
        self.titles = [f"K block {b}, token block {c}, w{i}, step {s}" for b, c, i, s in walk.place]
        self.words = {
            "A": _masked(walk.a, self._a_rows >= n),
            "B": _masked(walk.b, self._b_tokens >= self._m),
            "C": _masked(walk.c, unused),
            "D": _masked(walk.d, unused),
        }

    def where(self, operand: str, i: int, lane: int, register: int) -> str:
        """What a register of mma ``i`` is logically, such as ``x[2, 68…69]``."""
        at, source = (lane, register), f"w{self._mat[i]}"
        if operand in "CD":
            return f"Σ {source}[{self._d_rows[at]}] · x[{self._d_tokens[i][at]}]"
        row, first = self._a_rows[at], self._a_k[i][at]
        if operand == "B":
            source, row, first = "x", min(self._b_tokens[i][at], self._m - 1), self._b_k[i][at]
        return f"{source}[{row}, {first}…{first + 1}]" + (" beyond K" if first >= self._k else "")


def explain(
    problem: Problem,
    config: Config,
    arithmetic: Arithmetic,
    output: str,
    index: tuple[int, ...],
    left: Mapping[str, _Array],
) -> Iterator[str]:
    """The sums on the way from the accumulators to the element ``(token, row)``, and which of them it holds.

    Args:
        output: ``y0`` or ``y1``.
        left: what a launch left in its outputs, as bits, and perhaps in its ``workspace``, as bytes.
    """
    bits: Callable[..., _Array] = fp32_bits if problem.out_fp32 else bf16_bits
    way = stages(problem, config, arithmetic)

    def said(text: str, sums: list[_Array]) -> str:
        own = sums if problem.fused else [sums[int(output[1:])]]
        held = any(bits(total)[index] == left[output][index] for total in own)
        values = " and ".join(f"{total[index]:.9g}" for total in sums)
        return f"{text} {values}" + (f": {output} holds that" if held else "")

    for part, run in enumerate(config.slices(problem.weights[0].k)):
        s, warp = divmod(part, config.nw)
        span = f"K blocks {run.start}…{run.stop - 1}" if run else "no K block"
        sums = [total[part] for total in way.warps]
        yield said(f"slice {s}, warp {warp}, {span}: should sum to", sums)
    partials = None
    if config.s > 1 and "workspace" in left:
        partials = _partials(left["workspace"], problem.weights[0].n, config, index)
    for s in range(config.s if config.s * config.nw > 1 else 0):
        sums = [total[s] for total in way.slices]
        text = said(f"slice {s}: its warps should add up to", sums)
        if partials is not None:
            stored = partials[s]
            if any(fp32_bits(v[index]) != fp32_bits(held) for v, held in zip(sums, stored)):
                text += f"; the workspace holds {' and '.join(f'{v:.9g}' for v in stored)}"
        yield text
    if config.s > 1:
        yield said("the slices should add up to", way.totals)
    if any(bias is not None for bias in problem.bias):
        yield said("with the bias", way.biased)
    if problem.fused:
        yield said("silu of the first times the second:", way.outputs)


def _accumulator(token: int, row: int) -> tuple[int, int, int, int]:
    """Row block, token block, lane and register of an output element."""
    (row_block, tile_row), (nb, column) = divmod(row, ROWS), divmod(token, TOKENS)
    ((lane, register),) = np.argwhere((tile_row == D_ROW) & (column == D_COLUMN)).tolist()
    return row_block, nb, lane, register


def _masked(registers: _Array, unused: npt.NDArray[np.bool_]) -> Any:
    words = np.ascontiguousarray(registers).view(np.uint32)
    return np.ma.array(words, mask=np.broadcast_to(unused, words.shape))


def _partials(
    workspace: npt.NDArray[np.uint8], n: int, config: Config, index: tuple[int, ...]
) -> npt.NDArray[np.float32]:
    """``[S, MATS]``: what the workspace holds of an output element, in launch.cu's layout."""
    row_block, nb, lane, register = _accumulator(*index)
    shape = (blocks(n, ROWS), config.s, config.mats, config.nb, 4, LANES)
    floats = workspace[: 4 * math.prod(shape)].view(np.float32).reshape(shape)
    return floats[row_block, :, :, nb, register, lane]
