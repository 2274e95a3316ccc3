"""Who is told how a long run gets on."""

from __future__ import annotations

from typing import Protocol


class Listener(Protocol):
    """Is told how a run gets on, step by step."""

    def stage(self, title: str, total: float | None = None) -> None:
        """A step begins; ``total`` units of work are expected, if known."""

    def advance(self, done: float, note: str = "") -> None:
        """``done`` units of the current step are behind us."""

    def end(self, summary: str, good: bool | None = True) -> None:
        """The current step is over; None if it showed nothing."""
