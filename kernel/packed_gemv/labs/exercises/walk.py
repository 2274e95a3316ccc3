"""Exercise 6: which K blocks a warp reads, and what trips of three would do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from packed_gemv import fragments as f
from packed_gemv.config import TRIPS, Config
from packed_gemv.labs import runs
from packed_gemv.labs.configs import Walk, whole_trips
from packed_gemv.labs.exercises.forms import Answer, Tuples
from packed_gemv.labs.exercises.model import Exercise, Part, Sheet, choice, mistake

_CONFIG = Config(nw=4, u=2, s=2)
_SLICE, _WARP = 1, 2
_PART = _SLICE * _CONFIG.nw + _WARP
_PARTS = _CONFIG.s * _CONFIG.nw
_EVEN, _UNEVEN = 1024, 1120  # columns
_THREES, _SHORT = Walk(nw=4, u=3), 512
_FORM = Tuples(("K block",), ordered=False)


def sheet(lane: int) -> Sheet:
    """The questions; all lanes of a warp walk together."""
    return Sheet(
        f"S = {_CONFIG.s} slices of K, NW = {_CONFIG.nw} warps in each. The warps take consecutive "
        "runs of K blocks, all of slice 0 first. If they do not divide, the first warps take one "
        "block more each.",
        (_even(), _uneven(), _twice(), _remainder()),
    )


def _even() -> Part:
    blocks = _EVEN // f.K_BLOCK
    share = blocks // _PARTS
    right = _CONFIG.slices(_EVEN)[_PART]
    other = _WARP * _CONFIG.s + _SLICE
    return Part(
        f"K = {_EVEN}. Which K blocks does warp {_WARP} of slice {_SLICE} read? (Both count from 0.)",
        _FORM,
        tuple(right),
        f"{blocks} blocks over {_CONFIG.s} · {_CONFIG.nw} = {_PARTS} warps: {share} each. Before it "
        f"come {_SLICE} · {_CONFIG.nw} + {_WARP} = {_PART} warps, so it starts at block "
        f"{right.start}. In its packed rows that is one run of {len(right)} · 1024 bytes.",
        f"K / {f.K_BLOCK} blocks, an equal share for each of S · NW warps.",
        (
            mistake(
                "Slice and warp are exchanged: slice s starts after s · NW warps, not w · S + s.",
                tuple(range(other * share, (other + 1) * share)),
            ),
            mistake(
                "The slice is missing: all warps of slice 0 come before.",
                tuple(range(_WARP * share, (_WARP + 1) * share)),
                tuple(range(_WARP * 2 * share, (_WARP + 1) * 2 * share)),
            ),
            mistake(
                "The warps do not take turns: each reads a run of neighbouring blocks.",
                tuple(range(_PART, blocks, _PARTS)),
                tuple(range(_SLICE * blocks // 2 + _WARP, blocks, _CONFIG.nw)),
            ),
            mistake(
                f"Those are columns. A K block is {f.K_BLOCK} of them.",
                tuple(range(right.start * f.K_BLOCK, right.stop * f.K_BLOCK)),
            ),
            mistake(f"One too many: a warp has {share} blocks.", (*right, right.stop)),
            mistake(
                f"A K block is {f.K_BLOCK} wide, not 16: two mma share it.",
                tuple(range(2 * right.start, 2 * right.stop)),
            ),
            mistake(
                "Slices and warps count from 0.",
                tuple(range((_WARP - 1) * share, _WARP * share)),
            ),
        ),
        "0-7",
    )


def _uneven() -> Part:
    blocks = _UNEVEN // f.K_BLOCK
    share, extra = divmod(blocks, _PARTS)
    right = _CONFIG.slices(_UNEVEN)[_PART]
    by_slice = blocks // _CONFIG.s
    by_warp = by_slice // _CONFIG.nw
    rounded = by_slice * _SLICE + by_warp * _WARP
    return Part(
        f"K = {_UNEVEN}. Which does it read now?",
        _FORM,
        tuple(right),
        f"{blocks} = {_PARTS} · {share} + {extra}: the first {extra} warps take {share + 1}, the "
        f"others {share}. Before warp {_WARP} of slice {_SLICE} lie {_PART} · {share} + {extra} = "
        f"{right.start} blocks. It makes {len(right) // _CONFIG.u} trips of U = {_CONFIG.u}.",
        f"{blocks} blocks over {_PARTS} warps, and the first ones take one more.",
        (
            mistake(
                f"The {extra} blocks left over went to the first warps, so this one starts later.",
                tuple(range(_PART * share, (_PART + 1) * share)),
            ),
            mistake(
                f"Not everyone takes {share + 1}: only the first {extra} warps do.",
                tuple(range(_PART * (share + 1), (_PART + 1) * (share + 1))),
            ),
            mistake(
                f"It starts there, but is not one of the first {extra}: it takes {share}.",
                tuple(range(right.start, right.stop + 1)),
            ),
            mistake(
                "Rounding down twice, for the slice and then for the warp, leaves blocks that no "
                "warp reads. The remainder is shared out over all warps.",
                tuple(range(rounded, rounded + by_warp)),
            ),
        ),
        "0-7",
    )


def _twice() -> Part:
    read = whole_trips(_THREES, _SHORT)
    count = _SHORT // f.K_BLOCK
    own = _THREES.slices(_SHORT)
    times = Counter(block for part in read for block in part)
    right = _those(b for b in range(count) if times[b] > 1)
    beyond = _those(b for b in times if b >= count)
    return Part(
        f"Another kernel makes whole trips only. K = {_SHORT}, S = 1, NW = {_THREES.nw}, "
        f"U = {_THREES.u}: each warp starts at its share of {len(own[0])} blocks and makes trips of "
        f"{_THREES.u} until that is done. Which blocks are counted twice?",
        _FORM,
        right,
        f"Two trips of {_THREES.u} are {len(read[0])} blocks, {len(read[0]) - len(own[0])} more than "
        f"the share: warp 0 reads {runs(list(read[0]))}, warp 1 {runs(list(read[1]))}, and so on. "
        f"The last warp even reads {runs(list(beyond))}, beyond K. To see it:\n"
        "  python -m packed_gemv.labs.configs --u 3",
        "Write down what each of the four warps reads, then look for what two of them read.",
        (
            mistake(
                f"Blocks {runs(list(beyond))} are read, but once: they are beyond K, where there "
                "is no weight at all. Worse, but not twice.",
                right + beyond,
            ),
            mistake(
                "That is all that warp 0 reads. Its first share is its own; twice are the blocks "
                "that warp 1 reads as well.",
                tuple(read[0]),
            ),
            mistake(
                "That is warp 0's excess. Warps 1 and 2 do the same.",
                _those(set(read[0]) & set(read[1])),
            ),
            mistake(
                "Those are what a second trip would still have to read. It is a whole trip, though, "
                "and reads three.",
                _those(part[-1] for part in own),
            ),
            mistake(
                "A trip goes on past the share by two blocks, not by one.",
                _those(part.start for part in own[1:]),
            ),
        ),
        "0-3",
    )


def _remainder() -> Part:
    return choice(
        "The kernel of this package is right for any K. How?",
        (
            "A trip that would pass the share multiplies the blocks too many by zero.",
            "It would still have to read them, beyond the end of W for the last warp.",
        ),
        (
            "It makes whole trips while they fit, and takes the blocks left over one by one.",
            "",
        ),
        (
            "It chooses the largest U that divides the share.",
            "U is compiled in, because its registers are; a share of 5 would get U = 1. It keeps U "
            "and treats the rest apart.",
        ),
        (
            "A warp hands the blocks left over to the next warp.",
            "The shares are fixed by K, S and NW: no warp knows of another until the reduction.",
        ),
        why="for (; i + U <= KBW; i += U), then for (; i < KBW; i++): the second loop is a trip of one. "
        f"U is one of {', '.join(map(str, TRIPS))}, and changes no bit of the result: each warp adds "
        "its blocks in the same order.",
    )


def _those(blocks: Iterable[int]) -> Answer:
    return tuple(sorted(blocks))


WALK = Exercise("The walk", "Which K blocks a warp reads, and what U = 3 would do.", sheet)
