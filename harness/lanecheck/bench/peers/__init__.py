"""Peers: other ways to compute ``y = x · Wᵀ`` in BF16, timed in the same run.

A default heuristic is a weak peer. These are the best that torch and what installs beside it offer,
tuned for the shape where they can be, each with the weights in the layout it likes, and shown right before
it may race.
One that cannot take part is named in the record with the reason, so that a missing comparison never
looks like a won one.

``peer`` holds what they share, ``product`` the operands and the right answer, ``tuning`` how one is
chosen among variants; every other module is a peer or its kernels.
"""

from contextlib import suppress
from importlib import metadata

from lanecheck.bench.peers import cublaslt, gemlite, pytorch, skinny, tinygemm
from lanecheck.bench.peers.peer import Peer
from lanecheck.bench.peers.product import Product, Unavailable

CUBLAS = ("nvidia-cublas", "nvidia-cublas-cu12")
TRITON = ("triton", "pytorch-triton")
PEERS: tuple[Peer, ...] = (
    Peer("F.linear", pytorch.linear, packages=CUBLAS),
    Peer("mm transposed", pytorch.pretransposed, packages=CUBLAS),
    Peer("torch.compile", pytorch.compiled, 2.5, 2.0, packages=TRITON),
    Peer("cuBLASLt", cublaslt.autotuned, packages=("nvmath-python", *CUBLAS)),
    Peer("Triton", skinny.autotuned, packages=TRITON),
    Peer("gemlite", gemlite.linear, 11.0, 0.6, packages=("gemlite", *TRITON)),
    Peer("tinygemm", tinygemm.small, packages=("flashinfer-python",)),
)


def versions() -> dict[str, str]:
    """Of the packages that peers are made of, those that are installed, by name."""
    found = {}
    for package in sorted({package for peer in PEERS for package in peer.packages}):
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


__all__ = ["PEERS", "Peer", "Product", "Unavailable", "versions"]
