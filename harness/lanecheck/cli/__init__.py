"""The command line: a thin edge over the package.

Exit codes: 0 nothing disproven and every required cell verified, 1 disproven, 2 bad input, 3 could not
be run, 130 interrupted.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.markup import escape

from lanecheck import __version__
from lanecheck.bench.journal import Cut
from lanecheck.cli import (
    benching,
    breaking,
    builds,
    checks,
    comparing,
    landmarks,
    order,
    records,
    sanitize,
)
from lanecheck.cli.options import err
from lanecheck.errors import CannotRun, LanecheckError

INTERRUPTED = Cut.exit_code

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
for group in (checks, breaking, landmarks, order, sanitize, builds, comparing, benching, records):
    for command in group.COMMANDS:
        app.command()(command)


def main() -> None:
    """Entry point: an error of the user's making is one line and an exit code."""
    try:
        with _ending_in_order():
            code = app(prog_name="lanecheck", standalone_mode=False) or 0
        if code == INTERRUPTED:  # typer makes an exit code of an interrupt
            _say("interrupted", code)
    except LanecheckError as error:
        code = _say(str(error), error.exit_code)
    except typer.TyperException as error:
        code = _say(_usage(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = _say("interrupted", INTERRUPTED)
    except Exception:
        traceback.print_exc()
        code = _say(
            "unexpected error in the subject or in lanecheck, see above", CannotRun.exit_code
        )
    sys.exit(code)


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """A cancelled job's SIGTERM ends it as an interrupt does: processes, worktrees and locks are given up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _usage(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    hint = f"; see {context.command_path} --help" if context else ""
    return error.format_message().removesuffix(".") + hint


def _say(message: str, code: int) -> int:
    line = " ".join(message.split())
    err.print(f"[bold red]lanecheck:[/] {escape(line)}", soft_wrap=True)
    return code


def _version(wanted: bool) -> None:
    if wanted:
        print(f"lanecheck {__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print and exit.")
    ] = False,
) -> None:
    """Prove a tensor-core CUDA kernel right, bit for bit, on every GPU arch it ships to.

    Start with: lanecheck verify --budget 60s

    Exit codes: 0 nothing disproven and every required cell verified, 1 disproven, 2 bad input, 3 could
    not be run.
    """
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)
