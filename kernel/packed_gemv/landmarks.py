"""Launches that chance would not draw: tuned configurations and shapes, offsets past 31 bits, grid limits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from packed_gemv.config import (
    MAX_TOKENS,
    Config,
    fitted,
    max_warps,
    select,
    supported_trips,
    table,
)
from packed_gemv.fragments import K_BLOCK, TOKENS
from packed_gemv.layout import blocks


@dataclass(frozen=True)
class Launch:
    """Sizes, configuration, and how far rows lie apart beyond their length, in elements."""

    m: int
    n: int
    k: int
    config: Config
    bias: bool = False
    out_fp32: bool = True
    xpad: int = 0
    ypad: int = 0


def configurations() -> Iterator[Launch]:
    """Every tuned (NW, U, S) with each M, whole trips for every warp."""
    tuned = sorted({(config.nw, config.u, config.s) for _, _, config in table()})
    for (nw, u, s), dual, m in itertools.product(tuned, (False, True), range(1, MAX_TOKENS + 1)):
        config = fitted(nw, u, s, blocks(m, TOKENS), dual)
        yield Launch(m, 40, K_BLOCK * config.nw * config.u * config.s, config, bias=m % 2 == 1)


def strides() -> Iterator[Launch]:
    """Rows so far apart that an offset takes more than 31 bits, in bytes or in elements."""
    for out_fp32, limit in itertools.product((True, False), (2**29, 2**31)):
        apart = 8 * (limit // (7 * 8) + 8)  # eight rows, seven strides
        yield Launch(8, 40, 96, Config(2, 1), out_fp32=out_fp32, ypad=apart)
        yield Launch(8, 40, 96, Config(2, 1, 2), out_fp32=out_fp32, xpad=apart)


def shapes(outputs: int = 1024) -> Iterator[Launch]:
    """Every tuned shape, 64 tokens, as often as it takes to see so many of its outputs."""
    for n, k, _ in table():
        for _ in range(blocks(outputs, MAX_TOKENS * n)):
            yield Launch(MAX_TOKENS, n, k, select(MAX_TOKENS, n, k))


def matrices(count: int = 400) -> Iterator[Launch]:
    """K of 4096 and more, many tokens, in configurations that no table holds."""
    draw = random.Random(0)
    for _ in range(count):
        m = draw.randint(MAX_TOKENS // 2, MAX_TOKENS)
        nb = blocks(m, TOKENS)
        nw, u = draw.randint(1, max_warps(nb, 1)), draw.choice(supported_trips(nb, 1))
        config = Config(nw, u, draw.randint(1, 4), nb)
        n, k = draw.randint(2048, 4096), draw.randint(4096, 8192)
        yield Launch(m, n, k, config, bias=draw.random() < 0.5)


def sizes() -> Iterator[Launch]:
    """More than 2^31 weights; more row blocks than gridDim.y could count."""
    yield Launch(3, 262208, 8224, Config(8, 1))
    for m, s in itertools.product((1, MAX_TOKENS), (1, 2)):
        yield Launch(m, 16 * 65536 + 16, 64, Config(2, 1, s, blocks(m, TOKENS)))
