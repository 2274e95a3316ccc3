"""What is timed: what a benchmarked subject adds to :class:`~lanecheck.subject.Subject`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from lanecheck.bench.rig import Array, Held, Rig
from lanecheck.bench.timing import Launch
from lanecheck.cases import SIDES, Case
from lanecheck.errors import BadInput, CannotRun
from lanecheck.subject import Params, Subject, Tensor
from lanecheck.trial import operands

FORMULA = "inputs + packed + outputs, each once"
REDUCED = 64
MOVED = ("input", "packed", "output")
"""Roles of the tensors that a launch must read or write."""


Shape = tuple[Params, float]
"""A shape with its configuration, and the seconds of the GPU that a peer may take to tune for it."""


class BenchSubject(Subject, Protocol):
    """A subject that says what of it is worth timing.

    A parameter named ``n``, if there is one, counts independent output columns: correctness may be
    judged at fewer of them. On a GPU, :meth:`~lanecheck.subject.Subject.derive` is given torch tensors of
    bits on the device, as :class:`~lanecheck.bench.rig.Array` says, and returns such.
    """

    def bench_params(self) -> list[Params]:
        """The few shapes to time as a rule, each with its configuration; the subject's own axes, as drawn."""

    def traffic(self, params: Params) -> int:
        """Bytes that one launch must move: each input, packed tensor and output once."""


def benchable(subject: Any, *methods: str) -> BenchSubject:
    """``subject``, if it has these of the methods that :class:`BenchSubject` adds; both if none is named.

    Raises:
        BadInput: if it lacks one.
    """
    for method in methods or ("bench_params", "traffic"):
        if not hasattr(subject, method):
            raise BadInput(
                f"subject '{subject.name}' has no {method}(): see lanecheck.bench.plan.BenchSubject"
            )
    found: BenchSubject = subject
    return found


def swept(subject: BenchSubject) -> list[Shape]:
    """What the subject's ``sweep_params()`` says: every shape worth timing now and then.

    Raises:
        BadInput: if it says nothing.
    """
    if not hasattr(subject, "sweep_params"):
        raise BadInput(f"subject '{subject.name}' has no sweep_params(): run without --sweep")
    found: list[Shape] = subject.sweep_params()
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
    """One shape and its operands; the values, drawn as any case's, are of regime ``normal``.

    Attributes:
        params: the shape, as the subject named it.

    Raises:
        BadInput: if the subject counts more traffic than its operands hold.
    """

    subject: BenchSubject
    params: Params
    seed: int

    def __post_init__(self) -> None:
        if not 0 < self.bytes <= self.operand_bytes:
            raise BadInput(
                f"{self.case.line}: traffic() says {self.bytes} bytes, but the operands "
                f"hold {self.operand_bytes}; its GB/s would mean nothing"
            )

    @cached_property
    def case(self) -> Case:
        return case(self.subject, self.params, "normal", self.seed)

    @property
    def bytes(self) -> int:
        """What one launch must move, by :data:`FORMULA`."""
        return self.subject.traffic(self.case.params)

    @property
    def operand_bytes(self) -> int:
        """Bytes of all that a launch must read or write."""
        return sum(held_bytes(tensor) for tensor in self.tensors if tensor.role in MOVED)

    @cached_property
    def tensors(self) -> list[Tensor]:
        return self.subject.tensors(self.case.params)

    def named(self, *roles: str) -> dict[str, Tensor]:
        """The tensors of these roles, by name."""
        return {tensor.name: tensor for tensor in self.tensors if tensor.role in roles}

    def drawn(self, rig: Rig, regime: str = "normal", other: bool = False) -> dict[str, Array]:
        """Values of every input, source and packed tensor, by name.

        Args:
            other: a second set, independent of the first.
        """
        params = self.case.params
        seed = self.case.seed + (1 << 32 if other else 0)
        inputs = rig.draw(self.subject, case(self.subject, params, regime, seed))
        return operands(self.subject, params, inputs)


def held_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return math.prod(tensor.shape) * tensor.item.itemsize


@dataclass(frozen=True)
class Copies:
    """A workload over copies of its operands, on a rig.

    Attributes:
        launches: one for each copy; each owns the memory of all.
        held: the memory, by tensor.
    """

    launches: Sequence[Launch]
    held: Mapping[str, Held]

    def poison(self, workload: Workload, rig: Rig) -> None:
        """Overwrite the outputs with what no kernel computes, before the next :meth:`Rig.settle`."""
        for name, tensor in workload.named("output").items():
            self.held[name].elements[...] = rig.poison(tensor)

    def outputs(self, workload: Workload) -> dict[str, Array]:
        """The outputs of all copies, [copies, \\*shape], by name; see :meth:`Held.read`."""
        return {name: self.held[name].read() for name in workload.named("output")}


def lay_out(workload: Workload, rig: Rig, values: Mapping[str, Array], copies: int) -> Copies:
    """The subject over ``copies`` copies of its operands, which hold these values."""
    held = {
        tensor.name: rig.hold(tensor, values.get(tensor.name), copies)
        for tensor in workload.tensors
        if tensor.role != "source"
    }
    rig.settle()  # what fills them runs on another stream than the launches
    return Copies([_launch(workload, rig, held, index) for index in range(copies)], held)


def _launch(workload: Workload, rig: Rig, held: Mapping[str, Held], index: int) -> Launch:
    subject, params = workload.subject, workload.case.params
    buffers = {name: memory.buffer(index) for name, memory in held.items()}

    def launch(stream: int, owned: Any = held) -> None:
        if failure := subject.launch(rig.library, params, buffers, stream):
            raise CannotRun(f"{workload.case.line}: {failure}")

    return launch
