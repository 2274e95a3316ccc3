"""What is timed: what a benchmarked subject adds to :class:`~lanecheck.subject.Subject`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from lanecheck.bench.rig import Bytes, Memory, Rig
from lanecheck.bench.timing import Launch
from lanecheck.cases import SIDES, Case
from lanecheck.errors import BadInput, CannotRun
from lanecheck.subject import Bits, Buffer, Params, Subject, Tensor
from lanecheck.trial import draw_inputs, operands

FORMULA = "inputs + packed + outputs, each once"
REDUCED = 1024
MOVED = ("input", "packed", "output")
"""Roles of the tensors that a launch must read or write."""


class BenchSubject(Subject, Protocol):
    """A subject that says what of it is worth timing.

    A parameter named ``n``, if there is one, counts independent output columns: correctness may be
    judged at fewer of them.
    """

    def bench_params(self) -> list[Params]:
        """The shapes to time, each with its configuration; the subject's own axes, as drawn."""

    def traffic(self, params: Params) -> int:
        """Bytes that one launch must move: each input, packed tensor and output once."""


def benchable(subject: Any) -> BenchSubject:
    """``subject``, if it can be benchmarked.

    Raises:
        BadInput: if it lacks what :class:`BenchSubject` adds.
    """
    for method in ("bench_params", "traffic"):
        if not hasattr(subject, method):
            raise BadInput(
                f"subject '{subject.name}' has no {method}(): see lanecheck.bench.plan.BenchSubject"
            )
    found: BenchSubject = subject
    return found


def case(subject: Subject, params: Params, regime: str, seed: int) -> Case:
    """The case of a benchmarked shape, with values of one regime."""
    return Case(subject.name, {**params, "regime": regime, "side": SIDES[0], "seed": seed})


def reduced(params: Params) -> Params:
    """The same configuration over at most :data:`REDUCED` output columns."""
    if "n" not in params:
        return params
    return {**params, "n": min(int(params["n"]), REDUCED)}


@dataclass(frozen=True)
class Workload:
    """One shape, its operands, and its values: drawn as any case's, of regime ``normal``."""

    subject: BenchSubject
    case: Case

    @classmethod
    def of(cls, subject: BenchSubject, params: Params, seed: int) -> Workload:
        """
        Raises:
            BadInput: if the subject counts more traffic than its operands hold.
        """
        workload = cls(subject, case(subject, params, "normal", seed))
        if not 0 < workload.bytes <= workload.held:
            raise BadInput(
                f"{workload.case.line}: traffic() says {workload.bytes} bytes, but the operands "
                f"hold {workload.held}; its GB/s would mean nothing"
            )
        return workload

    @property
    def bytes(self) -> int:
        """What one launch must move, by :data:`FORMULA`."""
        return self.subject.traffic(self.case.params)

    @property
    def held(self) -> int:
        """Bytes of all that a launch must read or write."""
        return sum(
            math.prod(tensor.shape) * tensor.item.itemsize
            for tensor in self.tensors
            if tensor.role in MOVED
        )

    @cached_property
    def tensors(self) -> list[Tensor]:
        return self.subject.tensors(self.case.params)

    @cached_property
    def inputs(self) -> dict[str, Bits]:
        return draw_inputs(self.subject, self.case)

    @cached_property
    def others(self) -> dict[str, Bits]:
        """Other inputs, as dense: each tensor's values in reverse order."""
        return {
            name: np.ascontiguousarray(bits.reshape(-1)[::-1]).reshape(bits.shape)
            for name, bits in self.inputs.items()
        }

    def placed(self, inputs: Mapping[str, Bits]) -> dict[str, Bytes]:
        """The bytes of every tensor of a launch with these inputs, from its aligned base; zeros where there
        are no values."""
        values = operands(self.subject, self.case.params, inputs)
        return {
            tensor.name: _placed(tensor, values.get(tensor.name)) for tensor in self.given.values()
        }

    @cached_property
    def given(self) -> dict[str, Tensor]:
        """What a launch is given, by name."""
        return {tensor.name: tensor for tensor in self.tensors if tensor.role != "source"}


@dataclass(frozen=True)
class Copy:
    """One copy of a workload's operands: the launch over it, which owns it, and its memory by tensor."""

    launch: Launch
    memory: Mapping[str, Memory]


def lay_out(workload: Workload, rig: Rig, copies: int) -> list[Copy]:
    """The subject over ``copies`` copies of its operands."""
    held = {
        name: rig.hold(contents, copies)
        for name, contents in workload.placed(workload.inputs).items()
    }
    return [_copy(workload, rig, dict(zip(held, memory))) for memory in zip(*held.values())]


def _copy(workload: Workload, rig: Rig, memory: Mapping[str, Memory]) -> Copy:
    params = workload.case.params
    buffers = {name: _buffer(workload.given[name], each) for name, each in memory.items()}

    def launch(stream: int, owned: Mapping[str, Memory] = memory) -> None:
        failure = workload.subject.launch(rig.library, params, buffers, stream)
        if failure:
            raise CannotRun(f"{workload.case.line}: {failure}")

    return Copy(launch, memory)


def _buffer(tensor: Tensor, memory: Memory) -> Buffer:
    elements = None if memory.local is None else tensor.view(memory.local)
    return Buffer(memory.address + tensor.offset * tensor.item.itemsize, elements)


def _placed(tensor: Tensor, values: Bits | None) -> Bytes:
    """A tensor's bytes from its aligned base; zeros where there are no values."""
    memory = np.zeros(tensor.span * tensor.item.itemsize, np.uint8)
    if values is not None:
        tensor.view(memory)[...] = values
    return memory
