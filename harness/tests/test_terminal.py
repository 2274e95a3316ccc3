"""What a terminal shows, and what a file gets instead."""

from __future__ import annotations

import io

from rich.console import Console
from test_reports import MATRIX, cell, report

from lanecheck import terminal
from lanecheck.terminal import Progressing

LONG = "all-MiniLM-L6-v2: 37 layers, 148 calls, 0 failing, cosine >= 0.99998"


def ended(width: int, *, tty: bool) -> str:
    out = Console(file=io.StringIO(), width=width, force_terminal=tty, highlight=False)
    with Progressing(out) as listener:
        listener.stage("real weights", 3)
        listener.advance(1, "a note [/that is no markup]")
        listener.end(LONG)
        listener.stage("fuzz", 10)
        listener.advance(3)
        listener.end("2 failing", good=False)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_a_file_gets_one_line_a_step_and_no_progress():
    assert ended(terminal._ENDLESS, tty=False) == (
        f"ok real weights           {LONG}\n!! fuzz                   2 failing\n"
    )


def test_a_log_gets_a_sign_of_life_now_and_then_on_standard_error(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: clock[0])
    with Progressing(Console(file=io.StringIO())) as listener:
        listener.stage("break", 33)
        for done, clock[0] in enumerate((1.0, 30.0, 31.0, 60.0), 1):
            listener.advance(done, f"fault {done}")
    assert capsys.readouterr().err == "break: 2 of 33 fault 2\nbreak: 4 of 33 fault 4\n"


def test_a_long_summary_hangs_under_its_own_beginning():
    first, second, _ = ended(80, tty=False).splitlines()
    assert first.startswith("ok real weights           all-MiniLM")
    assert second.rstrip() == " " * 26 + "cosine >= 0.99998"
    assert max(map(len, (first, second))) <= 80


def test_a_terminal_gets_progress_and_is_left_without_it():
    said = ended(80, tty=True)
    assert "━" in said
    assert said.endswith("\r\x1b[2K\x1b[?25h\r")  # the bar erased, the cursor shown again


def test_output_into_a_file_is_never_folded(capsys):
    out = terminal.console()
    out.print("x" * 300)
    assert capsys.readouterr().out == "x" * 300 + "\n"


def test_the_table_has_a_row_an_arch_and_names_the_gpus():
    shown = report(
        cell("sm_80", "host", "build"),
        cell("sm_80", "a100", "silicon"),
        cell("sm_90a", "host", "build", "disproven", "it does not compile"),
        cell("sm_90a", "h100", "silicon", "unverified", "no GPU"),
    )
    out = Console(file=io.StringIO(), width=80)
    out.print(terminal.verdict_table(shown, MATRIX))
    assert isinstance(out.file, io.StringIO)
    rows = [line for line in out.file.getvalue().splitlines() if "sm_" in line]
    cells = [[word.strip() for word in row.strip("│").split("│")] for row in rows]
    assert cells == [
        ["sm_80", "verified", "verified a100"],
        ["sm_90a", "DISPROVEN", "unverified"],
    ]


def test_a_reason_is_said_once_with_how_many_it_explains():
    shown = report(
        cell("sm_80", "a100", "silicon", "unverified", "no GPU [here]"),
        cell("sm_90a", "h100", "silicon", "unverified", "no GPU [here]"),
        cell("sm_90a", "host", "build", "disproven", "it does not compile"),
    )
    out = Console(file=io.StringIO(), width=200)
    for line in terminal.reasons(shown, MATRIX):
        out.print(line)
    assert isinstance(out.file, io.StringIO)
    assert out.file.getvalue().splitlines() == [
        "unverified: on silicon: no GPU [here] (2 cells)",
        "DISPROVEN: built: it does not compile",
    ]
