"""What the GPU tests share: numbers whose sums are exact, comparison of bits, and streams kept busy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from packed_gemv import ops
from packed_gemv.config import Config

BF16, FP32 = torch.bfloat16, torch.float32
_BITS = {BF16: torch.int16, FP32: torch.int32}


def integers(*shape: int, device: str = "cuda") -> Tensor:
    """BF16 integers from -2 to 2: below 2^22 products of them have one FP32 sum, in any order."""
    return torch.randint(-2, 3, shape, device=device).to(BF16)


def reals(*shape: int) -> Tensor:
    """BF16 numbers whose FP32 sums do depend on the order."""
    return torch.randn(shape, device="cuda").to(BF16)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The exact ``x · Wᵀ + bias`` of integers, in FP64; a zero is positive."""
    total = x.double() @ weight.double().T + 0.0
    return total if bias is None else total + bias.double()


def poisoned(*shape: int, dtype: torch.dtype = FP32, device: str = "cuda") -> Tensor:
    """NaN, which no exact product is."""
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


def assert_bits(y: Tensor, expected: Tensor) -> None:
    """Every bit of ``y`` is that of ``expected``, which is first rounded once to ``y``'s dtype."""
    if expected.dtype == torch.float64:
        exact = expected.float()
        assert exact.double().equal(expected), "no reference: the sum is not an FP32 number"
        expected = exact
    expected = expected.to(y.dtype)
    assert y.shape == expected.shape, f"shape {tuple(y.shape)}, expected {tuple(expected.shape)}"
    wrong = (y.view(_BITS[y.dtype]) != expected.view(_BITS[y.dtype])).nonzero()
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise AssertionError(
            f"{len(wrong)} of {y.numel()} differ; the first, {list(at)}, is {y[at].item()} and "
            f"should be {expected[at].item()}"
        )


def delay(milliseconds: float) -> None:
    """Keep the current stream busy for about that long."""
    torch.cuda._sleep(int(milliseconds * 2e6))


@contextmanager
def together(*streams: torch.cuda.Stream, milliseconds: float = 30) -> Iterator[None]:
    """Hold the streams back while the block fills their queues, let go, and wait for their end."""
    gate = torch.cuda.Event()
    delay(milliseconds)
    gate.record()
    for stream in streams:
        stream.wait_event(gate)
    yield
    torch.cuda.synchronize()


class Launches:
    """Calls on one weight, each with another ``x`` than the call before and an output of its own.

    So what a call leaves behind, in a workspace or a cache, is wrong for the next.
    """

    VARIANTS = 5

    def __init__(
        self, m: int, n: int, k: int, config: Config, count: int = 250, device: str = "cuda"
    ) -> None:
        self.config = config
        mats = 2 if config.dual else 1
        weights = [integers(n, k, device=device) for _ in range(mats)]
        self.weights = [ops.prepare(weight) for weight in weights]
        self.xs = integers(self.VARIANTS, m, k, device=device)
        sums = [torch.stack([product(x, weight) for weight in weights]).float() for x in self.xs]
        self.expected = torch.stack([sums[i % self.VARIANTS] for i in range(count)])
        self.outs = poisoned(count, mats, m, n, device=device)
        self._calls = [(self.xs[i % self.VARIANTS], tuple(out)) for i, out in enumerate(self.outs)]

    def __len__(self) -> int:
        return len(self.outs)

    def launch(self, i: int) -> None:
        x, out = self._calls[i]
        if len(out) == 2:
            ops.gemv_dual(x, *self.weights, fused=False, out=out, config=self.config)
        else:
            ops.gemv(x, *self.weights, out=out[0], config=self.config)

    def launch_all(self) -> None:
        for i in range(len(self)):
            self.launch(i)

    def differences(self) -> Tensor:
        """How many outputs are wrong, counted on the GPU and in its own time."""
        return (self.outs.view(torch.int32) != self.expected.view(torch.int32)).sum()

    def check(self) -> None:
        """Compare every output, and poison it for the next round."""
        assert_bits(self.outs, self.expected)
        self.outs.fill_(float("nan"))
