"""Lab 2: what each lane holds and loads, and that the emulated warps come to the right answer.

Run ``python -m packed_gemv.labs.fragments``. Part 1 tells what each lane and register of
``mma.m16n8k16`` holds, which k that is, counted naturally and packed, and reads the packed array:
which weights lie in each lane's 16 bytes, and what other loads would cost. ``--picture`` draws it.
Part 2 computes ``x · Wᵀ`` with the emulator, in real arithmetic, from a weight packed the same way.
With an option for part 2, such as ``--m``, it comes alone. ``--break`` hands mma step 0 the part of x
that step 1 needs, and the reverse; the error becomes about 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from packed_gemv import fragments as f
from packed_gemv.config import MAX_TOKENS, Config
from packed_gemv.emulator import Float64, Problem, bf16_bits, bf16_to_float64, emulate
from packed_gemv.labs import Parser, at_least_one, counted, lanes, runs, show, terminal
from packed_gemv.labs.configs import Walk
from packed_gemv.labs.lanes import K as K
from packed_gemv.labs.lanes import N as N
from packed_gemv.layout import PackedWeight, blocks

EXAMPLE = 13  # the lane that a picture marks
_LANES_SHOWN = 6
_MOST_SLICES = 64

_Bits = npt.NDArray[np.uint16]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the lab; see the module's docstring."""
    parser = Parser(
        "packed_gemv.labs.fragments",
        "Lab 2: the packed layout, lane by lane.",
        "--m 13 --nw 8 --break",
    )
    parser.add_argument("--part", type=int, choices=(1, 2), help="print this part alone")
    parser.add_argument(
        "--picture",
        nargs="?",
        type=_lane,
        const=EXAMPLE,
        metavar="LANE",
        help=f"draw who holds what instead, with one lane marked ({EXAMPLE})",
    )
    walk = parser.add_argument_group("part 2, the walk (any of these prints part 2 alone)")
    walk.add_argument("--m", type=at_least_one, help="tokens (8)")
    walk.add_argument("--nw", type=at_least_one, help="warps in a CTA (4)")
    walk.add_argument("--u", type=at_least_one, help="K blocks in a trip (4)")
    walk.add_argument("--s", type=at_least_one, help="slices of K (1)")
    walk.add_argument("--dual", action="store_true", help="two weights over the same x")
    walk.add_argument(
        "--break",
        action="store_true",
        dest="broken",
        help="hand step 0 the x that step 1 needs, and the reverse",
    )
    args = parser.parse_args(argv)
    if args.picture is not None:
        lane = args.picture
        parts = (terminal.operands(lane), terminal.packed_axes(), terminal.reads(lane))
        terminal.show_lines([line for part in parts for line in (*part, [])][:-1])
        return 0
    m, nw, u, s = args.m or 8, args.nw or 4, args.u or 4, args.s or 1
    if m > MAX_TOKENS:
        parser.error(f"argument --m: {m} tokens: the kernel takes 1 to {MAX_TOKENS}")
    if s > _MOST_SLICES:
        parser.error(f"argument --s: {s} slices: this lab takes 1 to {_MOST_SLICES}")
    try:
        config = Config(nw, u, s, blocks(m, f.TOKENS), args.dual)
    except ValueError as refusal:
        uncompiled = str(refusal).startswith(f"u={u} is not compiled")
        parser.error(f"{refusal}{_nor_even(nw, u, s) if uncompiled else ''}")
    asked = any((args.m, args.nw, args.u, args.s, args.dual, args.broken))
    wanted = [args.part] if args.part else [2] if asked else [1, 2]
    lines: list[str] = []
    if 1 in wanted:
        lines += [*_what_lanes_hold(), "", *_what_lanes_load(), "", *_what_loads_cost()]
    if 2 in wanted:
        lines += [*([""] if lines else []), *_one_problem(m, config, args.broken)]
    show(lines)
    return 0


