"""The kernel adds in the tree that it declares, as seen from outside."""

from __future__ import annotations

import pytest

lanecheck = pytest.importorskip("lanecheck")

from lanecheck.build import build_host  # noqa: E402
from lanecheck.cases import Case  # noqa: E402
from lanecheck.oracles import tree  # noqa: E402
from lanecheck.order import Order  # noqa: E402
from lanecheck.subject import Params  # noqa: E402
from lanecheck.summation import recovery  # noqa: E402
from lanecheck.summation.notation import description, notation  # noqa: E402
from lanecheck.toolchain import Toolchain  # noqa: E402
from lanecheck.trial import Target, observe  # noqa: E402
from lanecheck.verdict import Outcome  # noqa: E402
from packed_gemv.subject import SUBJECT, PackedGemv  # noqa: E402

CASES = {
    "one k": {"k": 1, "nw": 1},
    "one block": {"k": 32, "nw": 1, "m": 1},
    "chains of two lengths": {"k": 96},
    "a ragged K": {"k": 321, "nw": 3, "s": 2, "bias": 1},
    "empty chains": {"k": 65, "nw": 4, "s": 3, "bias": 1},
    "long trips": {"k": 512, "nw": 2, "u": 8, "m": 1, "n": 64},
    "split K": {"k": 512, "nw": 4, "s": 2, "bias": 1, "m": 2},
    "two matrices": {"k": 192, "dual": 1, "s": 3, "bias": 1, "xoff": 3},
    "every token": {"k": 128, "m": 64},
}


@pytest.fixture(scope="session")
def host() -> Target:
    library = build_host(SUBJECT.recipe, "plain", Toolchain()).path
    return Target("packed_gemv.subject:SUBJECT", "host", ("8.0", "9.0"), library)


def case(**changed: int | str) -> Case:
    usual = {"m": 5, "n": 21, "k": 96, "nw": 2, "u": 1, "s": 1, "dual": 0, "fused": 0, "bias": 0}
    layout = {"out": "fp32", "xpad": 0, "xoff": 0, "ypad": 0}
    values = {"regime": "normal", "side": "upper", "seed": 8}
    return Case(SUBJECT.name, {**usual, **layout, **values, **changed})


@pytest.mark.parametrize("name", CASES)
def test_the_recovered_tree_is_the_declared_one(name: str, host: Target) -> None:
    one = case(**CASES[name])
    for _, observation in observe(SUBJECT, one, host):
        bias = bool(one.params["bias"])
        order = SUBJECT.order(one.params)
        declared = tree.implied(order, observation.core, int(one.params["k"]), bias)
        found = tree.recover(observation)
        assert found.keys() == {f"y{i}" for i in range(1 + int(one.params["dual"]))}
        assert {each.digest for each in found.values()} == {declared.digest}
        verdict = tree.judge(observation)
        assert verdict is not None
        assert verdict.outcome is Outcome.PASS


def test_its_tree_can_be_read(host: Target) -> None:
    written = {}
    for cc, observation in observe(SUBJECT, case(**CASES["split K"]), host):
        found = tree.recover(observation)["y0"]
        written[cc] = notation(found, bias=True), description(found, bias=True)
    end = "added left to right, then the bias"
    assert written == {
        "8.0": (
            "(([{0 1 8 9 16 17 24 25} ×4@2 ×2@32] ×4@64) ×2@256 + bias)",
            f"2 groups of 4 chains of 8 fused sums of 8, {end}",
        ),
        "9.0": (
            "(([{0…3 ×4@8} ×2@4 ×2@32] ×4@64) ×2@256 + bias)",
            f"2 groups of 4 chains of 4 fused sums of 16, {end}",
        ),
    }


@pytest.mark.parametrize("declared", [{"nw": 4}, {"nw": 1}, {"nw": 1, "s": 2}])
def test_a_configuration_other_than_the_declared_one_is_reordered(
    declared: dict[str, int], host: Target
) -> None:
    class Mistaken(PackedGemv):
        def order(self, params: Params) -> Order:
            return super().order({**params, **declared})

    one = case(k=512, n=64)
    for _, observation in observe(Mistaken(), one, host):
        verdict = tree.judge(observation)
        assert verdict is not None
        same = declared == {"nw": 1, "s": 2}  # two chains of one fold, or two folds of one chain
        assert verdict.outcome is (Outcome.PASS if same else Outcome.REORDERED)


def test_the_fused_epilogue_and_bf16_show_no_order(host: Target) -> None:
    for changed in ({"dual": 1, "fused": 1}, {"out": "bf16"}):
        for _, observation in observe(SUBJECT, case(**changed), host):
            assert tree.judge(observation) is None


def test_a_sample_of_a_campaign_shows_the_trees_of_both_tensor_cores(host: Target) -> None:
    found = list(recovery.sample(host, seed=0, count=2))
    assert {each.capability for each in found} == {"8.0", "9.0"}
    assert len({each.line for each in found}) == 2
    assert all(each.as_declared for each in found)
    again = list(recovery.sample(host, seed=0, count=2))
    assert [each.found.digest for each in again] == [each.found.digest for each in found]
