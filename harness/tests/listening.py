"""A listener for tests."""

from __future__ import annotations


class Heard:
    """Keeps what it is told.

    Attributes:
        stages: title and total of each. notes: of each step within them. said: at the end of each.
        good: whether it ended well.
    """

    def __init__(self) -> None:
        self.stages: list[tuple[str, float | None]] = []
        self.notes: list[str] = []
        self.said: list[str] = []
        self.good: list[bool | None] = []

    def stage(self, title: str, total: float | None = None) -> None:
        self.stages.append((title, total))

    def advance(self, done: float, note: str = "") -> None:
        self.notes.append(note)

    def end(self, summary: str, good: bool | None = True) -> None:
        self.said.append(summary)
        self.good.append(good)
