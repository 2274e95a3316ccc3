"""What is timed: what a benchmarked subject adds to :class:`~lanecheck.subject.Subject`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from lanecheck.bench.timing import Launch
from lanecheck.cases import SIDES, Case
from lanecheck.errors import BadInput, CannotRun
from lanecheck.subject import Bits, Buffer, Params, Subject, Tensor
from lanecheck.trial import draw_inputs

FORMULA = "inputs + packed + outputs, each once"
REDUCED = 1024
_MOVED = ("input", "packed", "output")


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
        held = sum(
            math.prod(tensor.shape) * tensor.item.itemsize
            for tensor in workload.tensors
            if tensor.role in _MOVED
        )
        if not 0 < workload.bytes <= held:
            raise BadInput(
                f"{workload.case.line}: traffic() says {workload.bytes} bytes, but the operands "
                f"hold {held}; its GB/s would mean nothing"
            )
        return workload

    @property
    def bytes(self) -> int:
        """What one launch must move, by :data:`FORMULA`."""
        return self.subject.traffic(self.case.params)

    @cached_property
    def tensors(self) -> list[Tensor]:
        return self.subject.tensors(self.case.params)

    @cached_property
    def inputs(self) -> dict[str, Bits]:
        return draw_inputs(self.subject, self.case)


def subject_launches(workload: Workload, library: ctypes.CDLL, copies: int) -> list[Launch]:
    """The subject over ``copies`` copies of its operands on the current CUDA device."""
    import torch

    subject, params = workload.subject, workload.case.params
    values = workload.inputs | subject.derive(params, workload.inputs)
    tensors = [tensor for tensor in workload.tensors if tensor.role != "source"]
    originals = {
        tensor.name: torch.from_numpy(_placed(tensor, values.get(tensor.name))).cuda()
        for tensor in tensors
    }

    def one_copy() -> Launch:
        memory = {name: original.clone() for name, original in originals.items()}
        buffers: Mapping[str, Buffer] = {
            tensor.name: Buffer(
                memory[tensor.name].data_ptr() + tensor.offset * tensor.item.itemsize
            )
            for tensor in tensors
        }

        def launch(stream: int, owned: Any = memory) -> None:
            failure = subject.launch(library, params, buffers, stream)
            if failure:
                raise CannotRun(f"{workload.case.line}: {failure}")

        return launch

    return [one_copy() for _ in range(copies)]


def _placed(tensor: Tensor, values: Bits | None) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A tensor's bytes from its aligned base; zeros where there are no values."""
    memory = np.zeros(tensor.span * tensor.item.itemsize, np.uint8)
    if values is not None:
        tensor.view(memory)[...] = values
    return memory
