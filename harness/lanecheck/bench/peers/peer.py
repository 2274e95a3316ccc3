"""What all peers share: silence, the check of their numbers, and reasons instead of crashes."""

from __future__ import annotations

import importlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from lanecheck.bench.peers.product import (
    FAILURES,
    Copies,
    Multiply,
    Product,
    Unavailable,
    error,
    line,
    refuse_wrong,
    why,
)
from lanecheck.bench.timing import CudaGraphClock, Launch

Prepare = Callable[[Copies], Sequence[Multiply]]
"""Makes a peer ready: what to call for each copy, in order; raises :class:`Unavailable` with a reason."""


@dataclass(frozen=True)
class Peer:
    """Another implementation.

    Attributes:
        name: what the record calls it.
        prepare: it over copies of a product's operands.
        compiling_s: seconds of one CPU in which it compiles for a shape, before the races if these are many.
            This and the next are leads, of an H200; at 0 are those that need little of both: Triton's 20
            variants took 0.06 to 1.6 s.
        tuning_s: seconds in which it then chooses what is fastest, and the GPU is its own.
        packages: what it is made of beside torch, as package registries call it.
    """

    name: str
    prepare: Prepare
    compiling_s: float = 0.0
    tuning_s: float = 0.0
    packages: tuple[str, ...] = ()

    def launches(self, product: Product, copies: int) -> list[Launch]:
        """It over so many copies of a product's operands, on their device, each shown right.

        The launches too raise nothing but :class:`Unavailable`.

        Raises:
            Unavailable: if it is not installed, does not know the shape, fails, or is wrong.
        """
        try:
            with _silence():
                return self._shown_right(Copies(product, copies))
        except FAILURES as failure:
            reason = why(failure)
        raise Unavailable(reason)  # from here, where no traceback keeps the copies in memory

    def _shown_right(self, copies: Copies) -> list[Launch]:
        import torch

        calls = self.prepare(copies)
        reference = copies.product.reference
        signed = reference, -reference
        errors = [error(multiply, signed[index % 2]) for index, multiply in enumerate(calls)]
        refuse_wrong(torch.stack(errors))  # all at once: the host waits for the device
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
    except FAILURES as failure:
        root = module.partition(".")[0]
        if isinstance(failure, ModuleNotFoundError) and (failure.name or "").startswith(root):
            hint = f"{package} is not installed: pip install {install}"
            raise Unavailable(hint) from None
        raise Unavailable(f"{package} cannot be imported: {line(failure)}") from None


def on_gpu(copies: Copies) -> None:
    """
    Raises:
        Unavailable: if the copies do not lie on a CUDA device.
    """
    if copies.device.type != "cuda":
        raise Unavailable("it needs a CUDA device")


def _launch(multiply: Multiply) -> Launch:
    def launch(stream: int) -> Any:  # of which the clock makes torch's current one
        try:
            return multiply()
        except FAILURES as failure:
            raise Unavailable(why(failure)) from None

    return launch


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
