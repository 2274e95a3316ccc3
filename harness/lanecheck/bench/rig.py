"""What a device must offer for the subject to be timed on it, and for that timing to be doubted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lanecheck.bench.timing import Chain, Launch, Sample

Bytes = npt.NDArray[np.uint8]

COLD_CHAIN, WARM_CHAIN, COLD_SINGLE = "cold chain", "warm chain", "cold single"


class Memory(Protocol):
    """A tensor's memory on a device."""

    @property
    def address(self) -> int:
        """Of its first byte."""

    @property
    def size(self) -> int:
        """In bytes."""

    @property
    def local(self) -> Bytes | None:
        """Itself, where the host can reach it."""

    def read(self) -> Bytes:
        """A copy of its bytes, once the timed launches have written to it: other work is not waited for."""

    def write(self, contents: Bytes) -> None:
        """Replace all its bytes, before whatever is launched after the next :meth:`Rig.settle`."""


class Rig(Protocol):
    """A device that times launches."""

    @property
    def library(self) -> Any:
        """What the subject's launches are given."""

    @property
    def l2_bytes(self) -> int:
        """Of its last cache before memory."""

    @property
    def methods(self) -> Mapping[str, str]:
        """What a time is of, in words, by :data:`COLD_CHAIN`, :data:`WARM_CHAIN` and :data:`COLD_SINGLE`."""

    def copies(self, size: int) -> int:
        """How many copies of ``size`` bytes of operands to rotate over for a cold L2."""

    def hold(self, contents: Bytes, copies: int) -> Sequence[Memory]:
        """So many copies of a tensor."""

    def chain(self, launches: Sequence[Launch]) -> Chain:
        """The launches back to back; of few launches, whole turns over them."""

    def single(self, before: Any, launch: Launch) -> Sample:
        """One launch alone, after ``before``, a chain of this rig, has made the L2 cold."""

    def enqueue(self, launch: Launch) -> None:
        """Launch it now, on the stream that is timed."""

    def settle(self) -> None:
        """Wait for all that was launched, on whatever stream. Raises what it died of."""

    def persisting_bytes(self) -> int | None:
        """Bytes of the L2 set aside for persisting accesses; None if nobody tells."""

    def held_back(self) -> Sequence[str]:
        """What holds the device back now; empty if nothing does."""
