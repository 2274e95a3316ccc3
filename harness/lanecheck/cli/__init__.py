"""The command line: a thin edge over the package.

Exit codes: 0 nothing disproven and every required cell verified, 1 disproven, 2 bad input, 3 could not
be run.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.markup import escape

from lanecheck import __version__
from lanecheck.cli import builds, checks, records
from lanecheck.cli.options import err
from lanecheck.errors import LanecheckError

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)
for group in (checks, builds, records):
    for command in group.COMMANDS:
        app.command()(command)


def main() -> None:
    """Entry point: an error of the user's making is one line and an exit code."""
    try:
        app()
    except LanecheckError as error:
        err.print(f"[bold red]lanecheck:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"lanecheck {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print and exit.")
    ] = False,
) -> None:
    """Prove a tensor-core CUDA kernel right, bit for bit, on every GPU arch it ships to.

    Exit codes: 0 nothing disproven and every required cell verified, 1 disproven, 2 bad input, 3 could
    not be run.
    """
