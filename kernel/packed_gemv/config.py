"""The kernel's configuration: how one GEMV is cut into CTAs, warps and trips.

One place decides: the limits here are the ones ``csrc/gemv.cuh`` compiles (a test compares them), and
the tuned table in ``configs/`` is data that :func:`select` reads. It was tuned on an H200. On another
GPU the choice is as right, and may be slow: nothing here asks which GPU it is.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from packed_gemv.fragments import K_BLOCK, TOKENS
from packed_gemv.layout import blocks

MAX_TOKENS = 64
MAX_WARPS = 16
MAX_TILES = 32  # 512-byte tiles of the reduction in shared memory
FRAGMENT_REGISTERS = 80
TRIPS = (1, 2, 4, 8)  # the U that are compiled
MAX_SPLITS = 65535  # gridDim.y

_TABLES = Path(__file__).parent / "configs"


class UnevenError(ValueError):
    """A K that a configuration does not divide evenly."""


def max_warps(nb: int, mats: int) -> int:
    """Most warps a CTA can have with ``nb`` token blocks and ``mats`` matrices (1 or 2)."""
    warps = MAX_WARPS
    while warps * nb * mats > MAX_TILES:
        warps //= 2
    return warps


def supported_trips(nb: int, mats: int) -> tuple[int, ...]:
    """The U that are compiled: ``mats * (8 U + 4 nb)`` registers hold fragments, at most 80."""
    return tuple(u for u in TRIPS if mats * (8 * u + 4 * nb) <= FRAGMENT_REGISTERS)


@dataclass(frozen=True)
class Config:
    """How one launch walks.

    Attributes:
        nw: warps in a CTA; they share a slice of K.
        u: 32-wide K blocks that a warp requests before it uses the first; changes no bit.
        s: slices of K (split-K), added in order.
        nb: blocks of 8 tokens, ceil(M / 8).
        dual: two weights over the same x.

    Raises:
        ValueError: if no kernel was compiled for this combination; the message names the limit.
    """

    nw: int
    u: int
    s: int = 1
    nb: int = 1
    dual: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.nb <= MAX_TOKENS // TOKENS:
            raise ValueError(f"nb is 1 to {MAX_TOKENS // TOKENS}, not {self.nb}")
        if not 1 <= self.nw <= max_warps(self.nb, self.mats):
            raise ValueError(
                f"nw={self.nw} is not in 1…{max_warps(self.nb, self.mats)}: with nb={self.nb} and "
                f"{self.mats} matrices the reduction has {MAX_TILES} tiles of shared memory"
            )
        trips = supported_trips(self.nb, self.mats)
        if self.u not in TRIPS:
            raise ValueError(f"u={self.u} is not compiled; choose one of {trips}")
        if self.u not in trips:
            raise ValueError(
                f"u={self.u} needs too many registers with nb={self.nb} and {self.mats} matrices; "
                f"choose one of {trips}"
            )
        if not 1 <= self.s <= MAX_SPLITS:
            raise ValueError(f"s is 1 to {MAX_SPLITS}, not {self.s}")

    @property
    def mats(self) -> int:
        return 2 if self.dual else 1

    def slices(self, k: int) -> list[range]:
        """The K blocks of each (slice, warp), in the order in which their sums are added.

        An even share each, the first ones taking one block more where K/32 does not divide.

        Returns:
            ``s * nw`` consecutive ranges that cover 0…ceil(k/32)-1.
        """
        count, parts = blocks(k, K_BLOCK), self.s * self.nw
        share, extra = divmod(count, parts)
        starts = [part * share + min(part, extra) for part in range(parts + 1)]
        return [range(a, b) for a, b in itertools.pairwise(starts)]

    def require_even(self, k: int) -> None:
        """Check that every warp makes only whole trips, as a kernel without remainder trips would need.

        Raises:
            UnevenError: naming the first rule that fails.
        """
        if k % K_BLOCK:
            raise UnevenError(f"K={k} is not a multiple of {K_BLOCK}")
        count = k // K_BLOCK
        for name, parts in (("S", self.s), ("S·NW", self.s * self.nw)):
            if count % parts:
                raise UnevenError(
                    f"K/32 = {count} blocks do not split into {name} = {parts} equal shares"
                )
        share = count // (self.s * self.nw)
        if share % self.u:
            raise UnevenError(
                f"{share} K blocks a warp (K/32 = {count} over S·NW = {self.s * self.nw}) do not "
                f"split into trips of U = {self.u}: the last trip would read past the warp's share"
            )

    def is_even(self, k: int) -> bool:
        """Whether :meth:`require_even` would pass."""
        try:
            self.require_even(k)
        except UnevenError:
            return False
        return True


@cache
def _table(dual: bool) -> dict[tuple[int, int], tuple[int, int, int]]:
    rows = json.loads((_TABLES / "sm_90a.json").read_text())["dual" if dual else "single"]
    return {(n, k): (nw, u, s) for n, k, nw, u, s in rows}


def table(dual: bool = False) -> Iterator[tuple[int, int, Config]]:
    """Every tuned entry as (N, K, Config at M = 1): of ``configs/sm_90a.json``, tuned on an H200 for one
    weight. Two weights have none."""
    for (n, k), (nw, u, s) in _table(dual).items():
        yield n, k, Config(nw, u, s, dual=dual)


def select(m: int, n: int, k: int, dual: bool = False, batch_invariant: bool = False) -> Config:
    """The configuration for a shape: the tuned table's entry, or a rule of thumb for the rest.

    Both are for every GPU, and the entries were tuned on an H200: elsewhere, tune a shape that matters and
    pass a :class:`Config` of your own.

    A token's bits depend on (K, NW, S) alone, not on the tokens beside it. But fewer warps fit where M
    is large (:func:`max_warps`), so by default NW, and with it the bits, may change with M.
    ``batch_invariant`` takes, for every M, the warps that fit 64 tokens: the same bits for 1 token as
    for 64, at some cost in bandwidth where a table entry has more.

    Args:
        m: tokens, 1…64. n, k: logical sizes of the weight. dual: two weights.
        batch_invariant: ignore M, but for U, which changes no bit; so what is chosen for one M serves
            every other, by :func:`for_tokens`.

    Raises:
        ValueError: if a size is out of range.
    """
    if not 1 <= m <= MAX_TOKENS:
        raise ValueError(f"m={m} tokens: the kernel takes 1 to {MAX_TOKENS}")
    if n < 1 or k < 1:
        raise ValueError(f"n={n}, k={k}: both are at least 1")
    nw, u, s = _table(dual).get((n, k)) or _rule_of_thumb(k)
    if batch_invariant:
        nw = min(nw, max_warps(MAX_TOKENS // TOKENS, 2 if dual else 1))
    return fitted(nw, u, s, blocks(m, TOKENS), dual)


def fitted(nw: int, u: int, s: int, nb: int, dual: bool) -> Config:
    """The nearest configuration compiled for ``nb`` token blocks: no more warps, no longer trips."""
    mats = 2 if dual else 1
    u = max(t for t in supported_trips(nb, mats) if t <= u)
    return Config(min(nw, max_warps(nb, mats)), u, s, nb, dual)


def _rule_of_thumb(k: int) -> tuple[int, int, int]:
    # Eight warps, long trips, and fewer of both for a K too short to feed them.
    count = blocks(k, K_BLOCK)
    even = [
        config
        for nw in (8, 4, 2, 1)
        for u in (8, 4, 2, 1)
        if (config := Config(nw, u)).is_even(k) and nw * u <= count
    ]
    best = max(even, key=lambda c: (min(c.nw * c.u, 32), c.nw), default=None)
    if best is not None and best.nw * best.u >= min(16, count):
        return best.nw, best.u, best.s
    return min(8, count), 4, 1


def for_tokens(config: Config, m: int) -> Config:
    """``config`` with the token blocks of ``m`` tokens, and no longer trips than are compiled for them.

    So its bits: U changes none, and NW and S stay.

    Raises:
        ValueError: if its warps do not fit so many tokens.
    """
    nb = blocks(m, TOKENS)
    longest = max(supported_trips(nb, config.mats), default=config.u)
    return replace(config, u=min(config.u, longest), nb=nb)
