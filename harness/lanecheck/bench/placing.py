"""The operands of a timed launch: drawn and packed once for many processes, and laid out on a device."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lanecheck.bench.plan import Workload
from lanecheck.bench.timing import Clock, Launch
from lanecheck.errors import CannotRun
from lanecheck.subject import Bits, Buffer, Tensor

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Region:
    """A tensor's memory on a device.

    Attributes:
        address: of its aligned base.
        read: its bytes, after whatever was launched.
        memory: itself, where the host can reach it.
    """

    address: int
    read: Callable[[], Bytes]
    memory: Bytes | None = None


class Device(Protocol):
    """Where launches are timed."""

    @property
    def clock(self) -> Clock:
        """Times them."""

    @property
    def library(self) -> Any:
        """What they are given, or None."""

    def copies(self, size: int) -> int:
        """How many copies of ``size`` bytes of operands launches rotate over."""

    def hold(self, memory: Bytes, copies: int) -> list[Region]:
        """So many copies of a tensor."""

    def check(self) -> None:
        """Wait for what was launched. Raises CannotRun if it went wrong."""


@dataclass(frozen=True)
class Placed:
    """A workload on a device: a launch for each copy of its operands, and the outputs of the first."""

    launches: Sequence[Launch]
    outputs: Sequence[tuple[Tensor, Region]]

    def digest(self) -> str:
        """SHA-256 of the outputs' elements; what lies between rows does not count."""
        total = hashlib.sha256()
        for tensor, region in self.outputs:
            total.update(np.ascontiguousarray(tensor.view(region.read())).tobytes())
        return total.hexdigest()


def place(workload: Workload, values: Mapping[str, Bits], device: Device) -> Placed:
    """Lay the workload's operands out; ``values`` are those of :func:`operands`."""
    subject, params = workload.subject, workload.case.params
    tensors = {each.name: each for each in workload.tensors if each.role != "source"}
    held = {
        name: device.hold(_bytes(tensor, values.get(name)), device.copies(workload.bytes))
        for name, tensor in tensors.items()
    }

    def launch_over(regions: Mapping[str, Region]) -> Launch:
        buffers = {name: _buffer(tensors[name], region) for name, region in regions.items()}

        def launch(stream: int, owned: Any = regions) -> None:
            failure = subject.launch(device.library, params, buffers, stream)
            if failure:
                raise CannotRun(f"{workload.case.line}: {failure}")

        return launch

    copies = [dict(zip(held, regions)) for regions in zip(*held.values())]
    outputs = [(t, held[name][0]) for name, t in tensors.items() if t.role == "output"]
    return Placed([*map(launch_over, copies)], outputs)


def operands(workload: Workload, folder: Path) -> dict[str, Bits]:
    """The values of what a launch is given, by tensor: read from ``folder`` if an earlier process drew and
    packed them there, which may take it many times as long as the timing."""
    kept = folder / hashlib.sha256(workload.case.line.encode()).hexdigest()[:16]
    if not kept.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        given = {each.name for each in workload.tensors if each.role != "source"}
        drawn = workload.inputs | workload.subject.derive(workload.case.params, workload.inputs)
        unfinished = tempfile.mkdtemp(dir=folder)
        for name in given & drawn.keys():
            np.save(Path(unfinished, name), drawn[name])
        os.rename(unfinished, kept)
    return {path.stem: np.load(path, mmap_mode="r") for path in kept.glob("*.npy")}


def _bytes(tensor: Tensor, values: Bits | None) -> Bytes:
    """A tensor's bytes from its aligned base; zeros where there are no values."""
    memory = np.zeros(tensor.span * tensor.item.itemsize, np.uint8)
    if values is not None:
        tensor.view(memory)[...] = values
    return memory


def _buffer(tensor: Tensor, region: Region) -> Buffer:
    elements = None if region.memory is None else tensor.view(region.memory)
    return Buffer(region.address + tensor.offset * tensor.item.itemsize, elements)
