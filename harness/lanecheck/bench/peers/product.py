"""The operation that the peers compute, copies of its operands, and how far a result is from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lanecheck.bench.plan import Workload
from lanecheck.subject import Bits

_CHUNK = 2**24
"""Elements of W that are widened to float64 at a time."""


class Unavailable(Exception):
    """Why a peer cannot take part."""


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


@dataclass(frozen=True)
class Operands:
    """One copy: contiguous BF16 torch tensors, in memory of their own.

    Attributes:
        x: [M, K].
        w: [N, K].
        out: [M, N], for those that write into memory they are given.
    """

    x: Any
    w: Any
    out: Any


class Copies:
    """``count`` copies of a product's operands on one torch device.

    Iterating makes each copy when it is asked for, so that a peer which keeps the weights in another
    layout never holds all of both. Odd copies hold −x: whoever launches on another copy's operands
    gets the wrong sign.

    Attributes:
        m, n, k: of the product.
        device: where the copies lie, a torch device.
    """

    def __init__(self, product: Product, count: int, device: Any) -> None:
        self._product, self._count, self.device = product, count, device
        (self.m, self.k), (self.n, _) = product.x.shape, product.w.shape

    def __iter__(self) -> Iterator[Operands]:
        x, w = (self._upload(bits) for bits in (self._product.x, self._product.w))
        for index in range(self._count):
            yield Operands(
                x=-x if index % 2 else x.clone(),
                w=w.clone(),
                out=x.new_empty(self.m, self.n),
            )

    def reference(self) -> Any:
        """The product in float64, [M, N], on the device."""
        import torch

        x, w = (self._upload(bits) for bits in (self._product.x, self._product.w))
        parts = w.split(max(1, _CHUNK // self.k))
        return torch.cat([x.double() @ part.double().t() for part in parts], dim=1)

    def _upload(self, bits: Bits) -> Any:
        import torch

        return torch.from_numpy(bits.view("int16")).to(self.device).view(torch.bfloat16)


def error(y: Any, reference: Any) -> float:
    """``‖y − reference‖ / ‖reference‖`` over all elements; NaN if ``y`` holds one."""
    return float((y.double() - reference).norm() / reference.norm())
