"""What a benchmark costs, before it runs: what its log says, or a rule of thumb for what the log lacks."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from lanecheck.bench.peers import PEERS
from lanecheck.bench.timing import copies, turns

CONTENDERS = 3 + len(PEERS)
"""The subject, both ceilings, and every peer."""
LAUNCH_US = 2.0
"""Microseconds a launch, beside its bytes: a lead, of an H200."""
PREPARING_S = 40.0
"""Seconds a shape in which peers compile and tune: a lead."""
HOST_NS = 150.0
"""Nanoseconds a byte of operands: drawn, packed, judged and laid out by the host, several times. A lead."""


def seconds(size: int, rounds: int, gbps: float) -> float:
    """A shape's cost by rule of thumb.

    Args:
        size: bytes that one launch moves.
        gbps: of the memory, in 10^9 bytes a second.
    """
    held = copies(size, l2=0)
    launches = held * turns(held)
    replay = launches * (LAUNCH_US * 1e-6 + size / gbps / 1e9)
    return PREPARING_S + HOST_NS * 1e-9 * size + 2 * rounds * CONTENDERS * replay


def estimate(left: Sequence[float], done: Sequence[tuple[float, float]]) -> float:
    """Seconds of the shapes that are left.

    Args:
        left: by rule of thumb, of each.
        done: of each shape in the log, by rule of thumb and in truth; these correct the rule.
    """
    correction = median([truth / rule for rule, truth in done]) if done else 1.0
    return correction * sum(left)
