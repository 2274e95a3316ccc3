"""The process that Nsight Compute watches: ``python -m lanecheck.bench.launches JSON``.

It draws, packs and lays out one shape's operands as the benchmark does, and launches the subject once over
each copy; or replays the chain that the benchmark times. Only that lies between the start and the stop of
the profiler: what fills and packs the operands is over by then, and with ``--profile-from-start off`` ncu
leaves it out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from lanecheck.bench.cuda_rig import CudaRig
from lanecheck.bench.device import cuda_torch, described
from lanecheck.bench.plan import Workload, benchable, lay_out
from lanecheck.errors import LanecheckError
from lanecheck.subject import load

#: What begins each line that this process writes; then ``failed`` and why, or ``done`` and the launches of
#: each repeat.
PREFIX = "lanecheck:"
WARM_UP = 3
"""Replays of a chain before those that are measured: from then on, each meets the L2 as the one before it
left it."""


class Asked(BaseModel):
    """What to launch.

    Attributes:
        subject: ``module:ATTRIBUTE``. library: its build for the GPU.
        params: the shape, as the subject names it. seed: of its values.
        chain: whether the timed chain is replayed, all its launches as one graph; otherwise each launch is
            one of its own, over a copy of its own. repeats: how many of either are measured.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    subject: str
    library: Path
    params: dict[str, int | str]
    seed: int
    chain: bool
    repeats: int = Field(ge=1)


def main(arguments: Sequence[str]) -> int:
    """Launch what the only argument asks for; 1 if that cannot be done."""
    (asked,) = arguments
    try:
        launches = launch(Asked.model_validate_json(asked))
    except LanecheckError as error:
        print(PREFIX, "failed", error, flush=True)
        return 1
    print(PREFIX, "done", launches, flush=True)
    return 0


def launch(asked: Asked) -> int:
    """The launches on the current CUDA device, all of them done when this returns.

    Returns:
        How many each repeat is of.

    Raises:
        CannotRun: if there is no such device, or something cannot be launched.
        BadInput: if the subject does not say what to time.
    """
    torch, (found, _) = cuda_torch(), described()
    rig = CudaRig(asked.library, found.l2_bytes)
    workload = Workload(benchable(load(asked.subject)), asked.params, asked.seed)
    number = rig.copies(workload.bytes) if asked.chain else asked.repeats
    copies = lay_out(workload, rig, workload.drawn(rig), number)
    chain = rig.chain(copies.launches) if asked.chain else None
    if chain:
        for _ in range(WARM_UP):
            chain.enqueue()
        rig.settle()
    torch.cuda.profiler.start()
    for index in range(asked.repeats):
        if chain:
            chain.enqueue()
        else:
            rig.enqueue(copies.launches[index])
    rig.settle()
    torch.cuda.profiler.stop()
    return chain.launches if chain else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
