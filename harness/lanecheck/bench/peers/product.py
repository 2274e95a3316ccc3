"""The operation that the peers compute, copies of its operands, and what keeps a peer from taking part."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lanecheck.bench.device import float64_product
from lanecheck.bench.plan import Workload

TOLERANCE = 1e-2
"""Of the relative Frobenius error. In 56 products of normal values on a CPU, of up to 64 × 57,344 outputs and
28,672 terms, F.linear in BF16 erred by 2.1e-3 at most; eight parts of K, rounded and summed in BF16, by
5.1e-3; in 13 of them also 32 parts, by 7.3e-3. Where terms are left out, the error is the root of their
share: of 16 in 57,344, 1.7e-2. A wrong column among some 10,000 or more is lost in this."""
SINGLE = 0.1
"""Of the largest error of one output, over the root mean square of all, which is the scale of each, since the
values are normal. In the same products F.linear erred by 0.016 at most, eight parts by 0.045, 32 by 0.082. A
column that is zeroed, negated or exchanged with another passes only where it is this close to the right one
for every token: some 8, 4 or 6 % of the columns do for one token, 2 in a billion at most for eight."""


class Unavailable(Exception):
    """Why a peer cannot take part."""


FAILURES = (Exception, SystemExit)
"""What others' code may raise without ending the run."""


def why(failure: BaseException) -> str:
    """In one line, why a peer whose code raised this cannot take part."""
    if isinstance(failure, Unavailable):
        return str(failure)
    return f"it fails: {line(failure)}"


def line(failure: BaseException) -> str:
    """An exception as one line."""
    lines = str(failure).strip().splitlines()
    return f"{type(failure).__name__}: {lines[0]}" if lines else type(failure).__name__


@dataclass(frozen=True)
class Product:
    """``y[M, N] = x[M, K] · W[N, K]ᵀ`` in BF16, the operation that the peers here know.

    Attributes:
        x: [M, K], a contiguous BF16 torch tensor.
        w: [N, K], likewise, on the same device.
    """

    x: Any
    w: Any

    @classmethod
    def of(cls, workload: Workload, values: Mapping[str, Any]) -> Product:
        """A workload's one product.

        Args:
            values: of its tensors, by name: torch tensors on one device, BF16 ones as int16 bits.

        Raises:
            Unavailable: if the workload is not plain ``y = x · Wᵀ`` in BF16.
        """
        import torch

        params = workload.case.params
        products = workload.subject.products(params)
        tensors = {tensor.name: tensor for tensor in workload.subject.tensors(params)}
        outputs = [tensor for tensor in tensors.values() if tensor.role == "output"]
        if len(products) != 1 or len(outputs) != 1:
            raise Unavailable("the subject does not compute y = x · Wᵀ alone")
        (product,), (output,) = products, outputs
        if product.bias is not None:
            raise Unavailable("the subject adds a bias to x · Wᵀ")
        if not product.plain:
            raise Unavailable("the subject makes more of x · Wᵀ in an epilogue")
        for name in (product.x, product.w):
            if tensors[name].dtype != "bf16":
                raise Unavailable(f"it reads BF16, the subject {tensors[name].dtype.upper()}")
        if output.dtype != "bf16":
            raise Unavailable(f"it writes BF16, the subject {output.dtype.upper()}")
        x, w = (values[name].view(torch.bfloat16).contiguous() for name in (product.x, product.w))
        return cls(x, w)

    @cached_property
    def reference(self) -> Any:
        """The product in float64, [M, N], on the operands' device."""
        return float64_product(self.x, self.w)


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
    """``count`` copies of a product's operands, on their device.

    Iterating makes each copy when it is asked for, so that a peer which keeps the weights in another
    layout never holds all of both. Odd copies hold −x: whoever launches on another copy's operands
    gets the wrong sign.

    Attributes:
        product: whose operands.
        m, n, k: of the product.
        device: where the copies lie, a torch device.
    """

    def __init__(self, product: Product, count: int) -> None:
        self.product, self._count, self.device = product, count, product.w.device
        (self.m, self.k), (self.n, _) = product.x.shape, product.w.shape

    def __iter__(self) -> Iterator[Operands]:
        x, w = self.product.x, self.product.w
        for index in range(self._count):
            yield Operands(
                x=-x if index % 2 else x.clone(),
                w=w.clone(),
                out=x.new_empty(self.m, self.n),
            )


Multiply = Callable[[], Any]
"""Enqueues one copy's product on torch's current stream; returns y[M, N], BF16."""


def error(multiply: Multiply, reference: Any) -> Any:
    """``‖y − reference‖ / ‖reference‖`` over all elements, and the largest error of one element over their
    root mean square: a float64 tensor of both on the device; NaN if an element is left unwritten.

    It is called twice: what an earlier call left is no result of the next.
    """
    import torch

    multiply().fill_(torch.nan)
    off = multiply().double() - reference
    largest = off.abs().max() * math.sqrt(reference.numel())
    return torch.stack([off.norm(), largest]) / reference.norm()


def refuse_wrong(errors: Any) -> None:
    """Asks the device, and so waits for it.

    Args:
        errors: one or more of :func:`error`'s, stacked; NaN too is wrong.

    Raises:
        Unavailable: if one of them is more than :data:`TOLERANCE` or :data:`SINGLE`.
    """
    overall, single = errors.reshape(-1, 2).amax(0).tolist()
    if not overall <= TOLERANCE:
        raise Unavailable(f"its result is wrong: relative error {overall:.1e}")
    if not single <= SINGLE:
        raise Unavailable(
            f"its result is wrong: one element is off by {single:.2g} times their root mean square"
        )
