"""What a device must offer for the subject to be timed on it, and for that timing to be doubted.

Operands are drawn, packed and compared where they lie: through the host, gigabytes of weights would
take longer than all that is timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lanecheck.bench.timing import Chain, Launch, Sample
from lanecheck.cases import Case
from lanecheck.subject import Buffer, Product, Subject, Tensor

COLD_CHAIN, WARM_CHAIN, COLD_SINGLE = "cold chain", "warm chain", "cold single"

Array = Any
"""Bits of elements where the rig computes: a numpy array as :class:`~lanecheck.subject.Tensor` has it, or a
torch tensor of signed integers that are as wide."""


class Held(Protocol):
    """Copies of one tensor, in memory of the device."""

    @property
    def addresses(self) -> Sequence[int]:
        """Of each copy's aligned base."""

    @property
    def size(self) -> int:
        """Bytes from a copy's base to its end."""

    @property
    def elements(self) -> Array:
        """Those of all copies, [copies, \\*shape], in place. What changes them is done before whatever is
        launched after the next :meth:`Rig.settle`."""

    def buffer(self, index: int) -> Buffer:
        """Where one copy's elements lie."""

    def read(self) -> Array:
        """The elements as they are once the timed launches have written to them: other work is not waited
        for."""


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

    def draw(self, subject: Subject, case: Case) -> Mapping[str, Array]:
        """The values of a case's inputs, by name: of regime ``small`` or ``normal``, from its seed."""

    def summed(self, product: Product, values: Mapping[str, Array]) -> Array:
        """A product's output [M, N], summed in float64 and not rounded."""

    def stored(self, total: Array, output: Tensor) -> Array:
        """The bits of float64 values that are rounded once."""

    def values(self, bits: Array, output: Tensor) -> Array:
        """What bits stand for, in float64."""

    def poison(self, tensor: Tensor) -> int:
        """The element that no kernel computes."""

    def copies(self, size: int) -> int:
        """How many copies of ``size`` bytes of operands to rotate over for a cold L2."""

    def hold(self, tensor: Tensor, values: Array | None, copies: int) -> Held:
        """So many copies of a tensor, all of them zeros if there are no values."""

    def chain(self, launches: Sequence[Launch], turns: int | None = None) -> Chain:
        """So many whole turns over the launches, back to back; of few launches, as many as it takes to time
        them."""

    def single(self, before: Any, launch: Launch) -> Sample:
        """One launch alone, after ``before``, a chain of this rig, has made the L2 cold."""

    def enqueue(self, launch: Launch) -> None:
        """Launch it now, on the stream that is timed."""

    def least(self) -> Launch | None:
        """The least that can be launched, and none of the subject's: how long a chain of it takes tells in
        which state the device launches. None where that tells nothing."""

    def settle(self) -> None:
        """Wait for all that was launched, on whatever stream. Raises what it died of."""

    def persisting_bytes(self) -> int | None:
        """Bytes of the L2 set aside for persisting accesses beyond what the device sets aside by itself;
        None if nobody tells."""

    def persisting_launches(self, chain: Any) -> int | None:
        """Launches of a chain of this rig that ask the L2 to keep what they read; None if nobody tells."""
