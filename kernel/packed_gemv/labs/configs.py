"""Lab 0: how a configuration cuts K, whether that divides evenly, and what happens if it does not.

Run ``python -m packed_gemv.labs.configs``. With ``--k``, ``--s``, ``--nw`` or ``--u`` it follows
one walk through K block by block; ``--u 3`` is the one to try. ``--picture`` draws the walk. ``--all``
lists the whole tuned table.
"""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from packed_gemv.config import MAX_TOKENS, Config, UnevenError, select, table
from packed_gemv.fragments import K_BLOCK, TOKENS
from packed_gemv.labs import WIDTH, Parser, at_least_one, counted, runs, show, terminal
from packed_gemv.layout import blocks

#: Linear layers of published models, as (N, K).
SHAPES = {
    "Llama-3.2-1B qkv": (3072, 2048),
    "Llama-3.1-8B qkv": (6144, 4096),
    "Llama-3.1-8B gate_up": (28672, 4096),
    "Llama-3.1-8B down": (4096, 14336),
    "Llama-3.1-8B lm_head": (128256, 4096),
    "Llama-3.1-70B down": (8192, 28672),
    "Qwen2.5-0.5B o": (896, 896),
    "Qwen3-8B down": (4096, 12288),
    "Gemma-2-27B gate_up": (73728, 4608),
    "DeepSeek-V3 kv_b": (32768, 512),
    "Mixtral-8x7B router": (8, 4096),
    "MiniLM pooler": (384, 384),
    "SigLIP fc2": (1152, 4304),
}
_SHOWN = 8  # warps listed one by one


class Walk(Config):
    """A configuration that need not have been compiled: the arithmetic of the walk is the same."""

    def __post_init__(self) -> None:
        if min(self.nw, self.u, self.s) < 1:
            raise ValueError(f"nw={self.nw}, u={self.u}, s={self.s}: all are at least 1")

    @property
    def parts(self) -> int:
        """Warps that share K."""
        return self.s * self.nw


def whole_trips(config: Config, k: int) -> list[range]:
    """The K blocks each warp would read if it made whole trips only, its share found by division.

    The plainest kernel does this: KBS = K/32/S blocks a slice, KBW = KBS/NW a warp, and trips of U
    until KBW is reached. For a K of whole blocks it agrees with :meth:`Config.slices` exactly when
    the split is even.
    """
    a_slice = k // K_BLOCK // config.s
    a_warp = a_slice // config.nw
    reach = blocks(a_warp, config.u) * config.u
    starts = [i * a_slice + w * a_warp for i in range(config.s) for w in range(config.nw)]
    return [range(start, start + reach) for start in starts]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the lab; see the module's docstring."""
    parser = Parser(
        "packed_gemv.labs.configs", "Lab 0: how a configuration cuts K.", "--k 512 --u 3"
    )
    parser.add_argument(
        "--m", type=at_least_one, default=1, help="tokens that select() is asked for"
    )
    parser.add_argument("--dual", action="store_true", help="two weights over the same x")
    parser.add_argument("--all", action="store_true", help="list the tuned table as well")
    one = parser.add_argument_group("one walk, block by block (any of these shows it)")
    one.add_argument("--k", type=at_least_one, help="columns of the weight (512)")
    one.add_argument("--s", type=at_least_one, help="slices of K (1)")
    one.add_argument("--nw", type=at_least_one, help="warps in a CTA (4)")
    one.add_argument("--u", type=at_least_one, help="K blocks in a trip (4)")
    one.add_argument("--picture", action="store_true", help="as a picture, a column a block")
    args = parser.parse_args(argv)
    if args.m > MAX_TOKENS:
        parser.error(f"argument --m: {args.m} tokens: the kernel takes 1 to {MAX_TOKENS}")

    if not args.picture and all(v is None for v in (args.k, args.s, args.nw, args.u)):
        lines = _tables(args.m, args.dual, args.all)
    else:
        k = args.k or 512
        walk = Walk(args.nw or 4, args.u or 4, args.s or 1, blocks(args.m, TOKENS), args.dual)
        for name, value, most in (("K", k, 1 << 20), ("S·NW", walk.parts, 4096), ("U", walk.u, 64)):
            if value > most:
                parser.error(f"{name} = {value}: this lab follows walks up to {name} = {most}")
        if args.picture:
            try:
                terminal.show_lines(list(terminal.walk(walk, k)))
            except ValueError as refusal:
                parser.error(str(refusal))
            return 0
        lines = _one_walk(walk, k)
    show(lines)
    return 0


