"""What all peers share: operands, silence, the check of their numbers, and reasons instead of crashes."""

from __future__ import annotations

import importlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from lanecheck.bench.peers.product import Copies, Product, Unavailable, error
from lanecheck.bench.plan import Workload
from lanecheck.bench.timing import CudaGraphClock, Launch

TOLERANCE = 1e-2
"""Of the relative Frobenius error. Rounding each output to BF16 once errs by 2⁻⁹ = 0.2 % at most, and
FP32 accumulation adds some √K · 2⁻²⁴; a split K whose parts are summed in BF16 rounds a few times more.
A K block left out, a wrong row or an unwritten one errs by far more than this."""

Multiply = Callable[[], Any]
"""Enqueues one copy's product on torch's current stream; returns y[M, N], BF16."""
Prepare = Callable[[Copies], Sequence[Multiply]]
"""Makes a peer ready: what to call for each copy, in order; raises :class:`Unavailable` with a reason."""


@dataclass(frozen=True)
class Peer:
    """Another implementation.

    Attributes:
        name: what the record calls it.
        prepare: it over copies of a product's operands.
    """

    name: str
    prepare: Prepare

    def launches(self, workload: Workload, copies: int, device: Any = "cuda") -> list[Launch]:
        """It over so many copies of a workload's operands on a torch device, each shown right.

        Raises:
            Unavailable: if it is not installed, does not know the shape, fails, or is wrong.
        """
        product = Product.of(workload)
        try:
            with _silence():
                return self._shown_right(product, copies, device)
        except Unavailable:
            raise
        except Exception as reason:  # others' code fails in ways of its own, and the race goes on
            raise Unavailable(f"it fails: {_line(reason)}") from None

    def _shown_right(self, product: Product, count: int, device: Any) -> list[Launch]:
        import torch

        copies = Copies(product, count, torch.device(device))
        calls = self.prepare(copies)
        reference = copies.reference()
        for index, multiply in enumerate(calls):
            multiply().fill_(torch.nan)  # what an earlier call left is no result of the next
            wrong = error(multiply(), -reference if index % 2 else reference)
            if not wrong <= TOLERANCE:  # NaN too
                raise Unavailable(f"its result is wrong: relative error {wrong:.1e}")
        launches = [_launch(multiply) for multiply in calls]
        if copies.device.type == "cuda":
            CudaGraphClock().prepare(launches[:1])()  # what cannot be captured fails here
        return launches


def installed(module: str, package: str, install: str) -> Any:
    """The module, of a package that ``pip install`` knows as ``install``.

    Raises:
        Unavailable: if there is none, or it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except Exception as reason:
        root = module.partition(".")[0]
        if isinstance(reason, ModuleNotFoundError) and (reason.name or "").startswith(root):
            hint = f"{package} is not installed: pip install {install}"
            raise Unavailable(hint) from None
        raise Unavailable(f"{package} cannot be imported: {_line(reason)}") from None


def on_gpu(copies: Copies) -> None:
    """
    Raises:
        Unavailable: if the copies do not lie on a CUDA device.
    """
    if copies.device.type != "cuda":
        raise Unavailable("it needs a CUDA device")


def _launch(multiply: Multiply) -> Launch:
    def launch(stream: int) -> None:  # of which the clock makes torch's current one
        multiply()

    return launch


def _line(reason: Exception) -> str:
    """An exception as one line."""
    lines = str(reason).strip().splitlines()
    return f"{type(reason).__name__}: {lines[0]}" if lines else type(reason).__name__


@contextmanager
def _silence() -> Iterator[None]:
    """Swallows what libraries print, log and warn of while they compile and tune."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
