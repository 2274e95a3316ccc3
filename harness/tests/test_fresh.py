"""The processes of a comparison: fresh, of the arm's kernel, and lost with a reason."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from test_compare import REFERENCE, SUBJECT, left, until
from test_measured import ENVIRONMENT

from lanecheck.bench.paired import fresh, process
from lanecheck.bench.paired.fresh import FreshProcesses, ProcessLost
from lanecheck.bench.paired.parent import CannotFork, Parent
from lanecheck.bench.paired.tasks import Build, Show, Time
from lanecheck.errors import CannotRun
from lanecheck.groups import Groups

PARAMS: dict[str, int | str] = {"m": 1, "n": 4, "k": 8}


@pytest.fixture
def arm(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return kernel(tmp_path / "arm")


@pytest.fixture
def processes(arm) -> Iterator[FreshProcesses]:
    """Of which none is left."""
    with FreshProcesses() as found:
        yield found
    for _ in until(10):
        if not left(arm.parent):
            break


def kernel(folder: Path, first: str = "", **constants: object) -> Path:
    """A folder with a small kernel.

    Args:
        first: what happens when it is imported.
        constants: values for those in its source.
    """
    package = folder / "small_gemv"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    text = SUBJECT.replace("BEFORE = None", first)
    for name, value in constants.items():
        text = re.sub(rf"^{name} = .*", f"{name} = {value}", text, flags=re.M)
    (package / "subject.py").write_text(text)
    return folder


def building(folder: Path) -> Build:
    return Build(subject=REFERENCE, folder=str(folder), device="host", arch=None)


def showing(folder: Path) -> Show:
    return Show(**library(folder), params=PARAMS)


def timing(folder: Path) -> Time:
    return Time(**library(folder), configs={"a": PARAMS}, rounds=1, order=0)


def library(folder: Path) -> dict[str, Any]:
    arm = {"subject": REFERENCE, "folder": str(folder), "library": None, "seed": 0}
    return {**arm, "device": "host", "arch": "plain", "capability": "9.0"}


FAILURES = [
    ("os._exit(7)", "left with exit code 7"),
    ("os.kill(os.getpid(), 9)", "died of SIGKILL"),
    ("os.killpg(0, 9)", "died of SIGKILL"),
    ("raise ValueError('no')", ".*ValueError: no$"),
    ("os._exit(0)", "no answer"),
    ("time.sleep(60)", "hang: no end within 6 s"),
]


@pytest.mark.parametrize(("line", "message"), FAILURES)
def test_a_process_that_does_not_answer_says_why(line, message, processes, monkeypatch, tmp_path):
    for task in fresh.LIMITS:
        monkeypatch.setitem(fresh.LIMITS, task, 6.0)  # with the imports, on a busy machine
    bad, good = kernel(tmp_path / "bad", line), tmp_path / "arm"
    said = f"^{message}"
    with pytest.raises(ProcessLost, match=said):
        processes.build(building(bad))
    with pytest.raises(ProcessLost, match=said):
        processes.time(timing(bad))
    assert processes.time(timing(good)).outputs.keys() == {"a"}
    with closing(processes.show([showing(good), showing(bad)])) as answers:
        assert next(answers).doubt is None
        with pytest.raises(ProcessLost, match=said):
            next(answers)


def test_the_kernel_is_the_arms_and_no_other_that_is_installed(arm, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with FreshProcesses({**os.environ, "PYTHONPATH": str(arm)}) as inherited:
        for start, task in ((inherited.build, building), (inherited.time, timing)):
            with pytest.raises(ProcessLost, match="not from the arm's"):
                start(task(elsewhere))
        assert inherited.time(timing(arm)).outputs.keys() == {"a"}
        offer = inherited.build(building(arm))
    assert list(offer.gate or ()) == ["M=2 N=4 K=8", "M=1 N=4 K=8"]
    assert sorted(offer.code.files) == ["__init__.py", "subject.py"]


@pytest.mark.parametrize("device", ["host", "cuda"])
def test_a_build_for_a_gpu_says_what_drives_it(device, monkeypatch, tmp_path):
    task = building(tmp_path).model_copy(update={"device": device})
    monkeypatch.setattr(process, "described", lambda: (ENVIRONMENT, "uuid"))
    assert process._environment(task) == (None if device == "host" else ENVIRONMENT)

    def no_torch() -> None:
        raise CannotRun("timing a GPU needs torch")

    monkeypatch.setattr(process, "described", no_torch)
    assert process._environment(task) is None


def test_a_parent_has_many_children_and_knows_nothing_of_the_kernel(processes, tmp_path):
    """Each child imports it anew, in the arm's folder, and finds nothing of the one before."""
    log = tmp_path / "log"
    first = (
        "import lanecheck; assert not hasattr(lanecheck, 'mark'); lanecheck.mark = True; "
        f"assert 'torch' not in sys.modules; open({str(log)!r}, 'a').write("
        "f'{os.getppid()} {os.getpid()} {os.getcwd()} {sys.path[0]}\\n')"
    )
    folder = kernel(tmp_path / "logging", first)
    for _ in range(3):
        processes.time(timing(folder))
    parents, children, *folders = zip(*map(str.split, log.read_text().splitlines()))
    assert len(set(parents)) == 1
    assert len({*children, *parents, str(os.getpid())}) == 5
    assert folders == [(str(folder),) * 3] * 2