def _tables(m: int, dual: bool, every: bool) -> Iterator[str]:
    yield "Lab 0. Each of S·NW warps takes a share of the K/32 blocks, in trips of U."
    yield ""
    yield f"What select() chooses at M = {m}"
    yield from _rows([(name, n, k, select(m, n, k, dual)) for name, (n, k) in SHAPES.items()])
    yield ""
    tuned = [("", n, k, config) for n, k, config in table(dual)]
    which, size = "two weights" if dual else "one weight", counted(len(tuned), "shape")
    hidden = tuned and not every
    yield f"The tuned table for {which}: {size}" + (", listed by --all" if hidden else "")
    if tuned and every:
        yield from _rows(tuned)
    yield ""
    yield "An uneven K is no error here: some warps take a block more, and blocks left"
    yield "over by the last whole trip go one by one. To see why it matters: --k 512 --u 3"


def _rows(entries: list[tuple[str, int, int, Config]]) -> Iterator[str]:
    yield f"  {'':21}{'N':>7}{'K':>6}{'K/32':>6}{'S':>3}{'NW':>4}{'U':>3}  {'a warp':<14}even"
    for name, n, k, config in entries:
        shares = sorted({len(part) for part in config.slices(k)})
        warp = _trips(shares[0], config.u) if len(shares) == 1 else f"{shares[0]} or {shares[1]}"
        even = "yes" if config.is_even(k) else "no"
        yield (
            f"  {name:21}{n:7}{k:6}{blocks(k, K_BLOCK):6}{config.s:3}{config.nw:4}{config.u:3}"
            f"  {warp:<14}{even}"
        )


def _trips(share: int, u: int) -> str:
    whole, rest = divmod(share, u)
    return f"{share} = {whole}·{u}" + (f" + {rest}" if rest else "")


def _one_walk(walk: Walk, k: int) -> Iterator[str]:
    count, warps = blocks(k, K_BLOCK), counted(walk.parts, "warp")
    sizes = f"K = {k}, S = {walk.s}, NW = {walk.nw}, U = {walk.u}"
    yield f"{sizes}: {counted(count, 'K block')}, {warps}"
    yield ""
    try:
        walk.require_even(k)
    except UnevenError as uneven:
        yield "require_even says:"
        yield from _wrapped(f"  UnevenError: {uneven}")
        yield ""
        yield from _what_would_go_wrong(walk, k)
    else:
        trips = counted(count // walk.parts // walk.u, "trip")
        yield f"Divides evenly: {count} blocks over {warps}, {trips} of {walk.u} each."
    yield ""
    yield "This kernel takes whole trips, then what is left block by block:"
    yield from _warp_by_warp([_kernel_trips(part, walk.u) for part in walk.slices(k)])
    yield "Every block is counted once."
    try:
        Config(walk.nw, walk.u, walk.s, walk.nb, walk.dual)
    except ValueError as refusal:
        yield ""
        yield "The walk is right for any U and NW, but not every one is compiled:"
        yield from _wrapped(f"  {refusal}")


def _what_would_go_wrong(walk: Walk, k: int) -> Iterator[str]:
    if k % K_BLOCK:
        columns = counted(k % K_BLOCK, "column")
        yield f"The last block has {columns} only: a plain reshape has no place"
        yield "for it. Here the weight is padded with zeros, and x beyond K counts as 0."
        return
    count, read = k // K_BLOCK, whole_trips(walk, k)
    times = Counter(block for part in read for block in part)
    yield "A kernel that makes whole trips only would read:"
    yield from _warp_by_warp([_whole(part, walk.u) for part in read])
    for effect, found in (
        ("Counted more than once", [b for b in range(count) if times[b] > 1]),
        ("Read beyond the last block", sorted(b for b in times if b >= count)),
        ("Never read", [b for b in range(count) if not times[b]]),
    ):
        if found:
            yield from _wrapped(f"{effect}: {runs(found)}")


def _whole(part: range, u: int) -> list[str]:
    return [runs(list(part[i : i + u])) for i in range(0, len(part), u)]


def _kernel_trips(part: range, u: int) -> list[str]:
    whole = len(part) // u * u
    return _whole(part[:whole], u) + [f"{block} alone" for block in part[whole:]]


def _warp_by_warp(trips: list[list[str]]) -> Iterator[str]:
    for warp in range(len(trips)):
        if len(trips) <= _SHOWN or warp < _SHOWN - 2 or warp == len(trips) - 1:
            yield f"  warp {warp}: {' | '.join(_ends(trips[warp], 4)) or 'nothing'}"
        elif warp == _SHOWN - 2:
            yield "  …"


def _ends(items: list[str], most: int) -> list[str]:
    """All of a short list; the first and the last of a long one."""
    return items if len(items) <= most else [*items[: most - 2], "…", *items[-2:]]


def _wrapped(text: str) -> list[str]:
    """``text`` in three lines at most."""
    return textwrap.wrap(text, WIDTH - 1, subsequent_indent="  ", max_lines=3, placeholder=" …")


if __name__ == "__main__":
    sys.exit(main())
