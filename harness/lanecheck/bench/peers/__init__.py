"""Peers: other ways to compute ``y = x · Wᵀ`` in BF16, timed in the same run.

A default heuristic is a weak peer. These are the best that torch and what installs beside it offer,
each tuned for the shape, with the weights in the layout it likes, and shown right before it may race.
One that cannot take part is named in the record with the reason, so that a missing comparison never
looks like a won one.

``peer`` holds what they share, ``product`` the operands and the right answer, ``tuning`` how one is
chosen among variants; every other module is a peer or its kernels.
"""

from lanecheck.bench.peers import cublaslt, gemlite, pytorch, skinny, tinygemm
from lanecheck.bench.peers.peer import Peer
from lanecheck.bench.peers.product import Product, Unavailable

PEERS: tuple[Peer, ...] = (
    Peer("F.linear", pytorch.linear),
    Peer("mm, pre-transposed", pytorch.pretransposed),
    Peer("torch.compile max-autotune", pytorch.compiled),
    Peer("cuBLASLt, autotuned", cublaslt.autotuned),
    Peer("Triton, autotuned", skinny.autotuned),
    Peer("gemlite", gemlite.linear),
    Peer("flashinfer tinygemm", tinygemm.small),
)

__all__ = ["PEERS", "Peer", "Product", "Unavailable"]
