"""Exercise 3: where in the packed array a lane's load starts."""

from __future__ import annotations

from packed_gemv import fragments as f
from packed_gemv.labs.exercises.forms import Tuples
from packed_gemv.labs.exercises.lookup import BF16, PACKED, UNIT, scaled, split, unit
from packed_gemv.labs.exercises.model import Exercise, Part, Sheet, mistake
from packed_gemv.labs.fragments import K, N

_RB, _KB, _STEP = 2, 5, 1
_ROW_BLOCKS, _K_BLOCKS = PACKED.shape[:2]
_PER_BLOCK = unit(0, 1, 0, 0)  # units of one (row block, K block)
_PER_STEP = unit(0, 0, 1, 0)


def sheet(lane: int) -> Sheet:
    """The questions for one lane."""
    return Sheet(
        f"Packed, W[{N}, {K}] is [row block, K block, step, lane, value], the value fastest: "
        f"{_ROW_BLOCKS} row blocks of {_K_BLOCKS} K blocks, two steps, {f.LANES} lanes, and "
        f"{UNIT} bytes a lane. The kernel sees it as an array of uint4, units of {UNIT} bytes. "
        f"Lane {lane} is about to load row block {_RB}, K block {_KB}, step {_STEP}.",
        (_units(lane), _bytes(lane), _stride()),
    )


def _units(lane: int) -> Part:
    g, t = split(lane)
    right = unit(_RB, _KB, _STEP, lane)
    block = _RB * _K_BLOCKS + _KB
    first_of_step = right - lane
    return Part(
        "How many units lie before the one it loads? This is its index in the uint4 array.",
        Tuples(("units",), one=True),
        (right,),
        f"Before row block {_RB}, K block {_KB} lie {_RB} · {_K_BLOCKS} + {_KB} = {block} blocks of "
        f"2 steps · {f.LANES} lanes = {_PER_BLOCK} units. Then {_STEP} step of {_PER_STEP}, then "
        f"{counted_lanes(lane)}: {block} · {_PER_BLOCK} + {_PER_STEP} + {lane} = {right}. "
        "Neighbouring lanes load neighbouring units, so the warp reads 32 · 16 = 512 bytes in one "
        "run.",
        f"Count (row block · {_K_BLOCKS} + K block) blocks, then the step, then the lane.",
        (
            mistake(
                "A (row block, K block) has two steps of 32 lanes: 64 units, not 32.",
                (block * _PER_STEP + lane,),
                (block * _PER_STEP + _PER_STEP * _STEP + lane,),
            ),
            mistake(
                "From step 0 to step 1 it is 32 units, one a lane. 64 lead to the next K block.",
                (block * _PER_BLOCK + _PER_BLOCK * _STEP + lane,),
            ),
            mistake(
                "That is step 0's load. Step 1 lies 32 units further.",
                (unit(_RB, _KB, 0, lane),),
            ),
            mistake(
                f"The row block is missing: {_RB} row blocks of {_K_BLOCKS} K blocks come before.",
                (unit(0, _KB, _STEP, lane),),
            ),
            mistake(
                "Row block and K block are exchanged: the K block runs faster, so that a warp that "
                "walks along K reads on and on.",
                ((_KB * _ROW_BLOCKS + _RB) * _PER_BLOCK + _PER_STEP + lane,),
                (unit(0, 0, _STEP, lane) + (_KB * _K_BLOCKS + _RB) * _PER_BLOCK,),
            ),
            mistake(
                f"A K block is {f.K_BLOCK} wide, two mma of 16: a row block has K / {f.K_BLOCK} = "
                f"{_K_BLOCKS} of them.",
                ((_RB * 2 * _K_BLOCKS + _KB) * _PER_BLOCK + _PER_STEP + lane,),
            ),
            mistake(
                f"That is where the warp's step starts. Lane {lane} reads {lane} units further.",
                (first_of_step,),
            ),
            mistake(
                "The lanes lie in order of their number, 4g + t.",
                (first_of_step + 8 * t + g,),
            ),
            mistake(
                f"That is in bytes, which is the next question. A unit is {UNIT} bytes.",
                (UNIT * right,),
            ),
            mistake(
                f"That is in elements. A unit is {UNIT} bytes, {UNIT // BF16} values.",
                (UNIT // BF16 * right,),
            ),
        ),
        "100",
    )


def counted_lanes(lane: int) -> str:
    """``13 lanes``, as units to skip."""
    return f"{lane} lane" if lane == 1 else f"{lane} lanes"


def _bytes(lane: int) -> Part:
    units = _units(lane)
    right = scaled(units.right, UNIT)
    values = scaled(units.right, UNIT // BF16)
    return Part(
        "And at which byte offset from the start of the packed array?",
        Tuples(("byte offset",), one=True),
        right,
        f"{units.right[0]} units of {UNIT} bytes: {units.right[0]} · {UNIT} = {right[0]}.",
        f"A unit is {UNIT} bytes.",
        (
            mistake(f"That is in units. Each has {UNIT} bytes.", units.right),
            mistake(f"That is in elements, of {BF16} bytes each.", values),
            *(
                mistake(each.hint, *(scaled(answer, UNIT) for answer in each.answers))
                for each in units.mistakes[:8]  # the last two are about the unit itself
            ),
        ),
        "1600",
    )


def _stride() -> Part:
    right = _PER_BLOCK * UNIT
    return Part(
        "The warp goes on to the next K block, same step. How many bytes further does each lane "
        "load?",
        Tuples(("bytes",), one=True),
        (right,),
        f"{_PER_BLOCK} units of {UNIT} bytes: the {_PER_STEP * UNIT} bytes of step 0 and the "
        f"{_PER_STEP * UNIT} of step 1. In between lies nothing that this warp does not read.",
        "How much do 32 lanes load for both steps?",
        (
            mistake(
                "That leads from step 0 to step 1. The next K block is two steps away.",
                (_PER_STEP * UNIT,),
                (_PER_STEP,),
            ),
            mistake(f"That is in units of {UNIT} bytes.", (_PER_BLOCK,)),
            mistake("That is from one lane to the next.", (UNIT,)),
        ),
        "100",
    )


OFFSET = Exercise("The address", "The byte offset of one load in the packed array.", sheet)
