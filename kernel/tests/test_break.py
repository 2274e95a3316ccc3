"""Lab 2's ``--break`` is the fault: the mutated kernel computes the very bits of the broken emulation."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("lanecheck")

from lanecheck.build import build_host
from lanecheck.cases import Case
from lanecheck.faults import catalogue
from lanecheck.subject import faults_of
from lanecheck.tensorcore import model_for
from lanecheck.toolchain import Toolchain
from lanecheck.trial import Target, observe
from packed_gemv.config import Config
from packed_gemv.emulator import Problem, emulate
from packed_gemv.labs import fragments, lanes
from packed_gemv.layout import PackedWeight, blocks
from packed_gemv.subject import SUBJECT, BitExact


@pytest.fixture(scope="module")
def mutated() -> Target:
    """The kernel with the fault in its source, run on the CPU."""
    fault = catalogue.find(faults_of(SUBJECT), "swap-x-halves")
    overlay = fault.inject(SUBJECT.recipe.root)
    library = build_host(SUBJECT.recipe, "plain", Toolchain(), overlay).path
    return Target("packed_gemv.subject:SUBJECT", "host", ("8.0", "9.0"), library)


@pytest.mark.parametrize(
    ("m", "nw", "u", "s", "dual"), [(8, 4, 4, 1, 0), (13, 8, 2, 1, 0), (5, 4, 4, 3, 1)]
)
def test_the_mutated_kernel_has_the_broken_emulations_bits(
    m: int, nw: int, u: int, s: int, dual: int, mutated: Target
) -> None:
    sizes = {"m": m, "n": lanes.N, "k": lanes.K, "nw": nw, "u": u, "s": s, "dual": dual}
    plain = {"fused": 0, "bias": 0, "out": "fp32", "xpad": 0, "xoff": 0, "ypad": 0}
    case = Case(SUBJECT.name, {**sizes, **plain, "regime": "normal", "side": "upper", "seed": 1})
    x, weights = fragments.operands(m, 1 + dual)
    packed = tuple(PackedWeight.of(weight) for weight in weights)
    config = Config(nw, u, s, blocks(m, 8), bool(dual))

    inputs = {"x": x, **{f"w{i}": weight for i, weight in enumerate(weights)}}
    for capability, seen in observe(SUBJECT, case, mutated, inputs):
        assert seen.problems == []
        for read, same in ((fragments.halves_exchanged(x), True), (x, False)):
            problem = Problem(read, packed, (None,) * len(packed), out_fp32=True)
            predicted = emulate(problem, config, BitExact(model_for(capability)))
            for i, bits in enumerate(predicted):
                assert np.array_equal(seen.outputs[f"y{i}"], bits) == same
