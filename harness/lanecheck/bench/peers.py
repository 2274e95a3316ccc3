"""Peers: other ways to compute the same thing, timed in the same run.

A peer that cannot take part is named in the record with the reason, so that a missing comparison
never looks like a won one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lanecheck.bench.plan import Workload
from lanecheck.bench.timing import Launch
from lanecheck.subject import Bits


class Unavailable(Exception):
    """Why a peer cannot take part."""


@dataclass(frozen=True)
class Peer:
    """Another implementation.

    Attributes:
        name: what the record calls it.
        launches: it over so many copies of a workload's operands, or raises :class:`Unavailable`.
    """

    name: str
    launches: Callable[[Workload, int], list[Launch]]


@dataclass(frozen=True)
class Product:
    """``y[M, N] = x[M, K] · W[N, K]ᵀ`` in BF16, the operation that the peers here know."""

    x: Bits
    w: Bits

    @classmethod
    def of(cls, workload: Workload) -> Product:
        """
        Raises:
            Unavailable: if the workload is anything else.
        """
        roles = ("input", "source", "output")
        operands = [[t for t in workload.tensors if t.role == role] for role in roles]
        if any(len(some) != 1 for some in operands):
            raise Unavailable("the subject does not compute y = x · Wᵀ alone")
        (x,), (w,), (y,) = operands
        if [len(t.shape) for t in (x, w, y)] != [2, 2, 2] or (
            (*y.shape, x.shape[1]) != (x.shape[0], *w.shape)
        ):
            raise Unavailable("the operands' shapes are not those of y = x · Wᵀ")
        if y.dtype != "bf16":
            raise Unavailable(f"it writes BF16, the subject {y.dtype.upper()}")
        return cls(workload.inputs[x.name], workload.inputs[w.name])


def _linear(workload: Workload, copies: int) -> list[Launch]:
    product = Product.of(workload)

    import torch
    from torch.nn.functional import linear

    def on_device(bits: Bits) -> Any:
        return torch.from_numpy(bits.view("int16")).cuda().view(torch.bfloat16)

    x, w = on_device(product.x), on_device(product.w)

    def one_copy() -> Launch:
        own_x, own_w = x.clone(), w.clone()

        def launch(stream: int) -> None:  # torch launches on its current stream, which is this one
            linear(own_x, own_w)

        return launch

    return [one_copy() for _ in range(copies)]


PEERS: tuple[Peer, ...] = (Peer("F.linear", _linear),)
