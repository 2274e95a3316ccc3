"""Landmarks: a subject's own cases run as any do; large and sparse ones within the machine's means."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from second_subject import SUBJECT, ByNumpy, Matmul

from lanecheck import cases, landmarks, oracles, trial
from lanecheck.errors import BadInput
from lanecheck.executor import LocalExecutor
from lanecheck.observation import LARGE, Observation
from lanecheck.subject import SPARSE, Bits, Params, Tensor
from lanecheck.trial import Target
from lanecheck.values import REGIMES

SMALL = {"m": 2, "n": 3, "k": 4, "out": "fp32", "xoff": 0, "ypad": 0}


class Marked(ByNumpy):
    """Nine small landmarks, and a large one that leaves its last row unwritten."""

    def landmarks(self, device: str) -> dict[str, Iterable[Params]]:
        named = {"small": [SMALL | {"k": k} for k in range(1, 10)]}
        if device == "cuda":
            named["large"] = [SMALL | {"n": 4096, "k": 300}]
        return named


MARKED = Marked()


def test_groups_depend_on_the_device_and_seeds_on_the_index():
    assert set(landmarks.groups(MARKED, "host")) == {"small"}
    named = landmarks.groups(MARKED, "cuda")
    assert [case.seed for case in named["small"]] == list(range(9))
    assert [case.params["regime"] for case in named["small"]] == [*REGIMES, *REGIMES[:2]]
    assert {case.params["side"] for case in named["small"]} == {"upper", "lower"}
    assert named["large"][0].params["regime"] == "normal"


def test_a_landmark_is_a_case_like_any_other():
    for case in landmarks.groups(MARKED, "host")["small"]:
        assert cases.parse(case.line, MARKED) == case


def test_a_subject_without_landmarks_is_told_so():
    with pytest.raises(BadInput, match="names no landmarks"):
        landmarks.groups(SUBJECT, "host")


def test_a_subject_that_names_none_for_a_device_is_told_so():
    class OnlyElsewhere(Matmul):
        def landmarks(self, device: str) -> dict[str, Iterable[Params]]:
            return {}

    with pytest.raises(BadInput, match="names no landmarks for --device cuda"):
        landmarks.groups(OnlyElsewhere(), "cuda")


def test_every_landmark_runs_once():
    seen: list[int] = []
    chosen = landmarks.groups(MARKED, "host")["small"]
    target = Target("test_landmarks:MARKED")
    result = landmarks.run(target, chosen, LocalExecutor(1), lambda total: seen.append(total.cases))
    assert result.cases == 9
    assert result.failures == []
    assert seen[-1] == 9


# Large cases


class Predicting(Matmul):
    """Declares its bits and that rows do not matter to one another; counts what it predicts."""

    predicted = 0

    def product(self, x: Bits, w: Bits, out: str) -> Bits:
        y = np.zeros((len(x), len(w)), np.float32)
        for k in range(x.shape[1]):
            wide = [(bits[:, k].astype(np.uint32) << 16).view(np.float32) for bits in (x, w)]
            y += wide[0][:, None] * wide[1]
        return y.view(np.uint32)

    def predict(self, params: Params, inputs: Any, core: object) -> dict[str, Bits]:
        self.predicted = len(inputs["w"])
        return {"y": self.product(inputs["x"], inputs["w"], "fp32")}

    def resized(
        self, params: Params, m: int | None = None, n: int | None = None, k: int | None = None
    ) -> Params | None:
        return {**params, "n": n or params["n"]} if m is None and k is None else None


def observed(subject: Matmul, monkeypatch: pytest.MonkeyPatch, n: int, k: int) -> Observation:
    monkeypatch.setattr("lanecheck.oracles.bits._WEIGHTS", 16 * 8 * k)
    given = {"regime": "normal", "side": "upper", "seed": 8}
    case = cases.Case("matmul", SMALL | {"n": n, "k": k} | given)
    ((_, observation),) = trial.observe(subject, case, Target(""))
    return observation


def test_a_large_case_is_judged_by_those_that_need_no_reference(monkeypatch):
    observation = observed(Predicting(), monkeypatch, 4000, 300)
    assert observation.large
    verdicts = oracles.judge(observation)
    assert [verdict.oracle for verdict in verdicts] == [m.NAME for m in oracles.AT_FULL_SIZE]
    assert not any(verdict.wrong for verdict in verdicts)


def test_of_a_large_case_some_row_blocks_are_predicted_first_and_last_among_them(monkeypatch):
    subject = Predicting()
    observation = observed(subject, monkeypatch, 4000, 300)
    (verdict,) = oracles.judge(observation, (oracles.bits,))
    assert subject.predicted == 8 * 16
    assert verdict.compared == 2 * 8 * 16
    for row in (0, 3999):
        y = observation.outputs["y"].copy()
        y[1, row] ^= 1
        runs = tuple(trial.replace(run, outputs={"y": y}) for run in observation.runs)
        (verdict,) = oracles.judge(trial.replace(observation, runs=runs), (oracles.bits,))
        assert verdict.wrong


def test_a_subject_whose_rows_matter_to_one_another_is_predicted_whole(monkeypatch):
    class Whole(Predicting):
        def resized(self, params: Params, **sizes: int | None) -> None:
            return None

    subject = Whole()
    oracles.judge(observed(subject, monkeypatch, 4000, 300), (oracles.bits,))
    assert subject.predicted == 4000


def test_the_sight_of_a_large_case_is_not_asked_for(monkeypatch):
    def refuse(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("lanecheck.sight.unseen", refuse)
    case = cases.Case(
        "matmul", SMALL | {"n": LARGE, "regime": "normal", "side": "upper", "seed": 1}
    )
    result = trial.Result()
    for _ in trial.judged(ByNumpy(), case, Target(""), result):
        pass
    assert (result.cases, result.blind) == (1, 0)


# Sparse tensors


def test_windows_cover_a_dense_tensor_whole():
    tensor = Tensor("y", (3, 5), "fp32", "output", row_stride=9, offset=2)
    memory = np.zeros(tensor.span * 4, np.uint8)
    (whole,) = tensor.windows(memory)
    assert whole.size == tensor.span


@pytest.mark.parametrize("width", [5, 200])
def test_windows_of_a_sparse_tensor_cover_its_rows_and_what_follows_each(width: int):
    stride = SPARSE // 8
    tensor = Tensor("y", (3, width), "fp32", "output", row_stride=stride, offset=2)
    memory = np.zeros(tensor.span * 4, np.uint8)  # untouched pages take no room
    for part in tensor.windows(memory):
        part[...] = 7
    assert (tensor.view(memory) == 7).all()
    elements = memory.view(np.uint32)
    assert (elements[:2] == 7).all()
    for row in (0, 1):
        end = 2 + row * stride + width
        assert (elements[end : end + 64] == 7).all()
        assert (elements[end + 64 : end + 200] == 0).all()
