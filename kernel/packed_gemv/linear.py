"""``PackedLinear``, a drop-in for ``nn.Linear`` at inference, and what drops it into a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from packed_gemv import ops
from packed_gemv.config import MAX_TOKENS, select
from packed_gemv.fragments import K_BLOCK, LANES, ROWS
from packed_gemv.layout import PackedWeight, blocks


class Gemv(Protocol):
    """What runs a layer's product; :func:`packed_gemv.ops.gemv` is one."""

    def __call__(
        self,
        x: Tensor,
        weight: PackedWeight,
        bias: Tensor | None = None,
        *,
        out_dtype: torch.dtype | None = None,
    ) -> Tensor:
        """``[M, N]`` of ``out_dtype`` from ``x [M, K]``, BF16, at most 64 rows."""


class PackedLinear(nn.Module):
    """``y = x · Wᵀ + b`` with W in BF16, packed once. For inference: it has no gradient.

    The state dict holds ``packed`` and ``bias``, both BF16; keep them so: the layer may move to
    another device, not to another dtype.

    Attributes:
        packed: ``[ceil(N/16), ceil(K/32), 2, 32, 8]`` BF16.
        bias: ``[N]`` BF16 or None.
        gemv: what runs the product; replace it to run a model's layers elsewhere.
    """

    packed: Tensor
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        *,
        batch_invariant: bool = False,
    ) -> None:
        """A layer of zeros, to load a state dict into; :meth:`from_linear` is the usual way.

        Args:
            batch_invariant: give a token the same bits whatever is beside it, at some cost in bandwidth;
                see :func:`packed_gemv.config.select`. It is no part of the state dict.
        """
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        zeros = partial(torch.zeros, dtype=torch.bfloat16, device=device)
        shape = (blocks(out_features, ROWS), blocks(in_features, K_BLOCK), 2, LANES, 8)
        self.register_buffer("packed", zeros(shape))
        self.register_buffer("bias", zeros(out_features) if bias else None)
        self.gemv: Gemv = ops.gemv
        if batch_invariant:
            config = select(1, out_features, in_features, batch_invariant=True)
            self.gemv = partial(ops.gemv, config=config)

    @classmethod
    def from_linear(cls, linear: nn.Linear, *, batch_invariant: bool = False) -> PackedLinear:
        """Round the weight and bias of ``linear`` to BF16 and pack them, on their device.

        A weight tied to another module's is copied, and no longer tied.

        Args:
            batch_invariant: as for the constructor.
        """
        packed = cls(
            linear.in_features,
            linear.out_features,
            bias=linear.bias is not None,
            device=linear.weight.device,
            batch_invariant=batch_invariant,
        )
        packed.packed = ops.prepare(linear.weight.detach().to(torch.bfloat16)).data
        if linear.bias is not None:
            packed.bias = linear.bias.detach().to(torch.bfloat16, copy=True)
        return packed.train(linear.training)

    @property
    def weight(self) -> PackedWeight:
        """The packed weight with its logical size, over the same memory as ``packed``."""
        return PackedWeight(self.packed, self.out_features, self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer.

        More than 64 rows take one call for each 64 of them. An FP32 ``x`` is rounded to BF16; one
        whose leading dimensions do not make one row stride is copied.

        Args:
            x: ``[..., K]`` BF16 or FP32.

        Returns:
            ``[..., N]`` of the dtype of ``x``; an FP32 result is not rounded to BF16.

        Raises:
            TypeError: for another dtype. Otherwise as :func:`packed_gemv.ops.gemv`.
        """
        if x.dtype not in (torch.bfloat16, torch.float32):
            raise TypeError(f"x must be torch.bfloat16 or torch.float32, not {x.dtype}")
        if x.ndim == 0 or x.shape[-1] != self.in_features:
            raise ValueError(f"x must have shape [..., {self.in_features}], not {tuple(x.shape)}")
        rows = x.to(torch.bfloat16).flatten(0, -2) if x.ndim > 1 else x.to(torch.bfloat16)[None]
        weight = self.weight
        parts = [
            self.gemv(part, weight, self.bias, out_dtype=x.dtype) for part in rows.split(MAX_TOKENS)
        ]
        y = parts[0] if len(parts) == 1 else torch.cat(parts)
        return y.view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """The sizes, as ``nn.Linear`` prints them."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


def swap_linears(
    model: nn.Module,
    filter: Callable[[str, nn.Linear], bool] | None = None,
    *,
    batch_invariant: bool = False,
) -> list[str]:
    """Replace the ``nn.Linear`` inside ``model``, in place, by :class:`PackedLinear`.

    Subclasses of ``nn.Linear`` stay. A layer that appears twice is packed once. Hooks on a replaced
    layer are lost. Leave out, with ``filter``, layers whose weight the model reads itself, as
    ``nn.TransformerEncoderLayer`` does.

    Args:
        filter: called with each layer's qualified name and the layer; those for which it is true
            are replaced. By default, all are.
        batch_invariant: as for :class:`PackedLinear`.

    Returns:
        The names replaced, in the order of ``model.named_modules()``.

    Raises:
        TypeError: if ``model`` itself is an ``nn.Linear``, which has no parent to replace it in.
    """
    if type(model) is nn.Linear:
        raise TypeError("model is itself an nn.Linear; use PackedLinear.from_linear(model)")
    chosen = [
        (name, module)
        for name, module in model.named_modules(remove_duplicate=False)
        if type(module) is nn.Linear and (filter is None or filter(name, module))
    ]
    packed = {
        module: PackedLinear.from_linear(module, batch_invariant=batch_invariant)
        for _, module in chosen
    }
    for name, module in chosen:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, packed[module])
    return [name for name, _ in chosen]
