"""One observed case: what went in, what came out, what the machine had to say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lanecheck.cases import Case
from lanecheck.subject import Bits, Params, Subject
from lanecheck.tensorcore import TensorCore
from lanecheck.values import finite_magnitudes

#: What every output and workspace element holds before a run, by colour and dtype. The first is a NaN
#: that no kernel computes, the second an ordinary number: what depends on either shows.
POISON = (
    {"bf16": 0x7FA5, "fp32": 0x7FA5A5A5, "byte": 0xA5},
    {"bf16": 0x4B5A, "fp32": 0x4B5A5A5A, "byte": 0x5A},
)


#: Input elements from which on a case is large.
LARGE = 2**20


def is_large(inputs: Mapping[str, Bits]) -> bool:
    """Whether these inputs have more than :data:`LARGE` elements."""
    return sum(bits.size for bits in inputs.values()) > LARGE


@dataclass(frozen=True)
class Problem:
    """Something the executing machine reports: an access fault, a race, a damaged canary."""

    kind: str
    message: str


@dataclass(frozen=True)
class Run:
    """One launch.

    Attributes:
        outputs: bits by name; a copy, in logical shape.
        strays: output tensor name to how many poisoned elements between its rows were overwritten.
        problems: the machine's own reports.
    """

    outputs: Mapping[str, Bits]
    strays: Mapping[str, int]
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Observation:
    """What an oracle may look at, and ask.

    Attributes:
        subject, case: what ran. core: the tensor core it ran on.
        inputs: bits by name.
        runs: the case once under each colour of :data:`POISON`, each under a schedule of its own.
        launch: runs the kernel again, with other parameters or inputs, under the first colour.
    """

    subject: Subject
    case: Case
    core: TensorCore
    inputs: Mapping[str, Bits]
    runs: tuple[Run, ...]
    launch: Callable[[Params, Mapping[str, Bits]], Run]

    @property
    def params(self) -> Params:
        return self.case.params

    @property
    def outputs(self) -> Mapping[str, Bits]:
        """Of the first run."""
        return self.runs[0].outputs

    @property
    def large(self) -> bool:
        """Whether the host would take longer to compute with the inputs than to launch."""
        return is_large(self.inputs)

    @property
    def plain(self) -> bool:
        """Whether the outputs are matrix products and nothing more."""
        products = self.subject.products(self.params)
        return bool(products) and all(product.plain for product in products)

    @cached_property
    def exact(self) -> Mapping[str, npt.NDArray[np.float64]]:
        """The outputs in float64."""
        with np.errstate(all="ignore"):
            return self.subject.reference(self.params, self.inputs)

    @cached_property
    def sizes(self) -> Mapping[str, npt.NDArray[np.float64]]:
        """Σ|terms| of plain outputs, of the terms that are finite."""
        with np.errstate(all="ignore"):
            return self.subject.reference(self.params, finite_magnitudes(self.inputs))

    @property
    def problems(self) -> list[Problem]:
        """Of every run."""
        return [problem for run in self.runs for problem in run.problems]
