"""Injects every fault of a catalogue, runs ordinary cases, and says which oracles noticed.

The catalogue's controls run the same cases: an oracle that calls one of them wrong would call anything
wrong, and what it says of the faults would mean nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from lanecheck import oracles
from lanecheck.build import (
    NO_OVERLAY,
    BuildFailed,
    Built,
    Recipe,
    build_all,
    build_device,
    build_host,
)
from lanecheck.campaign import Budget, collect, fuzz
from lanecheck.errors import BadInput
from lanecheck.executor import ORACLE as PROCESS
from lanecheck.executor import Executor
from lanecheck.faults.catalogue import Fault
from lanecheck.matrix import Arch
from lanecheck.subject import load
from lanecheck.toolchain import Toolchain
from lanecheck.trial import Failure, Result, Target, Trial

#: Cases a fault is given to show itself, by host build.
CASES: Mapping[str, int] = {"plain": 200, "hooks": 100, "asan": 100}

#: Compiles a variant, or on a GPU the arch, with a fault or without.
Build = Callable[[str, "Fault | None"], Built]

_BATCH = 50
_FEW = 12
_ENDING = ("memory", "launch", "race")
_RUNGS = (PROCESS, *oracles.NAMES)


@dataclass
class Score:
    """How one fault, or one control, fared.

    Attributes:
        fault: the fault.
        cases: cases run. reordered: those right, in another order than the declared one.
        drawn, failing: cases run under the first of its builds, and those that failed, by oracle.
        noticed: failing cases by oracle, under all builds.
        rung: failing cases by the first oracle of the ladder to fail.
        first: of each oracle that noticed, the first failure that says what most of its failures say.
        libraries: the faulty builds by variant.
        healthy: whether the kernel without the fault passes the cases in ``first``.
        on_gpu: whether it ran on one.
    """

    fault: Fault
    cases: int = 0
    reordered: int = 0
    drawn: int = 0
    failing: dict[str, set[str]] = field(default_factory=dict)
    noticed: Counter[str] = field(default_factory=Counter)
    rung: Counter[str] = field(default_factory=Counter)
    first: dict[str, Failure] = field(default_factory=dict)
    libraries: dict[str, Path] = field(default_factory=dict)
    healthy: bool = True
    on_gpu: bool = False

    @property
    def killed(self) -> bool:
        """Noticed by every oracle that was expected to, and not because the case fails anyway.

        On a GPU by any of them, and execution may notice by the end of the process.
        """
        if not self.on_gpu:
            return self.healthy and not self.silent
        expected = {*self.fault.caught_by, PROCESS}
        return self.healthy and not expected.isdisjoint(self.noticed)

    @property
    def clean(self) -> bool:
        """Of a control: no case fails, and some are reordered if and only if that is expected."""
        return not self.noticed and bool(self.reordered) == (self.fault.expect == "reordered")

    @property
    def excused(self) -> str | None:
        """Why nothing had to notice here, if nothing did."""
        if self.noticed:
            return None
        if self.on_gpu:
            return "a race need not show on a GPU" if self.fault.kind == "race" else None
        return "only a GPU runs it" if self.fault.kind == "asm" else None

    @property
    def good(self) -> bool:
        """A killed or excused fault, or a clean control."""
        return self.clean if self.fault.control else self.killed or bool(self.excused)

    @property
    def silent(self) -> list[str]:
        """Oracles expected to notice that did not."""
        return [oracle for oracle in self.fault.caught_by if oracle not in self.noticed]

    @property
    def also(self) -> Counter[str]:
        """Failing cases by oracles that were not the first to fail there."""
        return self.noticed - self.rung

    @property
    def lines(self) -> tuple[str, ...]:
        """Of the cases in ``first``."""
        return tuple(dict.fromkeys(failure.line for failure in self.first.values()))

    def add(self, seen: Result) -> None:
        """Count the cases of one campaign."""
        failing: dict[str, set[str]] = {}
        first = not self.cases
        said = Counter(map(sentence, seen.failures))
        for failure in sorted(seen.failures, key=lambda failure: -said[sentence(failure)]):
            failing.setdefault(failure.line, set()).add(failure.verdict.oracle)
            self.first.setdefault(failure.verdict.oracle, failure)
            if first:
                self.failing.setdefault(failure.verdict.oracle, set()).add(failure.line)
        for noticing in failing.values():
            self.noticed.update(noticing)
            self.rung[min(noticing, key=_RUNGS.index)] += 1
        self.drawn = seen.cases if first else self.drawn
        self.cases += seen.cases
        self.reordered += len({note.line for note in seen.reordered})


def sentence(failure: Failure) -> str:
    """What an oracle says, without the remark in parentheses on how often."""
    return re.sub(r" \([^()]*\)$", "", failure.verdict.evidence)


def run_catalogue(
    faults: Sequence[Fault],
    target: Target,
    build: Build,
    executor: Executor,
    seed: int,
    progress: Callable[[float, str], None] = lambda done, note: None,
) -> list[Score]:
    """Build every fault's variants, run :data:`CASES` of campaign ``seed`` under each, and count.

    Args:
        target: the healthy target; its library and variant are replaced by the faulty ones. On a GPU its
            variant is the only one.
        build: compiles one variant.
        progress: is told how many faults are done, and what comes next.

    Raises:
        BadInput: if a fault no longer applies, or does not compile.
    """

    def built(variant: str, fault: Fault | None) -> Built:
        library = build(variant, fault)
        progress(0, f"built {fault.id if fault else 'healthy'}, {variant}")
        return library

    scores = _built(faults, target, built)
    for done, score in enumerate(scores):
        progress(done, score.fault.id)
        for variant, library in score.libraries.items():
            faulty = _on(target, variant, library)
            score.add(_fuzzed(faulty, score.fault, seed, executor))
    _recheck(scores, target, build, executor)
    return scores


def host_builds(recipe: Recipe, toolchain: Toolchain) -> Build:
    """Of the variants for host execution."""

    return lambda variant, fault: build_host(recipe, variant, toolchain, _overlay(fault, recipe))


def gpu_builds(recipe: Recipe, arch: Arch, toolchain: Toolchain) -> Build:
    """Of one arch, whatever the variant."""

    return lambda variant, fault: build_device(recipe, arch, toolchain, _overlay(fault, recipe))


def _overlay(fault: Fault | None, recipe: Recipe) -> Mapping[str, str]:
    return fault.inject(recipe.root) if fault else NO_OVERLAY


def summary(scores: Sequence[Score]) -> str:
    """How many faults were caught and how many controls are clean, and which are not."""
    faults = [score for score in scores if not score.fault.control]
    controls = [score for score in scores if score.fault.control]
    text = f"{sum(score.killed for score in faults)} of {len(faults)} faults caught"
    for reason, names in _excused(faults).items():
        text += f" ({reason}: {', '.join(names)})"
    if controls:
        text += f", {sum(score.clean for score in controls)} of {len(controls)} controls clean"
    for verdict, group in (("survived", faults), ("flagged", controls)):
        if bad := [score.fault.id for score in group if not score.good]:
            text += f"; {verdict}: {', '.join(bad)}"
    return text


def _excused(faults: Sequence[Score]) -> dict[str, list[str]]:
    """The faults that nothing had to notice, by reason."""
    reasons: dict[str, list[str]] = {}
    for score in faults:
        if score.excused:
            reasons.setdefault(score.excused, []).append(score.fault.id)
    return reasons


def _built(faults: Sequence[Fault], target: Target, build: Build) -> list[Score]:
    """A score for every fault, with its libraries."""
    on_gpu, recipe = target.device == "cuda", load(target.subject).recipe
    for fault in faults:
        if recipe and not fault.variants:
            fault.inject(recipe.root)  # what is not built here must still apply
    jobs = [
        (fault, variant)
        for fault in faults
        for variant in ([target.variant] if on_gpu else fault.variants)
    ]
    libraries = build_all(partial(build, variant, fault) for fault, variant in jobs)
    scores = {fault.id: Score(fault, on_gpu=on_gpu) for fault in faults}
    for (fault, variant), library in zip(jobs, libraries):
        if isinstance(library, BuildFailed):
            raise BadInput(f"fault {fault.id}: {library}") from library
        scores[fault.id].libraries[variant] = library.path
    return list(scores.values())


def _fuzzed(target: Target, fault: Fault, seed: int, executor: Executor) -> Result:
    """The first cases of a campaign.

    On a GPU a case that ends its process costs a worker, seconds each: a fault that may do so runs a few
    cases first, and no others if they do; and a worker that meets such a case has few others with it.
    """
    count = CASES.get(target.variant, CASES["plain"]) * fault.effort
    if target.device == "host":
        return fuzz(target, Budget(count), seed, executor, batch=_BATCH)
    if fault.kind in _ENDING:
        singles = Trial(target, seed=seed, indices=range(_FEW)).singly()
        few = collect(executor.run(target, singles), Result())
        if any(failure.verdict.oracle == PROCESS for failure in few.failures):
            return few
    return fuzz(target, Budget(count), seed, executor, batch=_BATCH // 10)


def _recheck(scores: Sequence[Score], target: Target, build: Build, executor: Executor) -> None:
    """Let the healthy kernel run what each score shows first; all of a variant in one pool of workers."""
    for variant in dict.fromkeys(name for score in scores for name in score.libraries):
        concerned = [score for score in scores if variant in score.libraries and score.first]
        if not concerned:
            continue
        healthy = _on(target, variant, build(variant, None).path)
        work = [Trial(healthy, score.lines) for score in concerned]
        wrong = {note.line for result in executor.run(healthy, work) for note in result.failures}
        for score in concerned:
            score.healthy &= wrong.isdisjoint(score.lines)


def _on(target: Target, variant: str, library: Path) -> Target:
    """The same device, on its most recent tensor core, with another library."""
    return replace(target, capabilities=target.capabilities[-1:], library=library, variant=variant)
