"""A second subject, y = x · wᵀ by torch (or numpy where torch is absent), and the ways it can be wrong.

It keeps the harness honest: whatever works for this callable owes nothing to any one kernel. Each
wrong variant is a module attribute, ``second_subject:DROPS_LAST_K``, so that workers can load it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from lanecheck.errors import BadInput
from lanecheck.order import Order
from lanecheck.subject import Bits, Buffer, Draw, Params, Product, Subject, Tensor
from lanecheck.tensorcore import HOPPER, TensorCore
from lanecheck.values import real_values, rounded_bits

#: The k for which a variant that ends its process does so; about one case in 24.
FATAL_K = 13


class Matmul(Subject):
    """y[m, n] = x[m, k] · w[n, k]ᵀ in FP32, stored as FP32 or BF16, rows of y apart by n + ypad."""

    name = "matmul"

    def draw(self, draw: Draw) -> dict[str, int | str]:
        return {
            "m": draw.integer(1, 6),
            "n": draw.integer(1, 8),
            "k": draw.integer(1, 24),
            "out": draw.choice(("fp32", "bf16")),
            "xoff": draw.choice((0, draw.integer(1, 9))),
            "ypad": draw.choice((0, draw.integer(1, 5))),
        }

    def tensors(self, params: Params) -> list[Tensor]:
        m, n, k, xoff, ypad = (int(params[axis]) for axis in ("m", "n", "k", "xoff", "ypad"))
        if min(m, n, k) < 1 or min(xoff, ypad) < 0:
            raise BadInput(f"m={m} n={n} k={k} xoff={xoff} ypad={ypad}: outside the domain")
        if params["out"] not in ("fp32", "bf16"):
            raise BadInput(f"out={params['out']}: it is fp32 or bf16")
        out: Literal["fp32", "bf16"] = "fp32" if params["out"] == "fp32" else "bf16"
        return [
            Tensor("x", (m, k), "bf16", "input", offset=xoff),
            Tensor("w", (n, k), "bf16", "input"),
            Tensor("y", (m, n), out, "output", row_stride=n + ypad),
        ]

    def terms(self, params: Params) -> int:
        return int(params["k"])

    def launch(
        self, library: Any, params: Params, buffers: Mapping[str, Buffer], stream: int
    ) -> str | None:
        x, w, y = (buffers[name].elements for name in ("x", "w", "y"))
        assert x is not None and w is not None and y is not None
        self.store(y, self.product(x, w, str(params["out"])))
        return None

    def product(self, x: Bits, w: Bits, out: str) -> Bits:
        """The bits of x · wᵀ."""
        try:
            import torch
        except ImportError:
            return ByNumpy().product(x, w, out)
        x32, w32 = (
            torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float() for bits in (x, w)
        )
        y = x32 @ w32.T
        if out == "fp32":
            return y.view(torch.int32).numpy().view(np.uint32)
        return y.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)

    def store(self, y: Bits, bits: Bits) -> None:
        """Write the result into the output's memory."""
        y[...] = bits

    def reference(
        self, params: Params, inputs: Mapping[str, Bits]
    ) -> dict[str, npt.NDArray[np.float64]]:
        with np.errstate(invalid="ignore"):
            return {"y": real_values(inputs["x"]) @ real_values(inputs["w"]).T}

    def products(self, params: Params) -> list[Product]:
        return [Product("y", "x", "w")]


class ByNumpy(Matmul):
    """The same without torch, which a process that soon dies need not import."""

    def product(self, x: Bits, w: Bits, out: str) -> Bits:
        with np.errstate(all="ignore"):
            x32, w32 = (bits.view(ml_dtypes.bfloat16).astype(np.float32) for bits in (x, w))
            y = x32 @ w32.T
            stored = y if out == "fp32" else y.astype(ml_dtypes.bfloat16)
        return stored.view(np.uint32 if out == "fp32" else np.uint16)


# Wrong results --------------------------------------------------------------------------------


class DropsLastK(Matmul):
    def product(self, x: Bits, w: Bits, out: str) -> Bits:
        return super().product(x[:, :-1], w[:, :-1], out)


class SwapsTwoRows(Matmul):
    def store(self, y: Bits, bits: Bits) -> None:
        y[...] = bits
        if len(y) > 1:
            y[:2] = bits[1::-1]


class LeavesAnElement(Matmul):
    def store(self, y: Bits, bits: Bits) -> None:
        y.flat[:-1] = bits.flat[:-1]


class Predicting(Matmul):
    """Declares its bits, those of its own product: what an order of additions would give."""

    def predict(
        self, params: Params, inputs: Mapping[str, Bits], core: TensorCore
    ) -> dict[str, Bits] | None:
        return {"y": Matmul().product(inputs["x"], inputs["w"], str(params["out"]))}


class FlipsLowestBit(Predicting):
    """In the real-valued regimes only the predicted bits can tell."""

    def store(self, y: Bits, bits: Bits) -> None:
        y[...] = bits
        y[-1, -1] ^= 1


