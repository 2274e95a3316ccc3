"""history, site, init."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from lanecheck.bench.plan import benchable, swept
from lanecheck.bench.table import span
from lanecheck.cli.options import MatrixOption, matrix_path, out, read_matrix, relative
from lanecheck.errors import BadInput
from lanecheck.reports import model, store, summary
from lanecheck.reports.model import Report
from lanecheck.site import pages
from lanecheck.subject import Params, load


def history(path: MatrixOption = None) -> None:
    """List the recorded reports, oldest first.

    Example: lanecheck verify --record && lanecheck history
    """
    table = Table("created", "device", "commit", "shown", "of ceiling")
    for report in _recorded(matrix_path(path).parent):
        table.add_row(
            report.created.strftime("%Y-%m-%d %H:%M"),
            summary.machine(report),
            report.source.commit,
            "[bold red]DISPROVEN[/]" if report.disproven else summary.contents(report),
            span(report.bench) if report.bench else "",
        )
    out.print(table)


def site(
    output: Annotated[Path, typer.Option(help="Folder to write.")] = Path(".lanecheck/site"),
    path: MatrixOption = None,
) -> None:
    """Build the pages of what is verified, from the recorded reports.

    Example: lanecheck verify --record && lanecheck site --output public
    """
    reports, loaded = _recorded(matrix_path(path).parent), read_matrix(path)
    print(relative(pages.build(reports, loaded, output, _swept(loaded.subject))))


def init(
    output: Annotated[Path, typer.Option(help="File to write.")] = Path("lanecheck_subject.py"),
) -> None:
    """Write a commented subject template for your own kernel.

    Example: lanecheck init --output my_subject.py
    """
    if output.suffix != ".py":
        raise BadInput(f"--output {output} is not a Python file: give it a name that ends in .py")
    if output.exists():
        raise BadInput(f"{output} exists; choose another --output")
    template = Path(__file__).parent.parent / "template.py"
    model.write_text(template.read_text(), output)
    reference = shlex.quote(f"{output}:SUBJECT")
    print(f"{output}: now run lanecheck fuzz --subject {reference} --cases 200")


COMMANDS = (history, site, init)


def _swept(reference: str) -> list[Params]:
    """The shapes of the subject's sweep; none where it is not installed, or has no sweep."""
    try:
        return [params for params, _ in swept(benchable(load(reference)))]
    except BadInput:
        return []


def _recorded(root: Path) -> list[Report]:
    reports = [model.read(file) for file in store.recorded(root)]
    if not reports:
        raise BadInput(
            f"no report under {root / store.RECORDED}: record one with lanecheck verify --record"
        )
    return reports
