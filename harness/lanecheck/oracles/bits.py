"""Predicted bits: the output equals, bit for bit, what the declared order gives on this tensor core.

The subject predicts from its configuration (chain order, warp order, split order, epilogue, rounding)
and a bit-exact model of ``mma``; see :mod:`lanecheck.tensorcore` for the model's source and whether
it is measured or published.

Other bits are a failure, unless they are, all of them, those of the order in which the kernel is seen to
add (:mod:`lanecheck.oracles.reordering`): then it adds the right numbers, but not in its declared order.

Of a large matrix, some blocks of rows are predicted, if the subject claims that rows do not matter to one
another.

Sees: any difference at all, in every regime and through every epilogue: an order that changes, one
rounding too many, one subnormal flushed.

Cannot see: a mistake that specification and kernel share; a tensor core that is not as modelled, until
the kernel runs on one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from lanecheck.cases import Case
from lanecheck.observation import Observation
from lanecheck.oracles import reordering
from lanecheck.oracles.compare import first_difference
from lanecheck.verdict import Outcome, Verdict

NAME = "bits"


#: Of a matrix of more weights, only some row blocks are predicted.
_WEIGHTS = 2**24


def judge(observation: Observation) -> Verdict | None:
    rows = _some_rows(observation) if observation.large else None
    part = observation if rows is None else _of_rows(observation, rows)
    predicted = observation.subject.predict(part.params, part.inputs, observation.core)
    if predicted is None:
        return None
    compared = sum(bits.size for bits in predicted.values())
    expected = predicted
    if rows is not None:  # so that a difference has its place in the whole
        expected = {name: bits.copy() for name, bits in observation.outputs.items()}
        for name, bits in predicted.items():
            expected[name][:, rows] = bits
    difference = first_difference(observation.outputs, expected)
    if difference is None:
        return Verdict(NAME, Outcome.PASS, compared=compared)
    evidence = f"{difference}, on the {observation.core.name} model"
    if rows is not None:
        evidence += f"; {len(rows)} rows were predicted"
    if reordering.explained(observation):
        text = f"{evidence}: the bits of another order of additions"
        return Verdict(NAME, Outcome.REORDERED, text, compared)
    return Verdict(NAME, Outcome.FAIL, evidence, compared)


def _some_rows(observation: Observation) -> npt.NDArray[np.int64] | None:
    """Whole row blocks, the first and the last among them; None if all are to be predicted."""
    subject, params = observation.subject, observation.params
    products = subject.products(params)
    if not products or subject.resized(params, n=16) is None:
        return None
    n, k = observation.inputs[products[0].w].shape
    blocks, some = -(-n // 16), max(2, _WEIGHTS // (16 * k))
    if some >= blocks:
        return None
    rng = np.random.default_rng(observation.case.seed)
    between = 1 + np.sort(rng.choice(blocks - 2, some - 2, replace=False))
    rows = 16 * np.array([0, *between, blocks - 1])[:, None] + np.arange(16)
    return rows[rows < n]


def _of_rows(observation: Observation, rows: npt.NDArray[np.int64]) -> Observation:
    """The observation as if it had been of these rows alone: the subject claims that an element's bits
    depend on its own row and token."""
    fewer = observation.subject.resized(observation.params, n=len(rows))
    assert fewer is not None
    products = observation.subject.products(observation.params)
    names = {name for product in products for name in (product.w, product.bias) if name}
    inputs = {
        name: bits[rows] if name in names else bits for name, bits in observation.inputs.items()
    }
    case = Case(observation.case.subject, fewer)
    return replace(observation, case=case, inputs=inputs)
