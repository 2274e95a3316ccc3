"""Which peers are asked over a shape, and what becomes of one whose code ends the process."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from lanecheck.bench.peers import PEERS, Peer

DEATHS = 2
"""Processes that a peer may end in a run before it is not asked any more. Each costs some 15 s of a GPU. Of
those that hang, minutes each, one is enough."""


@dataclass(frozen=True)
class Asking:
    """Which peers are asked over one shape.

    Attributes:
        patience: seconds of the GPU in which a peer may tune for it.
        refused: by name, why a peer is not asked whatever it needs.
        note: a file that holds the name of the peer at work, and outlives the process.
    """

    patience: float
    refused: Mapping[str, str] = field(default_factory=dict)
    note: Path = Path(os.devnull)

    @property
    def peers(self) -> tuple[Peer, ...]:
        """Those that are."""
        return tuple(peer for peer in PEERS if not self.refusal(peer))

    @property
    def names(self) -> tuple[str, ...]:
        """Of those that are."""
        return tuple(peer.name for peer in self.peers)

    def refusal(self, peer: Peer) -> str:
        """Why a peer is not; empty if it is."""
        if reason := self.refused.get(peer.name):
            return reason
        if peer.tuning_s > self.patience:
            return (
                f"it takes some {peer.tuning_s:g} s of the GPU to tune, and has {self.patience:g}"
            )
        return ""

    def without(self, names: Iterable[str], reason: str) -> Asking:
        """The same, but for the peers of these names."""
        return replace(self, refused={**self.refused, **dict.fromkeys(names, reason)})

    def alone(self, reason: str) -> Asking:
        """The same, without any peer."""
        return self.without([peer.name for peer in PEERS], reason)

    @contextmanager
    def at_work(self, peer: Peer) -> Iterator[None]:
        """While a peer's code runs: it is to blame for what is raised in here, or ends the process."""
        self.note.write_text(peer.name)
        yield
        self.note.write_text("")

    @property
    def culprit(self) -> str:
        """The name of the peer that was at work when its process ended; empty if none was that is asked."""
        found = self.note.read_text()
        return found if found in self.names else ""


class Trust:
    """The peers that a run still asks.

    Args:
        lost: by name, why it does not ask the others.
        on_loss: called with the name of another one that it asks no more, and why.
    """

    def __init__(self, lost: Mapping[str, str], on_loss: Callable[[str, str], None]) -> None:
        self._lost, self._on_loss = dict(lost), on_loss
        self._deaths: Counter[str] = Counter()

    def asking(self, patience: float, note: Path) -> Asking:
        """Whom it asks over another shape."""
        return Asking(patience, dict(self._lost), note)

    def after(self, asking: Asking, evidence: str, hung: bool = False) -> Asking | None:
        """Whom it asks over a shape again, after an attempt that ended the process; None if it asked none.

        Args:
            asking: of that attempt.
            evidence: what ended it. hung: whether that was the limit of its time.
        """
        if not asking.peers:
            return None
        culprit = asking.culprit
        if not culprit:
            return asking.alone(f"an attempt with peers failed: {evidence}")
        self._deaths[culprit] += 1
        if hung or self._deaths[culprit] == DEATHS:
            times = "" if hung else f" {DEATHS} times"
            self._lost[culprit] = f"over earlier shapes it ended the process{times}: {evidence}"
            self._on_loss(culprit, self._lost[culprit])
        return asking.without([culprit], f"it ended the process: {evidence}")