class Reorders(Matmul):
    """k sums of 16 terms on Hopper's tensor core, added from last to first, not as it declares."""

    def tensors(self, params: Params) -> list[Tensor]:
        return super().tensors({**params, "k": 16 * int(params["k"])})

    def terms(self, params: Params) -> int:
        return 16 * int(params["k"])

    def product(self, x: Bits, w: Bits, out: str) -> Bits:
        return self.added(sums_of_16(HOPPER, x, w)[::-1], out)

    def predict(
        self, params: Params, inputs: Mapping[str, Bits], core: TensorCore
    ) -> dict[str, Bits] | None:
        sums = sums_of_16(core, inputs["x"], inputs["w"])
        return {"y": self.added(sums, str(params["out"]))}

    def order(self, params: Params) -> Order:
        sums = int(params["k"])
        chains = tuple(range(each, each + 1) for each in range(sums))
        return Order(np.arange(16 * sums).reshape(sums, 16), chains, (tuple(range(sums)),))

    def exposed(self, params: Params) -> Params:
        return {**params, "out": "fp32"}

    def finish(
        self, params: Params, sums: Mapping[str, npt.NDArray[np.float32]]
    ) -> dict[str, Bits]:
        return {"y": self.added([sums["y"]], str(params["out"]))}

    def added(self, sums: Sequence[npt.NDArray[np.float32]], out: str) -> Bits:
        with np.errstate(all="ignore"):
            y = functools.reduce(np.add, sums)
        bits = rounded_bits(y, np.dtype(np.uint32 if out == "fp32" else np.uint16))
        return np.where(np.isnan(y), 0x7FFFFFFF if out == "fp32" else 0x7FFF, bits)


def sums_of_16(core: TensorCore, x: Bits, w: Bits) -> npt.NDArray[np.float32]:
    """Those that make up x · wᵀ, at most 8 by 16, in one mma each: ``[K / 16, M, N]``."""
    (m, k), n = x.shape, len(w)
    a, b = np.zeros((16, k), np.uint16), np.zeros((k, 8), np.uint16)
    a[:n], b[:, :m] = w, x.T
    tiles = a.reshape(16, -1, 16).swapaxes(0, 1), b.reshape(-1, 16, 8)
    return core.mma(*tiles, np.zeros((16, 8), np.float32))[:, :n, :m].swapaxes(1, 2)


# Wrong accesses -------------------------------------------------------------------------------


class Spoils(ByNumpy):
    """Right results, and damage at ``offset`` bytes from the ``end`` (or start) of a buffer."""

    def __init__(self, buffer: str, offset: int = 0, end: bool = False, size: int = 2) -> None:
        self._buffer, self._offset, self._end, self._size = buffer, offset, end, size

    def launch(
        self, library: Any, params: Params, buffers: Mapping[str, Buffer], stream: int
    ) -> str | None:
        super().launch(library, params, buffers, stream)
        (tensor,) = (each for each in self.tensors(params) if each.name == self._buffer)
        length = (tensor.span - tensor.offset) * tensor.item.itemsize
        at = buffers[self._buffer].address + self._offset + (length if self._end else 0)
        ctypes.memset(at, 0x3C, self._size)
        return None


class WritesIntoGap(Matmul):
    """One element past the first row."""

    def launch(
        self, library: Any, params: Params, buffers: Mapping[str, Buffer], stream: int
    ) -> str | None:
        super().launch(library, params, buffers, stream)
        if params["ypad"] and int(params["m"]) > 1:
            size = 4 if params["out"] == "fp32" else 2
            ctypes.memset(buffers["y"].address + int(params["n"]) * size, 0, size)
        return None


# Processes that do not come back --------------------------------------------------------------


class Ends(ByNumpy):
    """Right results, unless k is :data:`FATAL_K`."""

    def launch(
        self, library: Any, params: Params, buffers: Mapping[str, Buffer], stream: int
    ) -> str | None:
        if params["k"] == FATAL_K:
            self.end()
        return super().launch(library, params, buffers, stream)

    def end(self) -> None:
        raise NotImplementedError


class Hangs(Ends):
    def end(self) -> None:
        time.sleep(3600)


class Segfaults(Ends):
    def end(self) -> None:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # no handler prints a traceback
        ctypes.memset(8, 0, 1)


class IsKilled(Ends):
    """As where memory is short."""

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class ExitsAtOnce(Ends):
    def end(self) -> None:
        os._exit(3)


class ExitsPolitely(Ends):
    """With the code that means success."""

    def end(self) -> None:
        sys.exit(0)


class Raises(Ends):
    def end(self) -> None:
        raise RuntimeError("no kernel image is available")


class DiesInCompany(ByNumpy):
    """At the ninth launch of its process, the fifth case, whatever it is."""

    def __init__(self) -> None:
        self._launches = 0

    def product(self, x: Bits, w: Bits, out: str) -> Bits:
        self._launches += 1
        if self._launches == 9:
            os._exit(4)
        return super().product(x, w, out)


SUBJECT = Matmul()
DROPS_LAST_K = DropsLastK()
SWAPS_TWO_ROWS = SwapsTwoRows()
LEAVES_AN_ELEMENT = LeavesAnElement()
PREDICTING = Predicting()
FLIPS_LOWEST_BIT = FlipsLowestBit()
REORDERS = Reorders()
WRITES_INTO_GAP = WritesIntoGap()
WRITES_PAST_END = Spoils("y", offset=1, end=True, size=3)
WRITES_BEFORE_START = Spoils("w", offset=-4)
WRITES_INTO_INPUT = Spoils("x")
HANGS = Hangs()
SEGFAULTS = Segfaults()
IS_KILLED = IsKilled()
EXITS_AT_ONCE = ExitsAtOnce()
EXITS_POLITELY = ExitsPolitely()
RAISES = Raises()
DIES_IN_COMPANY = DiesInCompany()
