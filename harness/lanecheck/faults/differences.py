"""Host execution against a GPU: do the same cases of the same fault fail by the same oracles?

A defect that depends on nothing but the case must show in the same cases on both. Where it does not, one of
the two is wrong about the kernel, unless the fault is of a kind that only one of them can show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lanecheck import cases
from lanecheck.executor import ORACLE as PROCESS
from lanecheck.faults.catalogue import Fault
from lanecheck.faults.scoreboard import Score
from lanecheck.oracles import execution
from lanecheck.subject import Subject

#: Kinds of which either side may see what the other does not, and why.
EITHER = {
    "race": "a race: host execution orders the threads of each case by its seed, a GPU by its timing",
    "launch": "the launch: what a GPU makes of a bad one is up to its driver and its units of shared memory",
}
#: Kinds of which the host sees what a GPU cannot, and why.
ONLY_HOST = {
    "memory": "an access outside its tensor: the host checks every byte, a GPU what leaves the mapped 2 MiB"
}


@dataclass(frozen=True)
class Comparison:
    """One fault on both sides.

    Attributes:
        cases: run on both. alike: pairs of a case and an oracle that fails it on both; a case that ends its
            process on the GPU counts once if any oracle fails it on the host.
        only_host, only_gpu: those that fail on one side, by oracle.
        why: what explains them; None if there are none, or nothing does.
    """

    fault: Fault
    cases: int
    alike: int
    only_host: Counter[str]
    only_gpu: Counter[str]
    why: str | None

    @property
    def explained(self) -> bool:
        """Whether both sides agree, or differ as the kind of the fault lets them."""
        return self.why is not None or not (self.only_host or self.only_gpu)


def compare(
    host: Sequence[Score], gpu: Sequence[Score], subject: Subject, seed: int
) -> list[Comparison]:
    """Both sides of each fault that has two: no control, nor what only a GPU runs; of the host, the first
    of its builds.

    Args:
        host, gpu: scores of the same faults in the same order. seed: of both campaigns.
    """
    pairs = [(h, g) for h, g in zip(host, gpu) if h.drawn and not h.fault.control]
    return [_compared(h, g, subject, seed) for h, g in pairs]


def _compared(host: Score, gpu: Score, subject: Subject, seed: int) -> Comparison:
    fault = host.fault
    count = min(host.drawn, gpu.drawn)
    lines = {cases.case(subject, seed, index).line for index in range(count)}
    ended = [_ended(score) & lines for score in (host, gpu)]
    # A case that ends on one side has no numbers there to compare. On the host a relation or a probe may be
    # the one to launch what is wrong; on a GPU that ends the process all the same.
    both_end = ended[1] & set().union(*host.failing.values())
    judged = lines - ended[0] - ended[1]
    sides = [_failing(score, judged) for score in (host, gpu)]
    alike = len(both_end) + len(sides[0] & sides[1])
    only_host = _counts(sides[0] - sides[1]) + _execution(ended[0] - ended[1])
    only_gpu = _counts(sides[1] - sides[0]) + _execution(ended[1] - both_end)
    why = _why(fault.kind, only_host, only_gpu)
    return Comparison(fault, count, alike, only_host, only_gpu, why)


def _why(kind: str, only_host: Counter[str], only_gpu: Counter[str]) -> str | None:
    if not only_host and not only_gpu:
        return None
    if kind in EITHER:
        return EITHER[kind]
    if not only_gpu and kind in ONLY_HOST and set(only_host) == {execution.NAME}:
        return ONLY_HOST[kind]
    return None


def _ended(score: Score) -> set[str]:
    """The cases that the launch itself failed, or that ended their process."""
    return score.failing.get(execution.NAME, set()) | score.failing.get(PROCESS, set())


def _failing(score: Score, lines: set[str]) -> set[tuple[str, str]]:
    """Which oracle fails which of these cases."""
    return {(line, oracle) for oracle, failed in score.failing.items() for line in failed & lines}


def _counts(pairs: set[tuple[str, str]]) -> Counter[str]:
    return Counter(oracle for _, oracle in pairs)


def _execution(lines: set[str]) -> Counter[str]:
    return +Counter({execution.NAME: len(lines)})
