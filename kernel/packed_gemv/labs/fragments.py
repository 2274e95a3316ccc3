"""Lab 2: what each lane loads, and that the emulated warps come to the right answer.

Run ``python -m packed_gemv.labs.fragments``. Part 1 reads the packed array: which weights lie in
each lane's 16 bytes. Part 2 computes ``x · Wᵀ`` with the emulator, in real arithmetic, from a
weight packed the same way. ``--break`` exchanges the two halves of x between the mma steps, and the
error becomes about 1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from packed_gemv import fragments as f
from packed_gemv.config import MAX_TOKENS, Config
from packed_gemv.emulator import Float64, Problem, bf16_bits, bf16_to_float64, emulate
from packed_gemv.labs import Parser, at_least_one, counted, runs, show
from packed_gemv.layout import PackedWeight, blocks, pack

N, K = 64, 512
_LANES_SHOWN = 6
_MOST_SLICES = 64
_BF16 = 2  # bytes

_Bits = npt.NDArray[np.uint16]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the lab; see the module's docstring."""
    parser = Parser(
        "packed_gemv.labs.fragments",
        "Lab 2: the packed layout, lane by lane.",
        "--m 13 --nw 8 --break",
    )
    parser.add_argument(
        "--break", action="store_true", dest="broken", help="exchange x's two halves"
    )
    parser.add_argument("--m", type=at_least_one, default=8, help="tokens (8)")
    parser.add_argument("--nw", type=at_least_one, default=4, help="warps in a CTA (4)")
    parser.add_argument("--u", type=at_least_one, default=4, help="K blocks in a trip (4)")
    parser.add_argument("--s", type=at_least_one, default=1, help="slices of K (1)")
    parser.add_argument("--dual", action="store_true", help="two weights over the same x")
    args = parser.parse_args(argv)
    if args.m > MAX_TOKENS:
        parser.error(f"argument --m: {args.m} tokens: the kernel takes 1 to {MAX_TOKENS}")
    if args.s > _MOST_SLICES:
        parser.error(f"argument --s: {args.s} slices: this lab takes 1 to {_MOST_SLICES}")
    try:
        config = Config(args.nw, args.u, args.s, blocks(args.m, f.TOKENS), args.dual)
    except ValueError as refusal:
        parser.error(str(refusal))
    show([*_what_lanes_load(), "", *_one_problem(args.m, config, args.broken)])
    return 0


# --- part 1


def _what_lanes_load() -> Iterator[str]:
    # A weight whose elements are their own positions, packed: the table is read off, not derived.
    packed = pack(np.arange(N * K).reshape(N, K))
    lanes = f"lanes 0-{_LANES_SHOWN - 1}"
    yield f"Part 1. What {lanes} load of the first K block of W[{N}, {K}]: (row, k)"
    yield ""
    yield "lane step  register 0        register 1        register 2        register 3"
    for lane in range(_LANES_SHOWN):
        for step in (0, 1):
            pairs = [divmod(int(position), K) for position in packed[0, 0, step, lane]]
            label = f"{lane:4}" if step == 0 else " " * 4
            registers = (f"{pairs[i]} {pairs[i + 1]}" for i in range(0, 8, 2))
            yield f"{label}{step:5}  " + "".join(f"{text:18}" for text in registers).rstrip()
    yield ""
    yield "Where a lane's first fragment lies, as byte offsets"
    yield "lane  row-major W: four loads of 4 bytes   packed: one load of 16 bytes"
    for lane in range(_LANES_SHOWN):
        natural = _BF16 * (f.A_ROW[lane] * K + f.A_SLOT[lane])[::2]
        places = ", ".join(f"{place:4}" for place in natural)
        yield f"{lane:4}  {places:36}{_offset(packed, 0, lane):6}"
    yield ""
    for step in (0, 1):
        offsets = [_offset(packed, step, lane) for lane in range(f.LANES)]
        assert np.array_equal(np.diff(offsets), np.full(f.LANES - 1, 16))
        first, end = offsets[0], offsets[-1] + 16
        yield f"Step {step}: the warp reads bytes {first}-{end - 1}, {end - first} contiguous bytes"


def _offset(packed: npt.NDArray[np.generic], step: int, lane: int) -> int:
    """Bytes from the start of the packed weight to a lane's load in the first K block."""
    return int(np.ravel_multi_index((0, 0, step, lane, 0), packed.shape)) * _BF16


# --- part 2


def _one_problem(m: int, config: Config, broken: bool) -> Iterator[str]:
    rng = np.random.default_rng(5)
    x = _values(rng, m)
    weights = [_values(rng, N) for _ in range(config.mats)]
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
    for i, (y, weight) in enumerate(zip(outputs, weights, strict=True)):
        expected = bf16_to_float64(x) @ bf16_to_float64(weight).T
        name = f"W{i}" if config.dual else "W"
        yield f"Relative Frobenius error against x @ {name}.T: {_error(y, expected):.1e}"


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
