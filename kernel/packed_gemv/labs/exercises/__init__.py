"""The exercises, from easy to hard; ``python -m packed_gemv.labs.exercise`` asks and checks them."""

from __future__ import annotations

from packed_gemv.labs.exercises.invert import INVERT
from packed_gemv.labs.exercises.model import Coding, Exercise
from packed_gemv.labs.exercises.natural import NATURAL
from packed_gemv.labs.exercises.offset import OFFSET
from packed_gemv.labs.exercises.packed import PACKED_LOAD
from packed_gemv.labs.exercises.slots import SLOTS
from packed_gemv.labs.exercises.tokens import TOKENS
from packed_gemv.labs.exercises.walk import WALK
from packed_gemv.labs.exercises.write_pack import WRITE_PACK

#: In the order of their numbers, from 1.
EXERCISES: tuple[Exercise | Coding, ...] = (
    NATURAL,
    PACKED_LOAD,
    OFFSET,
    SLOTS,
    TOKENS,
    WALK,
    WRITE_PACK,
    INVERT,
)