def test_versions_of_a_kernel_take_turns(processes, arm, tmp_path):
    folders = [arm, kernel(tmp_path / "head", SPOILT=True)]
    base, head, *again = (processes.time(timing(folder)).outputs for folder in folders * 2)
    assert base != head
    assert again == [base, head]


def test_processes_that_judge_run_side_by_side_and_one_parent_stays(processes, tmp_path):
    log = tmp_path / "log"
    first = f"time.sleep(1); open({str(log)!r}, 'a').write(f'{{os.getppid()}}\\n')"
    folder = kernel(tmp_path / "logging", first)
    assert [each.doubt for each in processes.show([showing(folder)] * 4)] == [None] * 4
    judges = set(log.read_text().split())
    assert len(judges) == fresh.JUDGES
    assert len(left(tmp_path)) == 1
    with closing(processes.show([showing(folder)])) as answers:
        next(answers)  # and no more: nothing is to be stopped
    processes.time(timing(folder))
    assert log.read_text().split()[-1] in judges


def test_what_a_kernel_prints_is_no_answer(processes, tmp_path):
    first = "print('{}'); os.write(1, b'{}'); os.system('echo {}'); sys.stdin.read()"
    assert processes.time(timing(kernel(tmp_path / "talking", first))).outputs.keys() == {"a"}


def test_a_parent_that_died_meanwhile_is_replaced(processes, arm):
    processes.time(timing(arm))
    (pid,) = left(arm.parent)
    os.kill(int(pid), 9)
    for _ in until(10):
        if not left(arm.parent):
            break
    assert processes.time(timing(arm)).outputs.keys() == {"a"}


def test_a_parent_that_dies_before_it_takes_the_task_is_replaced(processes, arm, monkeypatch):
    """As between a signal and the end that it brings, when a process still counts as alive."""
    processes.time(timing(arm))
    monkeypatch.setattr(Parent, "alive", True)
    ((_, parent),) = processes._idle
    os.kill(parent.pid, signal.SIGSTOP)
    end = threading.Timer(0.5, os.kill, (parent.pid, signal.SIGKILL))
    end.start()
    assert processes.time(timing(arm)).outputs.keys() == {"a"}
    end.join()
    assert [each.pid for _, each in processes._idle] != [parent.pid]


