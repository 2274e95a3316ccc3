"""What the kernel's own source reads: every weight meets its own x, and a fault is told by its sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

lanecheck = pytest.importorskip("lanecheck")

from lanecheck.build import build_host  # noqa: E402
from lanecheck.cases import Case  # noqa: E402
from lanecheck.faults import catalogue  # noqa: E402
from lanecheck.observation import Observation  # noqa: E402
from lanecheck.oracles import probes  # noqa: E402
from lanecheck.toolchain import Toolchain  # noqa: E402
from lanecheck.trial import Target, observe  # noqa: E402
from packed_gemv.subject import SUBJECT  # noqa: E402


@pytest.fixture(scope="module")
def healthy() -> Path:
    return build_host(SUBJECT.recipe, "plain", Toolchain()).path


@pytest.fixture(scope="module")
def swapped() -> Path:
    overlay = catalogue.find(SUBJECT.faults, "swap-x-halves").inject(SUBJECT.recipe.root)
    return build_host(SUBJECT.recipe, "plain", Toolchain(), overlay).path


def observed(library: Path, **changed: int | str) -> list[Observation]:
    """One case on both models of the tensor core."""
    usual = {"m": 5, "n": 21, "k": 96, "nw": 2, "u": 1, "s": 1, "dual": 0, "fused": 0, "bias": 1}
    layout = {"out": "fp32", "xpad": 0, "xoff": 0, "ypad": 0}
    values = {"regime": "special", "side": "upper", "seed": 8}
    case = Case(SUBJECT.name, {**usual, **layout, **values, **changed})
    target = Target("packed_gemv.subject:SUBJECT", "host", ("8.0", "9.0"), library)
    return [observation for _, observation in observe(SUBJECT, case, target)]


CONFIGS = [
    {},
    {"m": 1, "n": 16, "k": 64},
    {"m": 1, "n": 1, "k": 1},
    {"m": 3, "n": 33, "k": 45, "out": "bf16", "ypad": 3},
    {"m": 3, "k": 40, "xpad": 8, "xoff": 16, "s": 2},
    {"m": 2, "k": 70, "xpad": 1, "xoff": 3, "u": 2, "nw": 1},
    {"m": 64, "n": 5, "k": 33, "nw": 1},
    {"m": 9, "n": 18, "k": 40, "dual": 1, "out": "bf16"},
    {"m": 4, "n": 17, "k": 160, "nw": 3, "s": 3, "dual": 1, "u": 4},
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_the_full_map_is_the_identity(config: dict[str, int | str], healthy: Path) -> None:
    for observation in observed(healthy, **config):
        seen = probes.full(observation)
        assert seen is not None
        assert seen.whole
        assert seen.identity


def test_the_fused_epilogue_is_not_probed(healthy: Path) -> None:
    for observation in observed(healthy, dual=1, fused=1):
        assert probes.judge(observation) is None


@pytest.mark.parametrize(
    "config",
    [
        {"m": 1, "n": 16, "k": 64},
        {"m": 3, "n": 21, "k": 45, "s": 2},
        {"m": 9, "n": 5, "k": 96, "dual": 1, "out": "bf16"},
    ],
    ids=str,
)
def test_exchanged_halves_of_x_are_told_as_such(
    config: dict[str, int | str], swapped: Path
) -> None:
    sentence = "x[8t+0…3] and x[8t+4…7] exchanged in every 32-block"
    for observation in observed(swapped, **config):
        in_turn, asked = probes.judge(observation), probes.diagnose(observation, thorough=True)
        assert in_turn is not None
        assert in_turn.evidence.startswith(sentence)
        assert asked is not None
        assert asked.evidence == sentence
