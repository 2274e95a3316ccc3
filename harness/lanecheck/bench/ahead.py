"""Peers compile for their shapes ahead of the races, many shapes at once.

Compiling keeps one CPU busy for seconds while the GPU, which is dear, waits. So the peers that compile for a
shape run once beforehand, on as many CPUs as there are. What they compile stays in the caches on disk that
torch and Triton keep; what they tuned, on a GPU that others used meanwhile, is forgotten with the process.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import TimeoutError, as_completed
from contextlib import ExitStack, suppress
from itertools import accumulate, cycle

from lanecheck.bench import cost, plan
from lanecheck.bench.asking import Asking
from lanecheck.bench.cuda_rig import CudaRig
from lanecheck.bench.device import cuda_torch, described
from lanecheck.bench.peers import Product, Unavailable, gemlite
from lanecheck.bench.plan import Shape, Workload
from lanecheck.executor import deaf, pool_of
from lanecheck.gpu import Gpu
from lanecheck.listener import Listener
from lanecheck.subject import Params, load

FEW = 8
"""Shapes that compile sooner one after another than in processes that have to start first."""
TIME_LIMIT = 120.0
"""Seconds a shape, after which its race compiles what is left."""
_CONTEXT = 1 << 30
_OPERANDS = 4
"""A process needs a CUDA context with its libraries, and the operands so many times: as drawn, copied, in a
tuner, and in what its warm-up leaves."""


def compile_ahead(
    reference: str,
    gpus: Sequence[Gpu],
    memory_bytes: int,
    shapes: Sequence[Shape],
    seed: int,
    listener: Listener,
) -> None:
    """Compile what the peers need that are asked over these shapes, if these are not :data:`FEW`.

    Nothing depends on it: what fails or takes too long here is done by the race, which says why it fails.

    Args:
        reference: the subject, ``module:ATTRIBUTE``.
        memory_bytes: of each GPU.
    """
    compiling = worthwhile(shapes)
    if not compiling:
        return
    subject = plan.benchable(load(reference))
    sizes = [subject.traffic(params) for params, _ in compiling]
    workers = min(max(1, (os.cpu_count() or 1) // len(gpus)), fitting(sizes, memory_bytes))
    with ExitStack() as stack:
        pools = [stack.enter_context(pool_of(workers, gpu.uuid)) for gpu in gpus]
        with deaf():
            asked = [
                pool.schedule(prepare, (reference, *shape, seed), timeout=TIME_LIMIT)
                for pool, shape in zip(cycle(pools), compiling)
            ]
        listener.stage("compile", len(asked))
        for done, each in enumerate(as_completed(asked), 1):
            listener.advance(done)
            if isinstance(each.exception(), TimeoutError):
                for other in asked:  # a peer that hangs does so again, and only a race says which
                    other.cancel()
                break
    failed = sum(not each.done() or each.cancelled() or bool(each.exception()) for each in asked)
    rest = f"; {failed} of them failed, and compile in their races" if failed else ""
    listener.end(f"for the peers over {len(asked)} shapes{rest}", None if failed else True)


def worthwhile(shapes: Sequence[Shape]) -> list[Shape]:
    """The shapes that a peer compiles for, if these are not :data:`FEW`."""
    found = [shape for shape in shapes if cost.compiling(shape[1])]
    return found if len(found) >= FEW else []


def fitting(sizes: Sequence[int], memory_bytes: int) -> int:
    """How many processes fit into a GPU's memory, whichever shapes meet there; at least one.

    Args:
        sizes: bytes of each shape's operands.
    """
    needed = accumulate(_CONTEXT + _OPERANDS * size for size in sorted(sizes, reverse=True))
    return max(1, sum(total <= memory_bytes for total in needed))


def prepare(reference: str, params: Params, patience: float, seed: int) -> None:
    """In a process of its own: have every peer that is asked over a shape compile for it."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # there is a process for each CPU already
    cuda_torch()
    found, _ = described()
    workload = Workload(plan.benchable(load(reference)), params, seed)
    inputs = CudaRig(None, found.l2_bytes).draw(workload.subject, workload.case)
    product = Product.of(workload, inputs)
    gemlite.SAMPLING_MS = 0.0  # it compiles all of its choices; timed, they would wait for one GPU
    for peer in Asking(patience).peers:
        if peer.compiling_s:
            with suppress(Unavailable):
                peer.launches(product, 1)