@pytest.mark.parametrize("forks", [True, False])
@pytest.mark.parametrize("killed", ["asker", "parent"])
def test_a_task_that_hangs_ends_with_whoever_asked(forks, killed, tmp_path, monkeypatch):
    """Nobody is left to end it, be it killed with or without warning."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    bad = kernel(tmp_path / "bad", f"open({str(tmp_path / 'hung')!r}, 'w'); time.sleep(600)")
    task = timing(bad)
    program = (
        "from lanecheck.bench.paired.fresh import FreshProcesses\n"
        "from lanecheck.bench.paired.tasks import Time\n"
        f"processes = FreshProcesses(); processes._forks = {forks}\n"
        f"processes.time(Time.model_validate_json({task.model_dump_json()!r}))\n"
    )
    asker = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(fresh.HARNESS)},
        stderr=subprocess.DEVNULL,
    )
    for _ in until(60):
        if (tmp_path / "hung").exists():
            break
    others = {each for each in left(tmp_path) if int(each) != asker.pid}
    assert len(others) == 1 + forks
    if killed == "asker":
        asker.kill()
    else:  # and, of both, the one that would have ended the child
        asker.send_signal(signal.SIGSTOP)
        os.kill(min(map(int, others)), signal.SIGKILL)
    for _ in until(10):
        if not others & {each for each in left(tmp_path)}:
            break
    asker.kill()
    asker.wait()


def test_what_is_started_while_all_is_stopped_ends_too():
    """A stop that comes between the start of a process and its watch; later work is not stopped."""
    groups, begun, stopped = Groups(), threading.Event(), threading.Event()
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    codes = []

    def work() -> None:
        process = subprocess.Popen(sleep, start_new_session=True)
        begun.set()
        stopped.wait()
        with groups.watched(process):
            codes.append(process.wait(30))

    worker = threading.Thread(target=work)
    worker.start()
    begun.wait()
    groups.stop()
    stopped.set()
    worker.join(20)
    assert codes == [-signal.SIGKILL]
    later = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    with groups.watched(later):
        assert later.wait(30) == 0


def test_a_parent_that_dies_takes_its_child_along(processes, tmp_path):
    bad = kernel(tmp_path / "bad", "os.kill(os.getppid(), 9); time.sleep(60)")
    with pytest.raises(ProcessLost, match="^died of SIGKILL$"):
        processes.time(timing(bad))
    for _ in until(10):
        if not left(tmp_path):
            break


THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"


@pytest.mark.parametrize("device", ["host", "cuda"])
def test_a_parent_imports_torch_for_a_gpu_and_does_not_fork_beside_threads(device, arm, tmp_path):
    (tmp_path / "torch.py").write_text(f"{THREAD}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(fresh.HARNESS)])}
    groups = Groups()
    if device == "host":
        Parent(environment, device, groups, 60).end()
    else:
        with pytest.raises(CannotFork):
            Parent(environment, device, groups, 60)
    assert not left(tmp_path)


NATIVE = (
    "import ctypes; wait = ctypes.CDLL(None).pause; thread = ctypes.c_ulong(); "
    "ctypes.CDLL(None).pthread_create(ctypes.byref(thread), None, wait, None)"
)


@pytest.mark.parametrize("first", ["", NATIVE])
def test_native_threads_that_outlive_a_fork_forbid_it_and_those_of_numpy_do_not(
    first, arm, tmp_path
):
    (tmp_path / "sitecustomize.py").write_text(f"import numpy\n{first}\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(fresh.HARNESS)])}
    if first:
        with pytest.raises(CannotFork):
            Parent(environment, "host", Groups(), 60)
    else:
        Parent(environment, "host", Groups(), 60).end()


def test_where_nothing_can_be_forked_each_process_starts_alone(arm, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(THREAD)
    with FreshProcesses({**os.environ, "PYTHONPATH": str(tmp_path)}) as processes:
        for _ in range(2):
            assert processes.time(timing(arm)).outputs.keys() == {"a"}
        assert [each.doubt for each in processes.show([showing(arm)] * 2)] == [None] * 2
        assert not left(tmp_path)
