"""This machine's CPU, as a :class:`~lanecheck.bench.rig.Rig`: the whole machinery where there is no GPU.

How long the CPU takes to play a GPU says nothing of a GPU.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lanecheck import simt
from lanecheck.bench import timing
from lanecheck.bench.rig import COLD_CHAIN, COLD_SINGLE, WARM_CHAIN
from lanecheck.bench.timing import Launch, Sample
from lanecheck.cases import Case
from lanecheck.errors import CannotRun
from lanecheck.observation import POISON
from lanecheck.subject import Bits, Buffer, Product, Subject, Tensor
from lanecheck.tensorcore import model_for
from lanecheck.trial import draw_inputs
from lanecheck.values import real_values, rounded_bits

Floats = npt.NDArray[np.float64]
SAYS_NOTHING = "host execution: this exercises the gate, and says nothing of a GPU"
METHODS = {
    COLD_CHAIN: "launches back to back on the CPU, rotating buffers, cold cache",
    WARM_CHAIN: "launches back to back on the CPU over one copy, warm cache",
    COLD_SINGLE: "one launch on the CPU, after a cold chain",
}
L2_BYTES = 32 << 10
"""The cache that a comparison's copies are to leave: a small one, as it only exercises the gate."""
LONG_ENOUGH = 2e3
"""Microseconds that a chain takes, at least: a clock's tick, and the call of it, become noise."""
_LINE = 64  # bytes of a cache line, to which operands are aligned
_STREAM = 0


class HostHeld:
    """A :class:`~lanecheck.bench.rig.Held`: one block of memory."""

    def __init__(self, block: npt.NDArray[np.uint8], tensor: Tensor) -> None:
        item = tensor.item.itemsize
        self._offset, self.size = tensor.offset * item, tensor.span * item
        self.addresses = [copy.ctypes.data for copy in block]
        self.elements: Bits = np.lib.stride_tricks.as_strided(
            one := tensor.view(block[0]),
            (len(block), *one.shape),
            (block.strides[0], *one.strides),
        )

    def buffer(self, index: int) -> Buffer:
        return Buffer(self.addresses[index] + self._offset, self.elements[index])

    def read(self) -> Bits:
        return self.elements.copy()


class HostChain:
    """A :class:`~lanecheck.bench.timing.Chain` of launches that are over when they return."""

    def __init__(self, launches: Sequence[Launch], turns: int = 1) -> None:
        self._launches, self._turns = launches, turns
        self.launches = turns * len(launches)

    def enqueue(self) -> None:
        for _ in range(self._turns):
            for launch in self._launches:
                launch(_STREAM)

    def time(self) -> float:
        return _took(self.enqueue)


class HostRig:
    """
    Args:
        library: a host build, or None for a subject that is a callable.
        capability: whose tensor core it computes with.
        l2_bytes: the cache that counts as the L2.
    """

    def __init__(self, library: Path | None, capability: str, l2_bytes: int = L2_BYTES) -> None:
        self._library = simt.HostLibrary(library) if library else None
        self.library: Any = self._library.cdll if self._library else None
        if self._library:
            self._library.configure(model=model_for(capability).name)
        self.l2_bytes = l2_bytes
        self.methods = METHODS

    def draw(self, subject: Subject, case: Case) -> dict[str, Bits]:
        return draw_inputs(subject, case)

    def summed(self, product: Product, values: Mapping[str, Bits]) -> Floats:
        total: Floats = real_values(values[product.x]) @ real_values(values[product.w]).T
        return total + real_values(values[product.bias]) if product.bias else total

    def stored(self, total: Floats, output: Tensor) -> Bits:
        return rounded_bits(total, output.item)

    def values(self, bits: Bits, output: Tensor) -> Floats:
        return real_values(bits)

    def poison(self, tensor: Tensor) -> int:
        return POISON[0][tensor.dtype]

    def copies(self, size: int) -> int:
        return timing.copies(size, self.l2_bytes, rotation=0)

    def hold(self, tensor: Tensor, values: Bits | None, copies: int) -> HostHeld:
        apart = -(-tensor.span * tensor.item.itemsize // _LINE) * _LINE
        room = np.zeros(copies * apart + _LINE, np.uint8)
        start = -room.ctypes.data % _LINE
        held = HostHeld(room[start : start + copies * apart].reshape(copies, apart), tensor)
        if values is not None:
            held.elements[...] = values
        return held

    def chain(self, launches: Sequence[Launch], turns: int | None = None) -> HostChain:
        if turns is not None:
            return HostChain(launches, turns)
        once = HostChain(launches)
        once.enqueue()
        return HostChain(launches, max(1, round(1.2 * LONG_ENOUGH / once.time())))

    def single(self, before: HostChain, launch: Launch) -> Sample:
        def sample() -> float:
            before.enqueue()
            return _took(lambda: launch(_STREAM))

        return sample

    def enqueue(self, launch: Launch) -> None:
        launch(_STREAM)

    def least(self) -> Launch | None:
        return None

    def settle(self) -> None:
        if self._library and (report := self._library.report()):
            raise CannotRun(f"{report.kind}: {report.message}")

    def persisting_bytes(self) -> int | None:
        return None

    def persisting_launches(self, chain: HostChain) -> int | None:
        return None


def machine() -> str:
    """What the host is: its architecture, and the model of its CPU where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return " ".join([platform.machine(), *models[:1]])


def _took(work: Callable[[], None]) -> float:
    """Microseconds of the host's clock."""
    start = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - start) / 1e3
