"""What a run looks like on a terminal: progress while it lasts, then the table of verdicts."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from lanecheck.matrix import Job, Matrix
from lanecheck.reports.model import CellRecord, Report, Status

_MARK = {
    Status.VERIFIED: "[green]verified[/]",
    Status.DISPROVEN: "[bold red]DISPROVEN[/]",
    Status.UNVERIFIED: "[dim]unverified[/]",
}
_ENDLESS = 1000  # columns of a file: nothing is folded that a reader may want to search or copy
_TITLE = 22
_QUIET = 20.0  # seconds between the signs of life in a log


def console(*, stderr: bool = False) -> Console:
    """Standard output or error: as wide as the terminal, or endless where there is none."""
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, highlight=False, width=None if terminal else _ENDLESS)


class Progressing:
    """A :class:`~lanecheck.listener.Listener`: a line a step, and while it runs a bar on a terminal, or in a
    log now and then a line on standard error."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(16),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True)),
            console=out,
            transient=True,
            disable=not out.is_terminal,
        )
        self._title, self._total, self._said = "", "", 0.0
        self._task = self._progress.add_task("", visible=False, note="")

    def __enter__(self) -> Progressing:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def stage(self, title: str, total: float | None = None) -> None:
        of = f" of {total:,.0f}" if total else ""
        self._title, self._total, self._said = title, of, time.monotonic()
        self._progress.reset(
            self._task, total=total, description=f"{title:<{_TITLE}}", visible=True, note=""
        )

    def advance(self, done: float, note: str = "") -> None:
        self._progress.update(self._task, completed=done, note=escape(note))
        if self._progress.disable and time.monotonic() - self._said > _QUIET:
            self._said = time.monotonic()
            text = f"{self._title}: {done:,.0f}{self._total} {note}"
            print(text.rstrip(), file=sys.stderr, flush=True)

    def end(self, summary: str, good: bool | None = True) -> None:
        self._progress.update(self._task, visible=False)
        line = Table.grid(
            Column(), Column(min_width=_TITLE, no_wrap=True), Column(), padding=(0, 1)
        )
        mark = {True: "[green]ok[/]", False: "[bold red]!![/]", None: "[yellow]--[/]"}[good]
        line.add_row(mark, self._title, escape(summary))
        self._out.print(line)


def verdict_table(report: Report, matrix: Matrix) -> Table:
    """arch × job, each cell verified, disproven or unverified."""
    table = Table()
    table.add_column("arch", style="bold")
    for job in matrix.jobs.values():
        table.add_column(job.column)
    for arch in matrix.archs:
        table.add_row(arch, *(_cell(report, arch, job) for job in matrix.jobs.values()))
    return table


def reasons(report: Report, matrix: Matrix) -> list[str]:
    """One line for each reason that cells are not verified, with how many it explains."""
    counted: dict[tuple[Status, str, str], int] = {}
    for cell in report.cells:
        if cell.status is not Status.VERIFIED:
            key = (cell.status, matrix.jobs[cell.job].column, cell.reason)
            counted[key] = counted.get(key, 0) + 1
    return [
        f"{_MARK[status]}: {column}: {escape(reason)}" + (f" ({count} cells)" if count > 1 else "")
        for (status, column, reason), count in counted.items()
    ]


def _cell(report: Report, arch: str, job: Job) -> str:
    cells = [cell for cell in report.cells if cell.arch == arch and cell.job == job.name]
    for status in (Status.DISPROVEN, Status.VERIFIED):
        if some := [cell for cell in cells if cell.status is status]:
            return _MARK[status] + _devices(some, job) + _evidence(some)
    return _MARK[Status.UNVERIFIED]


def _evidence(cells: list[CellRecord]) -> str:
    """How the model is known that predicted the bits."""
    known = [cell.evidence for cell in cells if cell.evidence]
    return f" ({known[0]} model)" if known else ""


def _devices(cells: list[CellRecord], job: Job) -> str:
    return f" {', '.join(cell.device for cell in cells)}" if job.gpu else ""
