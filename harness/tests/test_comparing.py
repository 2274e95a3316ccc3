"""What ``lanecheck compare`` asks of the machine, and what it leaves there when it is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter

import pytest
from test_compare import (
    GIT,
    REFERENCE,
    REPOSITORY,
    change,
    checkout,
    git,
    left,
    until,
    worktrees,
)
from test_measured import identical

from lanecheck import cli, gpu, matrix_file
from lanecheck.bench.machine import Absent, Reading, Telemetry
from lanecheck.bench.paired import fresh
from lanecheck.bench.paired.arms import checked_out
from lanecheck.bench.paired.table import unwatched
from lanecheck.cli import comparing
from lanecheck.errors import CannotRun

__all__ = ["checkout"]  # a fixture

# The GPU --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cc", "said"),
    [
        ("8.0", "; --arch sm_80 for NVIDIA X"),
        ("8.6", "; --arch sm_86 for NVIDIA X"),
        ("8.9", "; --arch sm_89 for NVIDIA X"),
        ("12.1", "; --arch sm_120f for NVIDIA X"),
        ("7.5", ""),
    ],
)
def test_on_another_gpu_the_arch_made_for_it_is_named(cc, said, monkeypatch):
    monkeypatch.setattr(gpu, "detect", lambda: [gpu.Gpu("NVIDIA X", cc, f"GPU-{i}") for i in "ab"])
    loaded = matrix_file.load(REPOSITORY / "matrix.yaml")
    whole = rf"^no GPU on this machine loads sm_90a; use --device host{re.escape(said)}$"
    with pytest.raises(CannotRun, match=whole):
        comparing._place(loaded, "cuda", "sm_90a", 0)


@pytest.mark.parametrize("option", [["--arch", "sm_90a"], ["--gpu", "1"]])
def test_what_chooses_a_gpu_is_refused_on_the_host(option, lanecheck):
    code, _, complaint = lanecheck("compare", "HEAD", ".", "--device", "host", *option)
    assert code == 2 and f"{option[0]} is for --device cuda" in complaint


@pytest.mark.parametrize("option", ["--json", "--log"])
def test_a_folder_is_no_file_to_write_and_is_refused_before_anything_runs(
    option, lanecheck, tmp_path
):
    for words in (("compare", "HEAD", "."), ("bench",)):
        code, said, complaint = lanecheck(*words, option, tmp_path)
        assert code == 2 and said == "" and "is a directory" in complaint


def test_two_comparisons_on_one_gpu_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with gpu.reserved("u0", "H200", "compare main ."):
        with gpu.reserved("u1", "H200", "compare main ."):
            pass
        message = (
            f"H200 is taken by process {os.getpid()}, lanecheck compare main ., and each would"
        )
        with (
            pytest.raises(CannotRun, match=re.escape(message)),
            gpu.reserved("u0", "H200", "compare HEAD ."),
        ):
            pass
    with gpu.reserved("u0", "H200", "compare HEAD ."):
        pass


def test_a_reservation_that_ends_in_an_error_leaves_no_name_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt), gpu.reserved("u0", "H200", "compare main ."):
        (lock,) = tmp_path.iterdir()
        assert lock.read_text() == f"process {os.getpid()}, lanecheck compare main .\n"
        raise KeyboardInterrupt
    assert lock.read_text() == ""


def test_without_arch_it_is_that_of_the_gpus_here(monkeypatch):
    loaded = matrix_file.load(REPOSITORY / "matrix.yaml")
    for ccs, arch in (("8.9", "sm_89"), ("10.3", "sm_100f"), ("9.0 8.0", "sm_90a")):
        found = [gpu.Gpu("NVIDIA X", cc, f"GPU-{cc}") for cc in ccs.split()]
        monkeypatch.setattr(gpu, "detect", lambda found=found: found)
        place, environment = comparing._place(loaded, "cuda", None, 0)
        assert place.arch is not None and place.arch.name == arch
        assert environment["CUDA_VISIBLE_DEVICES"] == found[0].uuid


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    program = (
        "import time\nfrom lanecheck import gpu\n"
        "with gpu.reserved('u0', 'X', 'compare a b'):\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(fresh.HARNESS)}
    holder = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(
                CannotRun, match=f"taken by process {holder.pid}, lanecheck compare a b,"
            ),
            gpu.reserved("u0", "H200", "compare ."),
        ):
            pass
        holder.kill()
    with gpu.reserved("u0", "H200", "compare ."):
        pass


READING = Reading(
    sm_clock_mhz=1, memory_clock_mhz=1, temperature_c=1, power_w=1.0, power_limit_w=1.0,
    clock_event_reasons=(), other_processes=0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("reading", "reason"),
    [
        (Absent(name="telemetry", reason="no nvidia-ml-py"), "no nvidia-ml-py"),
        (READING, None),
        (READING.model_copy(update={"clock_event_reasons": None}), "its driver does not say what"),
    ],
)
def test_whether_anybody_watches_is_told_from_the_readings(reading, reason):
    record = identical(0)
    assert unwatched(record) is None  # host execution
    telemetry = Telemetry(before=READING, after=reading)
    last = record.processes[-1].model_copy(update={"telemetry": telemetry})
    found = unwatched(record.model_copy(update={"processes": (*record.processes[:-1], last)}))
    assert (found or "").startswith(reason or "") and (found is None) == (reason is None)


# The plan -------------------------------------------------------------------------------------


@GIT
def test_a_plan_of_identical_code_expects_nothing_else(checkout, lanecheck):
    words = ("compare", "HEAD", ".", "--device", "host", "--pairs", "1", "--plan")
    code, said, _ = lanecheck(*words)
    assert code == 0 and "the verdict is SAME" in said
    assert "INSUFFICIENT" not in said and "host execution" not in said
    code, said, _ = lanecheck(*words, "--force")
    assert code == 0 and "the verdict is SAME" not in said
    assert "2 configs need 8 pairs: expect INSUFFICIENT" in said and "host execution" in said


# What runs where ------------------------------------------------------------------------------


@GIT
@pytest.mark.parametrize("arm", ["HEAD", "."])
def test_base_head_and_the_second_checkout_of_base_run_where_they_lie(arm, checkout, lanecheck):
    """A pair and a control: three processes of base's, two of head's or of the second checkout's are timed,
    where a process judges each of two configs but in the second checkout, and another builds."""
    log = checkout.parent / "folders"
    change(checkout, "BEFORE = None", f"open({str(log)!r}, 'a').write(os.getcwd() + '\\n')")
    git(checkout, "commit", "--quiet", "--all", "-m", "a kernel that says where it is")
    words = ("compare", arm, arm, "--device", "host", "--pairs", "1", "--rounds", "1", "--force")
    code, _, complaint = lanecheck(*words)
    assert code == 3, complaint
    folders = Counter(log.read_text().splitlines())
    assert sorted(folders.values()) == [2, 4, 5]
    assert worktrees(checkout) == 1


# Killed ---------------------------------------------------------------------------------------


@GIT
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_comparison_leaves_no_process_and_the_next_one_no_worktree(checkout, ending):
    change(checkout)
    command = [sys.executable, "-m", "lanecheck", "compare", "HEAD", ".", "--device", "host"]
    path = os.pathsep.join([str(checkout / "kernel"), str(fresh.HARNESS)])
    running = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    logs = checkout / ".lanecheck" / "compare"
    for _ in until(60):
        assert running.poll() is None, running.communicate()
        if any(b'"entry":"process"' in log.read_bytes() for log in logs.glob("*.jsonl")):
            break
    running.send_signal(ending)
    running.communicate(timeout=30)
    assert running.returncode == (cli.INTERRUPTED if ending == signal.SIGTERM else -ending)
    for _ in until(10):
        if not left(checkout.parent):
            break
    if ending == signal.SIGKILL:
        assert [*checkout.parent.glob("lanecheck-*")]
        with checked_out("HEAD", "HEAD", checkout, REFERENCE) as arms:
            assert all(arm.folder.is_dir() for arm in arms)  # none took another away
            assert len([*checkout.parent.glob("lanecheck-*")]) == 3
    assert worktrees(checkout) == 1
