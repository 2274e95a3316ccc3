"""What a trace says where no mma can be logged, and what an export refuses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import second_subject

from lanecheck.cases import parse
from lanecheck.errors import BadInput
from lanecheck.reproduce import check
from lanecheck.trace import trace
from lanecheck.trial import Target

LINE = "matmul m=2 n=3 k=4 out=fp32 xoff=0 ypad=0 regime=small side=upper seed=1"


def traced(attribute: str, module: str = "second_subject") -> list[str]:
    return list(trace(parse(LINE, second_subject.SUBJECT), Target(f"{module}:{attribute}")))


def test_without_predicted_bits_there_is_nothing_to_trace() -> None:
    (said,) = traced("SUBJECT")
    assert said == "on 9.0: the subject predicts no bits, so there is nothing to trace"


def test_a_right_case_is_said_to_be_right() -> None:
    assert traced("PREDICTING") == ["on 9.0: every bit is the predicted one"]


def test_a_subject_that_explains_nothing_gets_the_first_difference() -> None:
    (said,) = traced("FLIPS_LOWEST_BIT")
    assert said.startswith("on 9.0: y[1, 2] is ")
    assert said.endswith("(1 of 6 elements differ)")


def test_a_callable_gets_its_explanation_without_mma(monkeypatch: pytest.MonkeyPatch) -> None:
    class Explaining(second_subject.FlipsLowestBit):
        def locate(self, params, output, index) -> str:
            return f"{output}{list(index)} is somewhere"

        def walks(self, *_) -> Iterator[None]:
            raise AssertionError("nothing is logged")

        def explain(self, params, inputs, core, output, index, left) -> Iterator[str]:
            yield f"it holds 0x{left[output][index]:08X}"

    monkeypatch.setitem(sys.modules, "explaining", SimpleNamespace(SUBJECT=Explaining()))
    first, *rest = traced("SUBJECT", "explaining")
    assert rest == [
        "  y[1, 2] is somewhere",
        "  mma are logged on the host only; what should have been summed:",
        f"  it holds {first.partition('(')[2][:10]}",
    ]


def test_what_is_never_written_and_what_belongs_elsewhere_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Misplaces(second_subject.Predicting):
        def store(self, y, bits) -> None:
            y[0, :2] = bits[0, 1::-1]

    monkeypatch.setitem(sys.modules, "misplacing", SimpleNamespace(SUBJECT=Misplaces()))
    assert traced("SUBJECT", "misplacing")[1] == "  that is what y[0, 1] should be"

    class Forgets(second_subject.Predicting):
        def store(self, y, bits) -> None:
            y[0, 1:] = bits[0, 1:]

    monkeypatch.setitem(sys.modules, "forgetting", SimpleNamespace(SUBJECT=Forgets()))
    assert traced("SUBJECT", "forgetting")[1] == "  y[0, 0] was never written"


def test_a_callable_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'matmul' is a callable: there is nothing to build"):
        check(second_subject.SUBJECT, tmp_path)


def test_a_kernel_whose_launch_is_not_written_down_cannot_be_exported(tmp_path: Path) -> None:
    class Compiled(second_subject.Matmul):
        recipe = SimpleNamespace(root=tmp_path)

    with pytest.raises(BadInput, match=r"'matmul' has no reproduction\(\) to export"):
        check(Compiled(), tmp_path)
