"""The command line as its users meet it: help, mistakes, interruption."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import test_bench
import typer
from rich.console import Console
from rich.text import Text
from test_reports import cell, report

from lanecheck import cases, cli, demo
from lanecheck.bench.model import Row
from lanecheck.cli import breaking
from lanecheck.executor import LocalExecutor
from lanecheck.faults import catalogue, scoreboard
from lanecheck.faults.differences import Comparison
from lanecheck.faults.scoreboard import Score
from lanecheck.reports import model, store
from lanecheck.trial import Failure, Result, Target
from lanecheck.verdict import Outcome, Verdict

REPOSITORY = Path(__file__).parents[2]
COMMANDS = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
KERNEL = pytest.mark.skipif(
    not (REPOSITORY / "kernel").is_dir(), reason="the harness alone is checked out"
)


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A folder with this repository's matrix, and the current one."""
    (tmp_path / "matrix.yaml").write_text((REPOSITORY / "matrix.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Help -----------------------------------------------------------------------------------------


def test_help_lists_every_command_in_one_whole_sentence(lanecheck):
    code, said, _ = lanecheck("--help")
    assert code == 0
    for name in COMMANDS:
        (line,) = re.findall(rf"^  {name}  .*", said, re.MULTILINE)
        assert line.endswith("."), line
        assert not line.endswith("..."), line
        assert len(line) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_everything_a_command_takes_is_explained_in_whole_sentences(name):
    for each in COMMANDS[name].params:
        if each.name != "help":
            assert re.fullmatch(r"\S.*[^.]\.", each.help or ""), each.name


def test_without_a_command_there_is_help_and_no_success(lanecheck):
    code, said, _ = lanecheck()
    assert code == 2
    assert said.startswith("Usage: lanecheck")


def test_version(lanecheck):
    assert lanecheck("--version") == (0, "lanecheck 0.1.0\n", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_every_command_can_be_run(name, lanecheck):
    code, said, _ = lanecheck(name, "--help")
    assert code == 0
    example = re.search(r"^ *Example: (.*?)\n\n", said, re.MULTILINE | re.DOTALL)
    assert example, said
    steps = [shlex.split(step) for step in " ".join(example[1].split()).split("&&")]
    for lane, command, *words in steps:
        assert lane == "lanecheck"
        COMMANDS[command].make_context(command, words)  # refuses what it does not know
    assert steps[-1][1] == name


# Mistakes -------------------------------------------------------------------------------------

MISTAKES = {
    "nope": "No such command 'nope'; see lanecheck --help",
    "fuzz --nope": "No such option: --nope; see lanecheck fuzz --help",
    "fuzz --cases x": "Invalid value for '--cases': ",
    "fuzz --cases 0": "Invalid value for '--cases': ",
    "replay": "Missing argument 'line'; see lanecheck replay --help",
    "replay other": "the line is of subject 'other'",
    "matrix --tier weekly": "unknown tier 'weekly'; known: pull_request, nightly, release",
    "matrix --job paint --json": "unknown job 'paint'; known: build",
    "matrix --tier nightly --job paint": "unknown job 'paint'; known: build",
    "fuzz --budget 5": "--budget: '5' is not a duration: write 90s, 5m or 1h30m",
    "fuzz --variant quick": "unknown host variant 'quick'; known: plain, hooks, asan",
    "fuzz --device tpu": "--device is host or cuda, not 'tpu'",
    "build --arch sm_75": "unknown arch 'sm_75'; matrix.yaml has sm_80",
    "bench --arch sm_75": "unknown arch 'sm_75'; matrix.yaml has sm_80",
    "verify --subject none": "subject 'none' is not of the form module:ATTRIBUTE",
    "verify --subject none:NONE": "cannot import subject 'none:NONE'",
    "verify --require sm_75/*": "--require 'sm_75/*' matches no cell; see lanecheck matrix",
    "verify --subject second_subject:SUBJECT": "'matmul' is a callable: there is nothing to build",
    "demo nope": "no fault 'nope'; known: ",
    "faults --only nope": "no fault 'nope'; known: ",
    "faults --subject second_subject:SUBJECT": "subject 'matmul' has no fault catalogue",
    "compare a b --device host": "a is neither a folder nor a git revision of ",
    "compare a b --device tpu": "--device is host or cuda, not 'tpu'",
    "fuzz --fault asm-operand-twice": "fault asm-operand-twice is in code that host execution replaces",
    "fuzz --device cuda --variant asan": "--variant asan is a host build",
    "fuzz --subject json:loads": "'json:loads' is a function, not an object whose class inherits from",
    "init --output mine": "--output mine is not a Python file: give it a name that ends in .py",
    "history": "record one with lanecheck verify --record",
    "site": "record one with lanecheck verify --record",
    "matrix --matrix none.yaml": "cannot be read",
}


@KERNEL
@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(words, lanecheck, checkout):
    code, said, complaint = lanecheck(*words.split())
    assert (code, said) == (2, "")
    assert complaint.startswith("lanecheck: ")
    assert MISTAKES[words] in complaint
    assert complaint.count("\n") == 1
    assert os.listdir(checkout) == ["matrix.yaml"]


BROKEN = {
    "unknown key": ("    min_ctk:", "    min_ctx:", "unknown key 'min_ctx' in arch"),
    "duplicate arch": ("  sm_86:", "  sm_80:", "key 'sm_80' again"),
    "broken": ("archs:", "archs: [", "not valid YAML"),
}


@KERNEL
@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("command", ["verify", "fuzz", "matrix"])
def test_a_broken_matrix_is_one_line_with_its_place(command, what, lanecheck, checkout):
    old, new, message = BROKEN[what]
    file = checkout / "matrix.yaml"
    file.write_text(file.read_text().replace(old, new, 1))
    code, said, complaint = lanecheck(command)
    assert (code, said) == (2, "")
    assert re.match(r"lanecheck: .*matrix.yaml:\d+: ", complaint)
    assert message in complaint
    assert complaint.count("\n") == 1


def test_no_matrix_is_one_line(lanecheck, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, complaint = lanecheck("verify")
    assert code == 2
    assert "no matrix.yaml in" in complaint


@KERNEL
def test_without_a_gpu_there_is_no_benchmark(lanecheck, checkout, monkeypatch):
    monkeypatch.setattr("lanecheck.gpu.detect", lambda: [])
    code, said, complaint = lanecheck("bench")
    assert (code, said) == (3, "")
    assert complaint.startswith("lanecheck: no GPU of matrix.yaml ")
    advice = "; lanecheck compare --device host goes through the timing without one\n"
    assert complaint.endswith(f" is on this machine{advice}")


def test_a_result_that_cannot_be_written_is_one_line(lanecheck, tmp_path):
    (tmp_path / "file").write_text("")
    words = ("--cases", "3", "--workers", "1", "--json", tmp_path / "file" / "x.json")
    code, _, complaint = lanecheck("fuzz", "--subject", "second_subject:SUBJECT", *words)
    assert code == 2
    assert complaint.startswith("lanecheck: cannot write ")
    assert complaint.count("\n") == 1


def test_a_launch_that_raises_fails_its_case_and_no_other(lanecheck):
    words = ("--subject", "second_subject:RAISES", "--cases", "60", "--workers", "1")
    code, said, complaint = lanecheck("fuzz", *words)
    assert (code, complaint) == (1, "")
    assert "60 cases (4 blind), 1 failing" in said
    assert re.search(
        r"^lanecheck replay --subject second_subject:RAISES 'matmul .* k=13 ", said, re.M
    )
    assert "execution on 9.0: launch: RuntimeError: no kernel image is available" in said


RAISING = """
from second_subject import ByNumpy


class Raising(ByNumpy):
    def {method}(self, *given):
        raise RuntimeError("no such weights")


SUBJECT = Raising()
"""


@pytest.mark.parametrize("method", ["draw", "tensors", "terms", "reference", "derive", "products"])
def test_an_error_in_what_describes_a_kernel_is_not_called_disproven(method, lanecheck, tmp_path):
    file = tmp_path / "raising.py"
    file.write_text(RAISING.format(method=method))
    words = ("--subject", f"{file}:SUBJECT", "--cases", "5", "--workers", "1")
    code, said, complaint = lanecheck("fuzz", *words)
    assert (code, said) == (3, "")
    assert f'File "{file}", line 7, in {method}' in complaint
    assert "RuntimeError: no such weights" in complaint
    assert complaint.splitlines()[-1].startswith("lanecheck: unexpected error in the subject or")


# Faults ---------------------------------------------------------------------------------------


def scored(*ids: str, **fields: object) -> list[Score]:
    """Scores of catalogue entries in which some oracles noticed."""
    from packed_gemv.subject import SUBJECT

    return [Score(catalogue.find(SUBJECT.faults, name), cases=200, **fields) for name in ids]


def said(oracle: str, evidence: str) -> dict[str, Failure]:
    return {oracle: Failure("x", "9.0", Verdict(oracle, Outcome.FAIL, evidence))}


@KERNEL
def test_faults_says_which_rung_fired_first_and_what_the_probes_say(
    lanecheck, checkout, monkeypatch
):
    killed = scored(
        "swap-x-halves",
        noticed=Counter(integers=50, bits=199, probes=20),
        rung=Counter(integers=50, bits=149),
        first=said("probes", "x[0] and x[4] exchanged (8 of 160 k probed)"),
    )
    clean = scored("warps-added-backwards", reordered=7)
    monkeypatch.setattr(scoreboard, "run_catalogue", lambda *_, **__: killed + clean)
    code, text, _ = lanecheck("faults", "--json", "faults.json")
    assert code == 0
    assert "ok break on purpose, host 1 of 1 faults caught, 1 of 1 controls clean" in text
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "swap-x-halves killed 200 bits (149) bits (50)" in rows
    assert "integers (50) probes (20)" in rows
    assert "swap-x-halves x[0] and x[4] exchanged (8 of 160 k probed)" in rows
    assert "warps-added-backwards clean 200 reordered 7" in rows
    stored = json.loads((checkout / "faults.json").read_text())
    assert stored["faults"][0]["rung"] == {"integers": 50, "bits": 149}
    assert stored["controls"][0]["clean"]


@KERNEL
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--device", "gpu"), "--device is host, cuda or both, not 'gpu'"),
        (("--record", "--only", "swap-x-halves"), "--record is for the whole catalogue"),
        (("--only", "no-such"), "no fault 'no-such'"),
    ],
)
def test_faults_refuses_what_it_cannot_do_before_it_runs_anything(
    lanecheck, checkout, monkeypatch, words, said
):
    monkeypatch.setattr(scoreboard, "run_catalogue", None)
    code, _, err = lanecheck("faults", *words)
    assert code == 2
    assert said in err


@KERNEL
def test_faults_on_both_sides_needs_the_gpu_before_the_host_runs(lanecheck, checkout, monkeypatch):
    monkeypatch.setattr(scoreboard, "run_catalogue", None)
    monkeypatch.setattr("lanecheck.gpu.detect", list)
    code, _, err = lanecheck("faults", "--device", "both")
    assert code == 3
    assert "no GPU on this machine loads an arch of matrix.yaml" in err


@KERNEL
def test_what_faults_prints_can_be_read_in_80_columns():
    sentence = "x[8t+0…3] and x[8t+4…7] exchanged in every 32-block"
    names = ("no-barrier-before-reduction", "asm-operand-twice")
    notes = {
        "noticed": Counter(execution=199, integers=50, bits=100),
        "rung": Counter(bits=100),
        "first": said("probes", sentence),
    }
    (killed,) = scored(names[0], **notes)
    excused = scored(names[1])
    why = "a race: host execution orders the threads of each case by its seed"
    compared = Comparison(killed.fault, 200, 1, Counter(execution=199), Counter(integers=1), why)
    tables = (
        *breaking._fault_tables([killed, *excused], "host"),
        *breaking._difference_tables([compared]),
    )
    narrow = Console(width=80)
    with narrow.capture() as shown:
        narrow.print(*tables)
    lines = [" ".join(line.split()) for line in shown.get().splitlines()]
    assert f"{names[0]} killed 200 bits (100) execution" in lines
    assert f"{names[1]} not shown 200 only a GPU" in lines
    assert f"{names[0]} x[8t+0…3] and x[8t+4…7] exchanged in every" in lines
    assert f"{names[0]} a race: host execution orders the threads of" in lines


@KERNEL
@pytest.mark.parametrize("agree", [True, False])
def test_faults_on_both_sides_says_whether_they_agree(lanecheck, checkout, monkeypatch, agree):
    from packed_gemv.subject import SUBJECT

    line = cases.case(SUBJECT, 0, 0).line
    noticed = ("integers", "bits", "probes")

    def run_catalogue(faults, target, **_):
        score = Score(faults[0], on_gpu=target.device == "cuda")
        names = noticed if agree or not score.on_gpu else noticed[:2]
        notes = [Failure(line, "9.0", Verdict(name, Outcome.FAIL, "y")) for name in names]
        score.add(Result(cases=200, failures=notes))
        return [score]

    target = Target("packed_gemv.subject:SUBJECT", "cuda", ("9.0",), None, "sm_90a")
    monkeypatch.setattr(scoreboard, "run_catalogue", run_catalogue)
    monkeypatch.setattr(breaking, "read_target", lambda *_: target)
    words = ("faults", "--device", "both", "--only", "swap-x-halves", "--json", "f.json")
    code, text, _ = lanecheck(*words)
    assert code == (0 if agree else 1)
    assert ("UNEXPLAINED" in text) != agree
    stored = model.read(checkout / "f.json")
    assert [fault.device for fault in stored.faults] == ["host", "cuda"]
    (compared,) = stored.comparisons
    assert (compared.explained, compared.alike) == (agree, 3 if agree else 2)
    assert stored.disproven != agree


@KERNEL
@pytest.mark.parametrize(
    ("name", "noticed", "verdict"),
    [
        ("swap-x-halves", {}, "survived: swap-x-halves"),
        ("warps-added-backwards", {"bound": 1}, "flagged: warps-added-backwards"),
    ],
)
def test_faults_fails_for_a_survivor_and_for_a_flagged_control(
    lanecheck, checkout, monkeypatch, name, noticed, verdict
):
    scores = scored(name, noticed=Counter(noticed), reordered=1)
    monkeypatch.setattr(scoreboard, "run_catalogue", lambda *_, **__: scores)
    code, text, _ = lanecheck("faults")
    assert code == 1
    assert verdict in text


@KERNEL
@pytest.mark.parametrize(
    ("name", "fields", "text"),
    [
        ("swap-x-halves", {}, "survived: nothing noticed in 200 cases"),
        (
            "swap-x-halves",
            {"noticed": Counter(execution=3)},
            "survived: noticed only by execution, not by integers, bits, probes, which should have",
        ),
        (
            "swap-x-halves",
            {"noticed": Counter(bits=3), "healthy": False},
            "survived: the kernel without the fault fails these cases too",
        ),
        (
            "warps-added-backwards",
            {"reordered": 7},
            "a control, clean: 7 of 200 cases reordered, 0 failing; expected: reordered",
        ),
    ],
)
def test_the_demo_says_what_became_of_a_survivor_or_a_control(name, fields, text):
    (score,) = scored(name, **fields)
    assert Text.from_markup(demo.outcome(score)).plain == text


# Records --------------------------------------------------------------------------------------


def test_history_and_site_read_what_was_recorded(lanecheck, checkout):
    store.save(report(cell("sm_80", "host", "build"), day=1), checkout, record=True)
    wrong = report(cell("sm_80", "host", "build", "disproven"), day=2)
    store.save(wrong, checkout, record=True)
    good, untimed = [test_bench.passed()], "the GPU was held back"
    rows = test_bench.timed(good), Row.of({"m": 2}, test_bench.traffic(), good, None, untimed)
    store.save(report(day=3, bench=test_bench.record(*rows)), checkout, record=True)
    code, said, _ = lanecheck("history")
    assert code == 0
    assert [line.split("│")[4].strip() for line in said.splitlines() if "2026" in line] == [
        "1 of 1 cells",
        "DISPROVEN",
        "1 of 2 shapes timed",
    ]
    assert lanecheck("site", "--output", "pages") == (0, "pages/index.html\n", "")
    assert (checkout / "pages" / "index.html").is_file()


# A kernel of one's own ------------------------------------------------------------------------


def test_the_template_works_before_a_line_is_changed(tmp_path):
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lanecheck", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    given = "kernels/my kernel-2.py"
    done = run("init", "--output", given)
    advice = f"{given}: now run lanecheck fuzz --subject '{given}:SUBJECT' --cases 200\n"
    assert done.stdout == advice
    again = run("init", "--output", given)
    assert (again.returncode, again.stderr) == (
        2,
        f"lanecheck: {given} exists; choose another --output\n",
    )
    done = run(*shlex.split(advice.partition("lanecheck ")[2]))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert re.search(r"200 cases( \(\d+ blind\))?, 0 failing", done.stdout)
    subject = f"{given}:SUBJECT"
    done = run("compare", ".", ".", "--device", "host", "--subject", subject)
    assert done.returncode == 0 and "SAME: same machine code" in done.stdout, done

    text = (tmp_path / given).read_text()
    (tmp_path / given).write_text(text.replace("x @ w.T", "x @ w.T * 2"))
    done = run("fuzz", "--subject", f"{given}:SUBJECT", "--cases", "50")
    assert done.returncode == 1
    command = re.search(r"^lanecheck (replay --subject '.*:SUBJECT' '.*')$", done.stdout, re.M)
    assert command, done.stdout
    done = run(*shlex.split(command[1]))
    assert done.returncode == 1
    assert "fail integers" in done.stdout


# Interruption ---------------------------------------------------------------------------------


@pytest.mark.parametrize("send", ["SIGINT to all", "SIGTERM to one"])
def test_an_interrupted_run_ends_at_once_with_its_workers(send):
    words = ("fuzz", "--subject", "second_subject:SUBJECT", "--cases", "10000000", "--workers", "2")
    process = subprocess.Popen(
        [sys.executable, "-m", "lanecheck", *words],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while len(workers := _children(process.pid)) < 3:  # and multiprocessing's resource tracker
        assert time.monotonic() < deadline, "no workers"
        time.sleep(0.1)
    if send == "SIGTERM to one":  # as a cancelled job
        process.terminate()
    else:
        os.killpg(process.pid, signal.SIGINT)
    said, complaint = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (said, complaint) == ("", "lanecheck: interrupted\n")
    deadline = time.monotonic() + 5
    while any(_runs(worker) for worker in workers):
        assert time.monotonic() < deadline, "workers are left behind"
        time.sleep(0.1)


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # orphans wait for an init that a container may lack


def _children(process: int) -> list[int]:
    names = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for name in names for child in name.read_text().split()]


def test_workers_are_stopped_when_nobody_waits_for_their_results():
    from lanecheck.trial import Target, Trial

    target = Target("second_subject:SUBJECT")
    work = (Trial(target, seed=0, indices=range(i, i + 10**6)) for i in range(10))
    results = LocalExecutor(workers=1, time_limit=600).run(target, work)
    start = time.monotonic()
    with pytest.raises(TimeoutError), _alarm(5):
        next(results)
    assert time.monotonic() - start < 25


class _alarm:
    def __init__(self, seconds: int) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        def late(*_: object) -> None:
            raise TimeoutError

        self._before = signal.signal(signal.SIGALRM, late)
        signal.alarm(self._seconds)

    def __exit__(self, *_: object) -> None:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, self._before)


def test_a_signal_handler_is_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), cli._ending_in_order():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
