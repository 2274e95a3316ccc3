"""Injects every fault of a catalogue, runs ordinary cases, and says which oracles noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from lanecheck.build import Recipe, build_host
from lanecheck.campaign import Budget, fuzz
from lanecheck.executor import Executor
from lanecheck.faults.catalogue import Fault
from lanecheck.toolchain import Toolchain
from lanecheck.trial import Failure, Target, Trial

#: Cases a fault is given to show itself, by host build.
CASES: Mapping[str, int] = {"plain": 200, "hooks": 100, "asan": 100}


@dataclass
class Score:
    """How one fault fared.

    Attributes:
        fault: the fault.
        cases: cases run. noticed: failing cases by oracle.
        first: the first failure of each oracle that noticed.
        libraries: the faulty builds by variant.
        healthy: whether the kernel without the fault passes the cases in ``first``.
    """

    fault: Fault
    cases: int = 0
    noticed: Counter[str] = field(default_factory=Counter)
    first: dict[str, Failure] = field(default_factory=dict)
    libraries: dict[str, Path] = field(default_factory=dict)
    healthy: bool = True

    @property
    def killed(self) -> bool:
        """Noticed by an oracle that was expected to, and not because the case fails anyway."""
        return self.healthy and any(oracle in self.noticed for oracle in self.fault.caught_by)

    @property
    def silent(self) -> list[str]:
        """Oracles expected to notice that did not."""
        return [oracle for oracle in self.fault.caught_by if oracle not in self.noticed]


def score(
    fault: Fault,
    target: Target,
    recipe: Recipe,
    toolchain: Toolchain,
    executor: Executor,
    seed: int,
) -> Score:
    """Build the fault's variants, run :data:`CASES` of campaign ``seed`` under each, and count.

    Args:
        target: the healthy target; its library and variant are replaced by the faulty ones.
    """
    overlay = fault.inject(recipe.root)
    result = Score(fault)
    for variant in fault.variants:
        library = build_host(recipe, variant, toolchain, overlay).path
        result.libraries[variant] = library
        faulty = Target(target.subject, target.device, target.capabilities[-1:], library, variant)
        seen = fuzz(faulty, Budget(CASES[variant]), seed, executor, batch=50)
        result.cases += seen.cases
        noticed = {(failure.line, failure.verdict.oracle) for failure in seen.failures}
        result.noticed += Counter(oracle for _, oracle in noticed)
        first: dict[str, Failure] = {}
        for failure in seen.failures:
            first.setdefault(failure.verdict.oracle, failure)
        control = replace(faulty, library=build_host(recipe, variant, toolchain).path)
        lines = tuple({failure.line for failure in first.values()})
        passes = executor.run(control, [Trial(control, lines)]) if lines else ()
        result.healthy &= not any(again.failures for again in passes)
        result.first = {**first, **result.first}
    return result
