"""Relations: one launch predicts another; each notices its own kind of breach."""

from __future__ import annotations

import re
from collections.abc import Mapping

import ml_dtypes
import numpy as np
import pytest
from second_subject import ByNumpy, Matmul

from lanecheck import cases, trial
from lanecheck.observation import Observation
from lanecheck.oracles import relations
from lanecheck.subject import Bits, Params
from lanecheck.verdict import Outcome, Verdict

LINE = "matmul m=4 n=6 k=9 out=fp32 xoff=0 ypad=0 regime=spread side=upper seed={seed}"


class Serial(ByNumpy):
    """Adds k after k, whatever the place of the element, and claims so."""

    def product(self, x: Bits, w: Bits, out: str) -> Bits:
        x32, w32 = (bits.view(ml_dtypes.bfloat16).astype(np.float32) for bits in (x, w))
        y = np.zeros((len(x), len(w)), np.float32)
        with np.errstate(all="ignore"):
            for k in self.walk(x32, w32):
                y += x32[:, k, None] * w32[:, k]
        self.finish(y)
        return y.view(np.uint32)

    def walk(self, x: np.ndarray, w: np.ndarray) -> list[int]:
        return list(range(x.shape[1]))

    def finish(self, y: np.ndarray) -> None: ...

    def resized(
        self, params: Params, m: int | None = None, n: int | None = None, k: int | None = None
    ) -> Params | None:
        sizes = {name: size for name, size in (("m", m), ("n", n), ("k", k)) if size}
        return {**params, **sizes}


class OtherOrderAlone(Serial):
    """The first tile of a kernel for one token is walked backwards."""

    def walk(self, x: np.ndarray, w: np.ndarray) -> list[int]:
        walk = super().walk(x, w)
        return walk[::-1] if len(x) == 1 else walk


class Leaks(Serial):
    """Each token gets 0 times the token before it."""

    def finish(self, y: np.ndarray) -> None:
        y[1:] += 0 * y[:-1]


class LastRowDiffers(Serial):
    def finish(self, y: np.ndarray) -> None:
        y[:, -1] *= np.float32(1 + 2**-20)


class LastTokenDiffers(Serial):
    def finish(self, y: np.ndarray) -> None:
        y[-1] *= np.float32(1 + 2**-20)


class AddsAConstant(Serial):
    def finish(self, y: np.ndarray) -> None:
        y += np.float32(2**-10)


class DependsOnK(Serial):
    def walk(self, x: np.ndarray, w: np.ndarray) -> list[int]:
        walk = super().walk(x, w)
        return walk[::-1] if x.shape[1] > 9 else walk


def observed(subject: Matmul, seed: int = 0, line: str = LINE) -> Observation:
    case = cases.parse(line.format(seed=seed), subject)
    ((_, observation),) = trial.observe(subject, case, trial.Target(""))
    return observation


def verdicts(subject: Matmul, count: int = 40) -> list[Verdict]:
    judged = [relations.judge(observed(subject, seed)) for seed in range(count)]
    return [verdict for verdict in judged if verdict is not None]


def names(observation: Observation) -> set[str]:
    found = relations.relations(observation, np.random.default_rng(0))
    return {re.split(r"[:]| permuted", relation.name)[0] for relation in found}


ALL = {"batch", "neighbours", "tokens", "rows", "scale", "padding"}


def test_every_relation_is_tried_and_holds_for_a_right_kernel():
    assert names(observed(Serial())) == ALL
    assert all(verdict.outcome is Outcome.PASS for verdict in verdicts(Serial()))


def test_every_relation_holds_for_a_right_kernel():
    for seed in range(5):
        observation = observed(Serial(), seed)
        for relation in relations.relations(observation, np.random.default_rng(seed)):
            run = observation.launch(relation.params, relation.inputs)
            kept = relation.kept(observation.outputs["y"])
            assert np.array_equal(relation.again(run.outputs["y"]), kept), relation.name


def test_without_the_claim_only_the_scale_is_tried():
    assert names(observed(ByNumpy())) == {"scale"}
    assert names(observed(ByNumpy(), line=LINE.replace("spread", "overflow"))) == set()


@pytest.mark.parametrize(
    ("subject", "relation"),
    [
        (OtherOrderAlone(), "batch: token "),
        (Leaks(), "neighbours: token "),
        (LastRowDiffers(), "rows permuted: "),
        (LastTokenDiffers(), "tokens permuted: "),
        (AddsAConstant(), "scale: x and bias by 2^"),
        (DependsOnK(), "padding: K from 9 on: "),
    ],
)
def test_each_breach_is_noticed_by_its_relation(subject: Matmul, relation: str):
    said = [verdict.evidence for verdict in verdicts(subject) if verdict.wrong]
    assert any(evidence.startswith(relation) for evidence in said)
    assert all(re.search(r"y\[\d+, \d+\] is ", evidence) for evidence in said)


def test_a_problem_of_the_second_launch_is_named():
    class DiesAlone(Serial):
        def product(self, x: Bits, w: Bits, out: str) -> Bits:
            if len(x) == 1:
                raise RuntimeError("no kernel for one token")
            return super().product(x, w, out)

    said = {verdict.evidence for verdict in verdicts(DiesAlone()) if verdict.wrong}
    assert said
    assert all("launch: RuntimeError: no kernel for one token" in each for each in said)


def test_a_subject_without_products_has_no_relations():
    class Opaque(Serial):
        def products(self, params: Params) -> list[object]:
            return []

        def predict(self, params: Params, inputs: Mapping[str, Bits], core: object) -> None:
            return None

    assert relations.judge(observed(Opaque())) is None
