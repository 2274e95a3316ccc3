"""What is wrong with an argument of :mod:`packed_gemv.ops`, in words; its docstrings say what raises what.

Every check takes the name to blame. None of them reads an element.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from packed_gemv.config import MAX_TOKENS
from packed_gemv.layout import PackedWeight

_OUT_DTYPES = (torch.bfloat16, torch.float32)


def require_bf16(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, not {type(tensor).__name__}")
    if tensor.dtype != torch.bfloat16:
        raise TypeError(
            f"{name} must be torch.bfloat16, not {tensor.dtype}; convert it with "
            f"{name}.to(torch.bfloat16)"
        )
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} must be a strided tensor, not {tensor.layout}")


def _require_device(name: str, tensor: Tensor, x: Tensor) -> None:
    if tensor.device != x.device:
        raise ValueError(
            f"{name} is on {tensor.device} but x is on {x.device}; move one to the other's device"
        )


def check_weights(weights: dict[str, PackedWeight], x: Tensor) -> None:
    for name, weight in weights.items():
        if not isinstance(weight, PackedWeight):
            raise TypeError(
                f"{name} must be a PackedWeight, not {type(weight).__name__}; pack it once with "
                "packed_gemv.ops.prepare"
            )
        require_bf16(f"{name}.data", weight.data)
        _require_device(name, weight.data, x)
        if not weight.data.is_contiguous():
            raise ValueError(f"{name}.data must be contiguous, as prepare makes it")
    sizes = {name: (weight.n, weight.k) for name, weight in weights.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"both weights must have the same (N, K), not {sizes}")


def check_biases(biases: dict[str, Tensor | None], n: int, x: Tensor) -> None:
    for name, bias in biases.items():
        if bias is None:
            continue
        require_bf16(name, bias)
        _require_device(name, bias, x)
        if tuple(bias.shape) != (n,):
            raise ValueError(f"{name} must have shape ({n},), not {tuple(bias.shape)}")
        if not bias.is_contiguous():
            raise ValueError(f"{name} must be contiguous; pass {name}.contiguous()")


def count_tokens(x: Tensor, k: int) -> int:
    """M, the product of the leading dimensions of ``x``."""
    if x.ndim == 0 or x.shape[-1] != k:
        raise ValueError(
            f"x must have shape [..., {k}] for a weight with K={k}, not {tuple(x.shape)}"
        )
    m = math.prod(x.shape[:-1])
    if m > MAX_TOKENS:
        raise ValueError(
            f"x holds {m} tokens (shape {tuple(x.shape)}), and one call takes at most "
            f"{MAX_TOKENS}; split it, or use packed_gemv.linear.PackedLinear, which does"
        )
    return m


def as_rows(name: str, tensor: Tensor, m: int, columns: int) -> Tensor:
    """``tensor [..., columns]`` as ``[m, columns]`` over the same memory, for the operator."""
    try:
        rows = tensor if tensor.ndim == 2 else tensor.view(m, columns)
    except RuntimeError:
        rows = None
    if (
        rows is None
        or (columns > 1 and rows.stride(1) != 1)
        or (m > 1 and rows.stride(0) < columns)
    ):
        raise ValueError(
            f"{name} with shape {tuple(tensor.shape)} and strides {tensor.stride()} must be rows "
            f"of {columns} adjacent elements, one stride of at least {columns} apart; "
            f"pass {'x.contiguous()' if name == 'x' else 'a contiguous tensor'}"
        )
    return rows


def refuse_grad(inputs: dict[str, Tensor]) -> None:
    if not torch.is_grad_enabled():
        return
    for name, tensor in inputs.items():
        if tensor.requires_grad:
            raise RuntimeError(
                f"{name} requires grad, and packed_gemv has no gradient; "
                f"call it under torch.no_grad() or pass {name}.detach()"
            )


def check_outs(
    outs: dict[str, Tensor], shape: tuple[int, ...], dtype: torch.dtype | None, x: Tensor
) -> None:
    if dtype is not None and dtype not in _OUT_DTYPES:
        raise TypeError(f"out_dtype must be torch.bfloat16 or torch.float32, not {dtype}")
    for name, out in outs.items():
        if not isinstance(out, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, not {type(out).__name__}")
        if out.dtype not in _OUT_DTYPES:
            raise TypeError(f"{name} must be torch.bfloat16 or torch.float32, not {out.dtype}")
        if dtype is not None and out.dtype != dtype:
            raise TypeError(f"{name} is {out.dtype} but out_dtype is {dtype}; give one of them")
        if tuple(out.shape) != shape:
            raise ValueError(f"{name} must have shape {shape}, not {tuple(out.shape)}")
        _require_device(name, out, x)
        if out.requires_grad:
            raise RuntimeError(f"{name} requires grad, and packed_gemv has no gradient")
    if len({(out.dtype, out.stride()) for out in outs.values()}) > 1:
        raise ValueError(f"{' and '.join(outs)} must have the same dtype and strides")


def refuse_overlap(targets: dict[str, Tensor], inputs: dict[str, Tensor]) -> None:
    if torch.compiler.is_compiling():  # no memory yet, and functionalization keeps outputs apart
        return
    others = inputs.copy()
    for name, target in targets.items():
        for other, tensor in others.items():
            if _overlap(target, tensor):
                raise ValueError(f"{name} overlaps {other} in memory; pass a tensor of its own")
        others[name] = target


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share a byte; exact, so that two column slices of one buffer do not."""
    rows_a, rows_b = _byte_rows(a), _byte_rows(b)
    if rows_a[-1].stop <= rows_b[0].start or rows_b[-1].stop <= rows_a[0].start:
        return False
    return any(p.start < q.stop and q.start < p.stop for p in rows_a for q in rows_b)


def _byte_rows(tensor: Tensor) -> list[range]:
    """The addresses of each row of a ``[M, columns]`` tensor; of a contiguous one as a whole."""
    size, base = tensor.element_size(), tensor.data_ptr()
    if tensor.is_contiguous():
        return [range(base, base + tensor.numel() * size)]
    pitch, length = tensor.stride(0) * size, tensor.shape[1] * size
    return [range(base + i * pitch, base + i * pitch + length) for i in range(tensor.shape[0])]