def _nor_even(nw: int, u: int, s: int) -> str:
    """That a walk which was not compiled would not be one of whole trips either; empty if it would."""
    walk = Walk(nw, u, s)
    if walk.is_even(K):
        return ""
    fewest, most = (len(walk.slices(K)[i]) for i in (-1, 0))
    share = (f"{fewest} or " if fewest < most else "") + counted(most, "block")
    options = (
        f"--k {K} --u {u}" + (f" --nw {nw}" if nw != 4 else "") + (f" --s {s}" if s > 1 else "")
    )
    return (
        f". Nor would {share} a warp make whole trips of {u}: "
        f"see python -m packed_gemv.labs.configs {options}"
    )


def _lane(text: str) -> int:
    if text.isdecimal() and int(text) < f.LANES:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a lane: 0 to {f.LANES - 1}")


# --- part 1


def _what_lanes_hold() -> Iterator[str]:
    yield "Part 1. What lanes hold of A (W), B (x) and C (y) in one mma.m16n8k16"
    yield ""
    yield "      A: row, slots                       B: slots, token   C: row, token"
    yield "lane  A0       A1       A2       A3       B0       B1       C0   C1   C2   C3"
    for lane in range(_LANES_SHOWN):
        a = [
            f"{f.A_ROW[lane, v]},{f.A_SLOT[lane, v]}-{f.A_SLOT[lane, v + 1]}"
            for v in range(0, 8, 2)
        ]
        b = [
            f"{f.B_SLOT[lane, v]}-{f.B_SLOT[lane, v + 1]},{f.B_COLUMN[lane, v]}"
            for v in range(0, 4, 2)
        ]
        c = [f"{f.D_ROW[lane, v]},{f.D_COLUMN[lane, v]}" for v in range(4)]
        columns = "".join(f"{text:9}" for text in a + b) + "".join(f"{text:5}" for text in c)
        yield f"{lane:4}  {columns.rstrip()}"
    yield ""
    yield "The k, inside its 32-wide block, that each slot stands for"
    yield "slot             " + _numbers(np.arange(f.SLOTS))
    for labelling in lanes.LABELLINGS:
        for step in (0, 1):
            name = f"{labelling}, step {step}"
            yield f"{name:17}" + _numbers(lanes.slot_k(labelling, step))


def _numbers(values: npt.NDArray[np.int64]) -> str:
    return "".join(f"{value:3}" for value in values.tolist())


def _what_lanes_load() -> Iterator[str]:
    # Of a weight whose elements are their own positions: the table is read off, not derived.
    packed = lanes.positions()
    shown = f"lanes 0-{_LANES_SHOWN - 1}"
    yield f"What {shown} load of the first K block of packed W[{N}, {K}]: (row, k)"
    yield ""
    yield "lane step  register 0        register 1        register 2        register 3"
    for lane in range(_LANES_SHOWN):
        for step in (0, 1):
            pairs = [divmod(int(position), K) for position in packed[0, 0, step, lane]]
            label = f"{lane:4}" if step == 0 else " " * 4
            registers = (f"{pairs[i]} {pairs[i + 1]}" for i in range(0, 8, 2))
            yield f"{label}{step:5}  " + "".join(f"{text:18}" for text in registers).rstrip()


def _what_loads_cost() -> Iterator[str]:
    yield "Where a lane's first fragment lies, as byte offsets"
    yield "lane  row-major W: four loads of 4 bytes   packed: one load of 16 bytes"
    offsets = lanes.packed_bytes(0, 0)
    rows, k = lanes.a_places("natural", 0)
    for lane in range(_LANES_SHOWN):
        pieces = lanes.pieces(lanes.row_major_bytes(rows, k)[lane])
        assert [length for _, length in pieces] == [4] * 4
        places = ", ".join(f"{start:4}" for start, _ in pieces)
        yield f"{lane:4}  {places:36}{offsets[lane]:6}"
    yield ""
    apart, packed = lanes.row_major_loads(0), lanes.packed_load(0)
    one, sectors = apart[0], f"{apart[0].sectors} sectors of {lanes.SECTOR} bytes"
    yield f"Row-major, a warp makes {len(apart)} loads. Each wants {one.wanted} bytes from {one.rows} rows"
    yield f"and touches {sectors}: {one.moved} bytes are moved."
    rows, k = (np.stack([lanes.a_places("packed", step)[i][0] for step in (0, 1)]) for i in (0, 1))
    both = lanes.pieces(sorted(lanes.row_major_bytes(rows, k).ravel().tolist()))
    assert [length for _, length in both] == [lanes.UNIT] * 2
    yield f"Relabelled in place, lane 0 needs {len(both)} pieces of {lanes.UNIT} bytes for both steps,"
    yield f"at bytes {' and '.join(str(start) for start, _ in both)}: wide loads, but still from two rows."
    yield f"Packed, it makes one, for {packed.wanted} bytes: {packed.sectors} sectors, all of them wanted."
    for step in (0, 1):
        offsets = lanes.packed_bytes(0, step)
        assert np.array_equal(np.diff(offsets), np.full(f.LANES - 1, lanes.UNIT))
        first, end = int(offsets[0]), int(offsets[-1]) + lanes.UNIT
        yield f"Step {step}: the warp reads bytes {first}-{end - 1}, {end - first} contiguous bytes"
    block = int(lanes.packed_bytes(1, 0)[0] - lanes.packed_bytes(0, 0)[0])
    yield f"The next K block is {block // lanes.UNIT} units of {lanes.UNIT} bytes further on"


