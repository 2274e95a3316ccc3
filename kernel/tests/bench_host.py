"""How fast the kernel runs on the CPU. Never asserted: ``pytest kernel/tests/bench_host.py``."""

from __future__ import annotations

import pytest

from lanecheck.build import build_host
from lanecheck.cases import Case
from lanecheck.simt import VARIANTS
from lanecheck.toolchain import Toolchain
from lanecheck.trial import Target, Trial, launcher, run
from packed_gemv.subject import SUBJECT

REFERENCE = "packed_gemv.subject:SUBJECT"
SHAPES = [(1, 16, 128, 1), (8, 64, 512, 4), (16, 256, 2048, 4)]


def target(variant: str, *capabilities: str) -> Target:
    library = build_host(SUBJECT.recipe, variant, Toolchain()).path
    return Target(REFERENCE, "host", capabilities, library, variant)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "asan"])
@pytest.mark.parametrize(("m", "n", "k", "nw"), SHAPES)
def test_launches(benchmark, m, n, k, nw, variant) -> None:
    """Launches of one shape with the bits of a Hopper tensor core, without oracles."""
    sizes = {"m": m, "n": n, "k": k, "nw": nw, "u": 4, "s": 1}
    rest = dict.fromkeys(("dual", "fused", "bias", "xpad", "xoff", "ypad"), 0)
    values = {"out": "fp32", "regime": "normal", "side": "upper", "seed": 4}
    case = Case(SUBJECT.name, {**sizes, **rest, **values})
    with launcher(SUBJECT, case, target(variant, "9.0")) as launch:
        assert not benchmark(launch)
    benchmark.extra_info["launches/s"] = round(1 / benchmark.stats.stats.min)


@pytest.mark.parametrize("capabilities", [("9.0",), ("8.0", "9.0")], ids="+".join)
def test_the_fuzz_loop(benchmark, capabilities) -> None:
    """200 cases of the campaign, every oracle on each, in one process."""
    trial = Trial(target("plain", *capabilities), seed=1, indices=range(200))
    result = benchmark.pedantic(run, (trial,), rounds=5, warmup_rounds=1)
    assert not result.failures
    benchmark.extra_info["cases/s"] = round(200 / benchmark.stats.stats.min)
