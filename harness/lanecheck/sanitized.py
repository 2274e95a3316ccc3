"""The process that compute-sanitizer watches: ``python -m lanecheck.sanitized SUBJECT LIBRARY LINES``.

It launches the cases whose lines are in the file LINES, and judges nothing: the tool does. What a tool can
see depends on the memory it is shown, so that is kept to what a launch is promised:

- Every tensor is an allocation of its own, to the byte: memcheck's bounds are the tensor's.
- Of what a launch is given, the elements are copied to the device. Nothing else is ever written, no poison
  and no canary: to initcheck, outputs, workspaces, and what lies between rows hold nothing.
- The outputs' elements are copied back, which initcheck takes for a read: one that the kernel left out shows.

racecheck and synccheck look at shared memory and at barriers, and ask for none of this. Each case is
announced, launched and waited for, so that what a tool says belongs to the case last announced.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lanecheck import cases
from lanecheck.cases import Case
from lanecheck.cuda_driver import CudaError, Driver
from lanecheck.subject import Bits, Buffer, Subject, Tensor, load
from lanecheck.trial import draw_inputs, operands

#: What begins each line that this process writes; then ``case``, ``failed`` or ``done``.
PREFIX = "lanecheck:"


def main(arguments: Sequence[str]) -> int:
    """Launch every case; 1 if one could not be launched, or the device reported an error."""
    reference, library, listing = arguments
    subject, kernels, driver = load(reference), ctypes.CDLL(library), Driver()
    for number, line in enumerate(Path(listing).read_text().splitlines()):
        try:
            failure = _launch(subject, cases.parse(line, subject), number, kernels, driver)
        except CudaError as error:
            failure = str(error)
        if failure:
            _say("failed", failure)
            return 1
    _say("done")
    return 0


def _launch(
    subject: Subject, case: Case, number: int, kernels: ctypes.CDLL, driver: Driver
) -> str | None:
    values = operands(subject, case.params, draw_inputs(subject, case))
    tensors = [tensor for tensor in subject.tensors(case.params) if tensor.role != "source"]
    sizes = {tensor.name: tensor.span * tensor.item.itemsize for tensor in tensors}
    bases = {name: driver.allocate(max(1, size)) for name, size in sizes.items()}
    buffers = {t.name: Buffer(bases[t.name] + t.offset * t.item.itemsize) for t in tensors}
    for tensor in tensors:
        if tensor.name in values:
            for address, row in _rows(tensor, buffers[tensor.name].address, values[tensor.name]):
                driver.upload(address, row)
    driver.synchronize()
    _say("case", str(number), *(f"{name}={bases[name]:#x}+{sizes[name]}" for name in bases))
    failure = subject.launch(kernels, case.params, buffers, driver.stream)
    driver.synchronize()
    for tensor in tensors:
        if tensor.role == "output":
            result = np.empty(tensor.shape, tensor.item)
            for address, row in _rows(tensor, buffers[tensor.name].address, result):
                driver.download(address, row)
    driver.synchronize()
    for base in bases.values():
        driver.free(base)
    return failure


def _rows(tensor: Tensor, address: int, elements: Bits) -> Iterator[tuple[int, Bits]]:
    """A tensor's elements by runs that lie together on the device, each with its address."""
    if not elements.size:
        return
    rows = np.ascontiguousarray(elements).reshape(tensor.shape[0] if tensor.shape else 1, -1)
    if rows.shape[1] == tensor.stride:
        rows = rows.reshape(1, -1)
    for number, row in enumerate(rows):
        yield address + number * tensor.stride * tensor.item.itemsize, row


def _say(*words: str) -> None:
    print(PREFIX, *words, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