# --- part 2


def _one_problem(m: int, config: Config, broken: bool) -> Iterator[str]:
    x, weights = operands(m, config.mats)
    read = halves_exchanged(x) if broken else x
    packed = tuple(PackedWeight.of(weight) for weight in weights)
    outputs = emulate(Problem(read, packed, (None,) * config.mats), config, Float64())

    yield f"Part 2. y = x W^T through the emulated warps: M = {m}, N = {N}, K = {K}"
    yield ""
    yield f"NB = {config.nb}: {counted(config.nb, 'block')} of 8 tokens; " + (
        f"{counted(config.mats, 'weight')}; a grid of {blocks(N, f.ROWS)} x {config.s} CTAs"
    )
    yield f"NW = {config.nw}, S = {config.s}, U = {config.u}: the K blocks of each warp"
    slices = config.slices(K)
    for s in range(min(config.s, 4)):
        parts = slices[s * config.nw : (s + 1) * config.nw]
        yield f"  slice {s}: " + (" | ".join(runs(list(p)) for p in parts if p) or "nothing")
    if config.s > 4:
        yield f"  and {counted(config.s - 4, 'more slice')}"
    if not config.is_even(K):
        yield "  (not even: blocks left over by the last whole trip go one by one)"
    yield ""
    if broken:
        yield "Broken: before the emulation, values 0-3 and 4-7 of every octet of x change"
        yield "places, so step 0 multiplies its weights by what belongs to step 1."
        yield "The fault swap-x-halves does this to the kernel's source, to the same bits."
    for i, (y, weight) in enumerate(zip(outputs, weights, strict=True)):
        expected = bf16_to_float64(x) @ bf16_to_float64(weight).T
        name = f"W{i}" if config.dual else "W"
        yield f"Relative Frobenius error against x @ {name}.T: {_error(y, expected):.1e}"


def operands(m: int, mats: int) -> tuple[_Bits, list[_Bits]]:
    """The lab's ``x [m, K]`` and its one or two weights ``[N, K]``."""
    rng = np.random.default_rng(5)
    return _values(rng, m), [_values(rng, N) for _ in range(mats)]


def _values(rng: np.random.Generator, rows: int) -> _Bits:
    """Normal values in BF16, every eighth or so 2^-24 smaller.

    Without the small ones every sum would fit float64 exactly, and the error would be 0 rather than
    float64's own 1e-16.
    """
    scale = np.where(rng.random((rows, K)) < 1 / 8, 2.0**-24, 1.0)
    return bf16_bits((rng.standard_normal((rows, K)) * scale).astype(np.float32))


def halves_exchanged(x: _Bits) -> _Bits:
    """``x`` with values 0-3 and 4-7 of every octet exchanged: each mma gets the other's."""
    return x.reshape(len(x), -1, 2, 4)[:, :, ::-1].reshape(x.shape)


def _error(y: npt.NDArray[np.float64], expected: npt.NDArray[np.float64]) -> float:
    return float(np.linalg.norm(y - expected) / np.linalg.norm(expected))


if __name__ == "__main__":
    sys.exit(main())
