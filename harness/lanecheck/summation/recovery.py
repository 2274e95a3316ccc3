"""The order in which a kernel adds: recovered from its outputs, beside the declared one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lanecheck import cases
from lanecheck.observation import Observation
from lanecheck.oracles import tree as oracle
from lanecheck.subject import load
from lanecheck.summation.fprev import NoTree, Tree
from lanecheck.summation.notation import description, notation
from lanecheck.trial import Target, observe

_LONGEST = 512  # terms: beyond, recovering a tree takes more than a tenth of a second


@dataclass(frozen=True)
class Summation:
    """The summation tree of one output.

    Attributes:
        line: the case. capability: whose tensor core it ran on.
        found: the tree that the outputs tell. declared: the subject's, if it declares one.
        bias: whether the last leaf is a bias.
    """

    line: str
    output: str
    capability: str
    found: Tree
    declared: Tree | None
    bias: bool

    @property
    def as_declared(self) -> bool | None:
        """None if nothing is declared."""
        return None if self.declared is None else self.declared.digest == self.found.digest

    @property
    def words(self) -> str:
        """The tree in words."""
        return description(self.found, self.bias)

    @property
    def notation(self) -> str:
        """The tree in one line of brackets."""
        return notation(self.found, self.bias)


def recovered(observation: Observation, capability: str) -> list[Summation]:
    """The tree of each of a case's outputs.

    Raises:
        NoTree: if no tree explains what the kernel returns.
        BadInput: if the case's outputs cannot show it.
    """
    subject, params = observation.subject, observation.params
    order, trees = subject.order(params), oracle.recover(observation)
    summations = []
    for product in subject.products(params):
        k, bias = observation.inputs[product.x].shape[1], product.bias is not None
        declared = None if order is None else oracle.implied(order, observation.core, k, bias)
        found = trees[product.output]
        line = observation.case.line
        summations.append(Summation(line, product.output, capability, found, declared, bias))
    return summations


def sample(target: Target, seed: int, count: int) -> Iterator[Summation]:
    """The trees of the first ``count`` cases of a campaign that show one of some parts and few terms.

    Raises:
        NoTree: if no tree explains what the kernel returns.
    """
    subject = load(target.subject)
    taken = 0
    for index in range(100 * count):
        case = cases.case(subject, seed, index)
        order = subject.order(case.params)
        parts = sum(len(run) > 0 for run in order.chains) if order else 0
        if parts < 2 or subject.terms(case.params) > _LONGEST:
            continue
        for capability, observation in observe(subject, case, target):
            if oracle.hidden(observation) is not None:
                break
            try:
                yield from recovered(observation, capability)
            except NoTree as reason:
                raise NoTree(f"{case.line}: {reason}") from None
        else:
            taken += 1
        if taken == count:
            return
