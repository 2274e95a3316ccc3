"""What a benchmark costs, before it runs: what its log says, or a rule of thumb for what the log lacks."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from lanecheck.bench.asking import Asking
from lanecheck.bench.timing import copies, turns

LAUNCH_US = 2.0
"""Microseconds a launch, beside its bytes. This and the next are leads, of an H200."""
PREPARING_S = 1.5
"""Seconds a shape in which everything is judged, laid out, captured and doubted."""
LEAST_GBPS = 100.0
"""No memory of a GPU that is timed is slower."""
SLACK_S = 240.0
"""Seconds that a shape may take beyond the rule of thumb, for the least memory, until it counts as hung. The
first one of a process took 44 s on an H200: its peers load their libraries. A hang costs them once, a shape
that is cut too soon its peers."""
STARTING_S = 12.0
"""Seconds until the processes that compile ahead have loaded what they compile with."""


def compiling(patience: float) -> float:
    """Seconds of one CPU in which the peers that are asked compile for a shape."""
    return sum(peer.compiling_s for peer in Asking(patience).peers)


def ahead(patiences: Sequence[float], cpus: int) -> float:
    """Seconds in which the peers compile for shapes, as many at once as there are CPUs.

    Args:
        patiences: of each shape, the seconds that a peer may take to tune.
    """
    return STARTING_S + sum(map(compiling, patiences)) / cpus


def seconds(size: int, rounds: int, gbps: float, patience: float, compiled: bool = False) -> float:
    """A shape's cost by rule of thumb.

    Args:
        size: bytes that one launch moves.
        gbps: of the memory, in 10^9 bytes a second.
        patience: seconds that a peer may take to tune.
        compiled: whether the peers did so ahead.
    """
    count, peers = copies(size, l2=0), Asking(patience).peers
    launches = count * turns(count)
    replay = launches * (LAUNCH_US * 1e-6 + size / gbps / 1e9)
    contenders = 3 + len(peers)  # the subject and both ceilings
    tuning = sum(peer.tuning_s for peer in peers) + (0.0 if compiled else compiling(patience))
    return PREPARING_S + tuning + 2 * rounds * contenders * replay


def limit(size: int, rounds: int, patience: float) -> float:
    """Seconds after which a shape counts as hung.

    Args:
        size: bytes that one launch moves.
        patience: seconds that a peer may take to tune.
    """
    return SLACK_S + seconds(size, rounds, LEAST_GBPS, patience)


def estimate(left: Sequence[float], done: Sequence[tuple[float, float]]) -> float:
    """Seconds of the shapes that are left.

    Args:
        left: by rule of thumb, of each.
        done: of each shape in the log, by rule of thumb and in truth; these correct the rule.
    """
    correction = median([truth / rule for rule, truth in done]) if done else 1.0
    return correction * sum(left)
