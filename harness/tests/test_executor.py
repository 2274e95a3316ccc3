"""Executor: a process that dies or hangs is a verdict on one case, and costs no other case."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from typing import Any

import pytest
from second_subject import FATAL_K, SUBJECT, ByNumpy

from lanecheck import cases
from lanecheck.campaign import Budget, fuzz
from lanecheck.errors import BadInput, CannotRun
from lanecheck.executor import LocalExecutor, deaf
from lanecheck.trial import Result, Target, Trial

LINE = (
    "matmul m=2 n=3 k={k} out=fp32 xoff=0 ypad=0 regime=small side=upper seed=4"  # in nobody's turn
)
GUILTY = LINE.format(k=FATAL_K)
INNOCENT = [LINE.format(k=k) for k in (1, 2, 3)]


def run(variant: str, lines: list[str], **limits: Any) -> Result:
    """One batch in one worker."""
    target = Target(f"second_subject:{variant}")
    total = Result()
    for result in LocalExecutor(1, **limits).run(target, [Trial(target, tuple(lines))]):
        total.add(result)
    return total


@pytest.mark.parametrize(
    ("variant", "evidence", "limits"),
    [
        ("SEGFAULTS", "crash: the process died of SIGSEGV", {}),
        ("EXITS_AT_ONCE", "crash: the process left with exit code 3", {}),
        ("HANGS", "hang: no end within 3 s", {"time_limit": 3, "case_limit": 3}),
    ],
)
def test_the_one_guilty_case_of_a_batch_is_named_and_every_case_counts_once(
    variant: str, evidence: str, limits: dict[str, float]
):
    result = run(variant, [*INNOCENT[:2], GUILTY, INNOCENT[2]], **limits)
    (failure,) = result.failures
    assert failure.line == GUILTY
    assert failure.verdict.oracle == "process"
    assert failure.verdict.evidence == evidence
    assert result.cases == 4
    assert result.launches == 2 * 3 + 1
    assert result.judged["execution"] == result.judged["integers"] == 3


def test_a_process_that_the_system_kills_says_nothing_of_the_kernel():
    with pytest.raises(CannotRun, match="the system killed its process, as it does where memory"):
        run("IS_KILLED", [*INNOCENT, GUILTY])


def test_a_crash_of_which_no_single_case_is_guilty_is_a_failure_and_loses_no_result():
    result = run("DIES_IN_COMPANY", [LINE.format(k=k) for k in range(1, 7)])
    (failure,) = result.failures
    assert failure.line == LINE.format(k=5)
    assert failure.verdict.evidence == (
        "crash: the process left with exit code 4 after other cases, but not alone: "
        "an earlier case damages the process"
    )
    assert result.cases == result.judged["execution"] == 6


def test_results_are_complete_and_the_same_with_one_worker_and_with_two():
    target, count, seed = Target("second_subject:EXITS_AT_ONCE"), 12, 0
    one, two = (
        fuzz(target, Budget(count), seed, LocalExecutor(workers), batch=6) for workers in (1, 2)
    )
    drawn = [cases.case(SUBJECT, seed, index) for index in range(count)]
    guilty = sorted(case.line for case in drawn if case.params["k"] == FATAL_K)
    assert guilty
    assert [failure.line for failure in one.failures] == guilty
    assert one.failures == two.failures
    assert one.judged == two.judged
    assert one.cases == two.cases == count
    assert one.judged["execution"] == count - len(guilty)


def test_work_is_drawn_on_only_as_workers_become_free():
    target, drawn = Target("second_subject:EXITS_AT_ONCE"), Counter[str]()

    def work():
        for line in INNOCENT * 4:
            drawn["trials"] += 1
            yield Trial(target, (line,))

    results = LocalExecutor(1).run(target, work())
    next(results)
    assert drawn["trials"] <= 3
    assert sum(result.cases for result in results) == 11


def test_no_work_is_no_result():
    target = Target("second_subject:SUBJECT")
    assert list(LocalExecutor(1).run(target, [])) == []


def test_a_line_that_is_not_the_subject_s_is_the_user_s_mistake():
    target = Target("second_subject:EXITS_AT_ONCE")
    with pytest.raises(BadInput, match="unknown 'kk'"):
        list(LocalExecutor(1).run(target, [Trial(target, (f"{INNOCENT[0]} kk=1",))]))


def test_a_trial_of_several_gpus_runs_on_one_of_them_and_every_one_has_work():
    target = Target("test_executor:NAMES_ITS_GPU", gpus=("GPU-a", "GPU-b"))
    lines = [LINE.format(k=k) for k in range(1, 9)]
    work = [Trial(target, (line,)) for line in lines]
    results = list(LocalExecutor(1).run(target, work))
    said = [failure.verdict.evidence for result in results for failure in result.failures]
    assert {evidence for evidence in said if "GPU-" in evidence} == {
        "launch: on GPU-a",
        "launch: on GPU-b",
    }
    assert sum(result.cases for result in results) == 8


class NamesItsGpu(ByNumpy):
    """Reports the GPU it was given as if it were a problem."""

    def launch(self, *arguments: Any) -> str | None:
        return f"on {os.environ['CUDA_VISIBLE_DEVICES']}"


NAMES_ITS_GPU = NamesItsGpu()


def test_workers_are_kept_between_runs_of_one_kind_and_only_as_a_context():
    """A process dies at its fifth case: the second run of three cases is its end only if it is the same."""
    target = Target("second_subject:DIES_IN_COMPANY")
    trial = Trial(target, tuple(INNOCENT))

    def deaths(executor: LocalExecutor) -> list[bool]:
        return [any(r.failures for r in executor.run(target, [trial])) for _ in range(2)]

    with LocalExecutor(1) as executor:
        assert deaths(executor) == [False, True]
    assert deaths(LocalExecutor(1)) == [False, False]


def test_a_crash_costs_no_later_run_of_kept_workers():
    fatal = Target("second_subject:SEGFAULTS")
    with LocalExecutor(1) as executor:
        for _ in range(2):
            (result,) = executor.run(fatal, [Trial(fatal, (GUILTY,))])
            assert [failure.line for failure in result.failures] == [GUILTY]
        (result,) = executor.run(fatal, [Trial(fatal, (INNOCENT[0],))])
        assert result.cases == 1 and not result.failures


def test_kept_workers_whose_run_is_given_up_are_stopped():
    target = Target("second_subject:HANGS")
    with LocalExecutor(1) as executor:
        run = executor.run(target, [Trial(target, (line,)) for line in (INNOCENT[0], GUILTY)])
        next(run)
        run.close()
        (result,) = executor.run(target, [Trial(target, (INNOCENT[1],))])
        assert result.cases == 1


def test_a_kept_worker_that_dies_idle_is_replaced():
    target = Target("second_subject:EXITS_AT_ONCE")
    work = [Trial(target, (INNOCENT[0],))]
    with LocalExecutor(1) as executor:
        list(executor.run(target, work))
        (pool,) = executor._crew.pools
        (worker,) = pool._pool_manager.worker_manager.workers.values()
        os.kill(worker.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while pool.active and time.monotonic() < deadline:
            time.sleep(0.05)
        (result,) = executor.run(target, work)
    assert result.cases == 1 and not result.failures


def test_workers_that_saw_a_death_are_not_kept():
    """What ended one may have damaged another, and no later run should be blamed for it."""
    fatal = Target("second_subject:SEGFAULTS")
    with LocalExecutor(1) as executor:
        list(executor.run(fatal, [Trial(fatal, (INNOCENT[0],))]))
        assert executor._crew
        list(executor.run(fatal, [Trial(fatal, (GUILTY,))]))
        assert executor._crew is None


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_until_workers_have_started(sent):
    """One that a thread of a library takes, such as OpenBLAS has: no mask of the main thread keeps it."""
    started: list[str] = []
    ready = threading.Event()

    def take() -> None:
        ready.wait()
        signal.pthread_kill(threading.get_ident(), sent)

    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the command line does
    thread = threading.Thread(target=take)  # starts before anything is blocked
    thread.start()
    with pytest.raises(KeyboardInterrupt), deaf():
        ready.set()
        thread.join()
        time.sleep(0.01)  # Python raises at the next opportunity
        started.append("all")
    assert started == ["all"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.signal(signal.SIGTERM, before) is signal.default_int_handler
