"""The operation that the peers compute, copies of its operands, and what keeps a peer from taking part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lanecheck.bench.device import float64_product
from lanecheck.bench.plan import Workload

TOLERANCE = 1e-2
"""Of the relative Frobenius error. Rounding each output to BF16 once errs by 2⁻⁹ = 0.2 % at most, and
FP32 accumulation adds some √K · 2⁻²⁴; a split K whose parts are summed in BF16 rounds a few times more.
A K block left out, a wrong row or an unwritten one errs by far more than this."""


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
    """``‖y − reference‖ / ‖reference‖`` over all elements, a float64 tensor on the device; NaN if an element
    is left unwritten.

    It is called twice: what an earlier call left is no result of the next.
    """
    import torch

    multiply().fill_(torch.nan)
    return (multiply().double() - reference).norm() / reference.norm()


def refuse_wrong(worst: float) -> None:
    """
    Args:
        worst: the largest relative error; NaN too is wrong.

    Raises:
        Unavailable: if it is more than :data:`TOLERANCE`.
    """
    if not worst <= TOLERANCE:
        raise Unavailable(f"its result is wrong: relative error {worst:.1e}")
