"""The current CUDA device, as a :class:`~lanecheck.bench.rig.Rig`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lanecheck.bench import cuda_graph, timing
from lanecheck.bench.device import float64_product
from lanecheck.bench.rig import COLD_CHAIN, COLD_SINGLE, WARM_CHAIN, Array
from lanecheck.bench.timing import CudaGraphChain, CudaGraphClock, Launch, Sample
from lanecheck.cases import Case
from lanecheck.observation import POISON
from lanecheck.subject import Buffer, Product, Subject, Tensor
from lanecheck.values import largest_integer

METHODS = {
    COLD_CHAIN: "chain of launches in a cuda graph, rotating buffers, cold L2",
    WARM_CHAIN: "chain of launches in a cuda graph over one copy, warm L2",
    COLD_SINGLE: "one launch between two events, after a cold chain: cold L2, and nothing overlaps it",
}
_ALIGN = 256  # bytes, as cudaMalloc aligns


class CudaHeld:
    """A :class:`~lanecheck.bench.rig.Held`: one block of memory, read on the stream that is timed."""

    def __init__(self, block: Any, tensor: Tensor, stream: Any) -> None:
        item = tensor.item.itemsize
        self._block, self._stream, self._offset = block, stream, tensor.offset * item
        self.size = tensor.span * item
        apart = block.stride(0)
        self.addresses = [block.data_ptr() + index * apart for index in range(len(block))]
        rows, *rest = tensor.shape or (1,)
        strides = [math.prod(rest[axis:]) for axis in range(1, len(rest) + 1)]
        flat = block.view(_kinds()[tensor.dtype][0])
        self.elements: Array = flat.as_strided(
            (len(block), rows, *rest), (flat.stride(0), tensor.stride, *strides), tensor.offset
        )

    def buffer(self, index: int) -> Buffer:
        return Buffer(self.addresses[index] + self._offset)

    def read(self) -> Array:
        import torch

        with torch.cuda.stream(self._stream):  # not the default one, which waits for others
            contents = self.elements.clone()
        self._stream.synchronize()
        return contents


class CudaRig:
    """
    Args:
        library: the subject's, which is loaded; None for what launches without one.
        l2_bytes: the device's L2.
    """

    def __init__(self, library: Path | None, l2_bytes: int) -> None:
        import torch

        self._torch: Any = torch
        torch.zeros(1, device="cuda")  # makes the context that the library launches in
        self._set_aside = cuda_graph.persisting_limit()
        self.library: Any = ctypes.CDLL(str(library)) if library else None
        self.l2_bytes = l2_bytes
        self.methods = METHODS
        self.clock = CudaGraphClock()

    def draw(self, subject: Subject, case: Case) -> Mapping[str, Array]:
        torch, regime, terms = self._torch, case.params["regime"], subject.terms(case.params)
        generator = torch.Generator("cuda").manual_seed(case.seed)
        on_device = {"device": "cuda", "generator": generator}

        def values(tensor: Tensor) -> Any:
            if regime == "normal":
                return torch.randn(tensor.shape, dtype=torch.bfloat16, **on_device)
            top = largest_integer("small", terms)
            signs = torch.randint(0, 2, tensor.shape, dtype=torch.bfloat16, **on_device) * 2 - 1
            return signs * torch.randint(
                1, top + 1, tensor.shape, dtype=torch.bfloat16, **on_device
            )

        return {
            tensor.name: values(tensor).view(torch.int16)
            for tensor in subject.tensors(case.params)
            if tensor.role in ("input", "source")
        }

    def summed(self, product: Product, values: Mapping[str, Array]) -> Array:
        bf16 = self._torch.bfloat16
        total = float64_product(values[product.x].view(bf16), values[product.w].view(bf16))
        return total + values[product.bias].view(bf16).double() if product.bias else total

    def stored(self, total: Array, output: Tensor) -> Array:
        bits, kind = _kinds()[output.dtype]
        return total.float().to(kind).view(bits)

    def values(self, bits: Array, output: Tensor) -> Array:
        return bits.view(_kinds()[output.dtype][1]).double()

    def poison(self, tensor: Tensor) -> int:
        bits = 8 * tensor.item.itemsize
        unsigned = POISON[0][tensor.dtype]
        return unsigned - (unsigned >> (bits - 1) << bits)

    def copies(self, size: int) -> int:
        return timing.copies(size, self.l2_bytes)

    def hold(self, tensor: Tensor, values: Array | None, copies: int) -> CudaHeld:
        bytes_ = -(-tensor.span * tensor.item.itemsize // _ALIGN) * _ALIGN
        block = self._torch.zeros((copies, bytes_), dtype=self._torch.uint8, device="cuda")
        held = CudaHeld(block, tensor, self.clock.stream)
        if values is not None:
            held.elements.copy_(values)
        return held

    def chain(self, launches: Sequence[Launch], turns: int | None = None) -> CudaGraphChain:
        return self.clock.chain(launches, turns)

    def single(self, before: CudaGraphChain, launch: Launch) -> Sample:
        return self.clock.single(before, launch)

    def enqueue(self, launch: Launch) -> None:
        self.clock.enqueue(launch)

    def least(self) -> Launch | None:
        word = self._torch.zeros(1, device="cuda")

        def launch(stream: int) -> None:
            word.add_(1)

        return launch

    def settle(self) -> None:
        self._torch.cuda.synchronize()

    def persisting_bytes(self) -> int | None:
        now = cuda_graph.persisting_limit()
        return None if now is None or self._set_aside is None else max(0, now - self._set_aside)

    def persisting_launches(self, chain: CudaGraphChain) -> int | None:
        return cuda_graph.persisting_launches(chain.handle)


def _kinds() -> Mapping[str, tuple[Any, Any]]:
    """Torch's types of an element's bits, and of its value."""
    import torch

    return {
        "bf16": (torch.int16, torch.bfloat16),
        "fp32": (torch.int32, torch.float32),
        "byte": (torch.uint8, torch.uint8),
    }
