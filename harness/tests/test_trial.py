"""Trials: what surrounds a launch, and what is kept of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import second_subject
from second_subject import FATAL_K, SUBJECT, Matmul

from lanecheck import cases, trial
from lanecheck.errors import BadInput, CannotRun
from lanecheck.memory import HeapMemory
from lanecheck.observation import POISON, Observation
from lanecheck.subject import Bits, Buffer, Params, Tensor, load
from lanecheck.trial import Result, Target, Trial
from lanecheck.verdict import Outcome, Verdict

LINE = "matmul m=3 n=4 k=6 out=bf16 xoff=3 ypad=2 regime=small side=upper seed=9"
HERE = Target("second_subject:SUBJECT")


def observed(subject: Matmul, line: str = LINE, target: Target = HERE) -> Observation:
    ((_, observation),) = trial.observe(subject, cases.parse(line, subject), target)
    return observation


class Watched(Matmul):
    """Keeps what it was given."""

    def launch(
        self, library: Any, params: Params, buffers: Mapping[str, Buffer], stream: int
    ) -> str | None:
        self.addresses = {name: buffer.address for name, buffer in buffers.items()}
        self.seen = {name: buffer.elements.copy() for name, buffer in buffers.items()}
        return super().launch(library, params, buffers, stream)


# What a launch is given


def test_operands_hold_the_case_s_values_and_outputs_hold_poison():
    subject = Watched()
    observation = observed(subject)
    assert np.array_equal(subject.seen["x"], observation.inputs["x"])
    assert np.array_equal(subject.seen["w"], observation.inputs["w"])
    assert (subject.seen["y"] == POISON[-1]["bf16"]).all()


def test_offsets_are_from_a_base_of_16_bytes():
    subject = Watched()
    observed(subject)
    assert subject.addresses["x"] % 16 == 3 * 2
    assert subject.addresses["w"] % 16 == 0


def test_a_row_stride_leaves_a_gap_and_outputs_come_back_in_logical_shape():
    tensor = SUBJECT.tensors(cases.parse(LINE, SUBJECT).params)[2]
    memory = np.zeros(tensor.span * 2, np.uint8)
    view = tensor.view(memory)
    view[...] = 1
    assert view.shape == (3, 4)
    assert view.strides == (12, 2)
    assert memory.view(np.uint16).tolist() == [1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1]
    assert observed(SUBJECT).outputs["y"].shape == (3, 4)


@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4), ()])
def test_a_tensor_of_any_rank_is_a_view_of_its_memory(shape: tuple[int, ...]):
    tensor = Tensor("t", shape, "fp32", "output", offset=2)
    memory = np.zeros(tensor.span * 4, np.uint8)
    tensor.view(memory)[...] = 7
    assert tensor.view(memory).shape == shape
    assert memory.view(np.uint32).tolist() == [0, 0] + [7] * int(np.prod(shape))


def test_inputs_follow_from_the_seed_alone():
    case = cases.parse(LINE, SUBJECT)
    one, same = (trial.draw_inputs(SUBJECT, case) for _ in range(2))
    other = trial.draw_inputs(SUBJECT, cases.parse(LINE.replace("seed=9", "seed=8"), SUBJECT))
    assert one.keys() == {"x", "w"}
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not all(np.array_equal(one[name], other[name]) for name in one)


def test_every_capability_sees_the_same_inputs_on_its_own_core():
    target = Target("second_subject:SUBJECT", capabilities=("8.0", "9.0"))
    both = dict(trial.observe(SUBJECT, cases.parse(LINE, SUBJECT), target))
    assert {cc: observation.core.name for cc, observation in both.items()} == {
        "8.0": "ampere",
        "9.0": "hopper",
    }
    assert np.array_equal(both["8.0"].inputs["x"], both["9.0"].inputs["x"])


# What is kept of it


def test_a_right_launch_leaves_no_strays_and_no_problems():
    observation = observed(SUBJECT)
    assert [run.strays for run in observation.runs] == [{"y": 0}] * 2
    assert observation.problems == []


def test_outputs_are_copies():
    first = observed(SUBJECT)
    before = first.outputs["y"].copy()
    observed(SUBJECT, LINE.replace("seed=9", "seed=8"))
    assert np.array_equal(first.outputs["y"], before)


@pytest.mark.parametrize(
    ("variant", "problem"),
    [
        ("WRITES_PAST_END", "byte y+33 (size 32) was overwritten"),
        ("WRITES_BEFORE_START", "byte w-4 (size 104) was overwritten"),
        ("WRITES_INTO_INPUT", "input x was overwritten"),
        ("RAISES", "RuntimeError: no kernel image is available"),
        ("EXITS_POLITELY", "SystemExit: 0"),
    ],
)
def test_damage_is_a_problem_that_names_the_place(variant: str, problem: str):
    line = LINE.replace("k=6", f"k={FATAL_K}")
    (found,) = observed(getattr(second_subject, variant), line).problems
    assert found.message == problem


def test_a_write_between_rows_is_a_stray():
    observation = observed(second_subject.WRITES_INTO_GAP)
    assert [run.strays for run in observation.runs] == [{"y": 1}] * 2
    assert observation.problems == []


def test_what_cannot_run_is_not_a_wrong_result():
    class Uninstalled(Matmul):
        def launch(self, *_: Any) -> str | None:
            raise CannotRun("install torch")

    with pytest.raises(CannotRun, match="install torch"):
        observed(Uninstalled())


@pytest.mark.parametrize("align", [1, 2, 16, 256])
def test_heap_buffers_are_aligned_and_guarded_on_both_sides(align: int):
    for at in (-1, -64, 40, 103):
        memory = HeapMemory()
        address, view = memory.allocate("t", 40, align, "upper", readonly=False)
        assert address % align == 0
        assert view.size == 40

        def spoil(stream: int, at: int = at, view: np.ndarray = view) -> None:
            view.base[view.ctypes.data - view.base.ctypes.data + at] ^= 0xFF

        (problem,) = memory.run(spoil)
        assert problem.message == f"byte t{at:+d} (size 40) was overwritten"


# Counting


def test_a_trial_holds_its_lines_then_its_run_of_indices():
    whole = Trial(HERE, (LINE,), seed=4, indices=range(2, 4))
    lines = [case.line for case in whole.cases(SUBJECT)]
    assert lines == [LINE, *(cases.case(SUBJECT, 4, index).line for index in (2, 3))]
    assert [single.lines for single in whole.singly()] == [(line,) for line in lines]


def test_a_result_counts_every_case_launch_and_verdict():
    target = Target("second_subject:SUBJECT", capabilities=("8.0", "9.0"))
    lines = (LINE, LINE.replace("small", "normal"))
    result = trial.run(Trial(target, lines))
    assert (result.cases, result.launches) == (2, 8)
    always = dict.fromkeys(("execution", "poison", "specials", "stability"), 4)
    assert result.judged == {**always, "integers": 2}
    assert result.failures == []


def test_a_failure_names_line_capability_and_oracle():
    target = Target("second_subject:DROPS_LAST_K", capabilities=("8.0", "9.0"))
    failures = trial.run(Trial(target, (LINE,))).failures
    assert {failure.line for failure in failures} == {LINE}
    said = [(failure.capability, failure.verdict.oracle) for failure in failures]
    assert said == [(cc, oracle) for cc in ("8.0", "9.0") for oracle in ("integers", "probes")]


def test_results_add_up():
    failure = trial.Failure(LINE, "9.0", Verdict("integers", Outcome.FAIL, "y[0, 0]"))
    note = trial.Failure(LINE, "9.0", Verdict("bits", Outcome.REORDERED, "y[0, 0]"))
    total = Result(1, 1, 2, 0.5, Counter(poison=2), Counter(bits=6), [], [note])
    total.add(Result(3, 1, 6, 1.0, Counter(poison=6, integers=1), Counter(bits=2), [failure]))
    counts = Counter(poison=8, integers=1)
    assert total == Result(4, 2, 8, 1.5, counts, Counter(bits=8), [failure], [note])


def test_a_blind_case_is_counted():
    line = LINE.replace("regime=small", "regime=overflow").replace("m=3 n=4", "m=1 n=1")
    lines = tuple(line.replace("seed=9", f"seed={seed}") for seed in range(40))
    result = trial.run(Trial(HERE, lines))
    assert 0 < result.blind < 40


def test_a_reordered_case_is_no_failure():
    target = Target("second_subject:REORDERS")
    line = LINE.replace("regime=small", "regime=normal").replace("out=bf16", "out=fp32")
    result = trial.run(Trial(target, (line,)))
    assert result.failures == []
    (note,) = result.reordered
    assert note.verdict.oracle == "bits"
    assert note.verdict.outcome is Outcome.REORDERED


# On a GPU, a failure is repeated


class Flaky(Matmul):
    """Wrong in some of its launches."""

    def __init__(self, wrong: Callable[[int], bool]) -> None:
        self._wrong, self._launches = wrong, 0

    def store(self, y: Bits, bits: Bits) -> None:
        y[...] = bits
        self._launches += 1
        if self._wrong(self._launches):
            y[0, 0] ^= 1


def judged(subject: Matmul, device: str) -> list[trial.Failure]:
    result = Result()
    target = Target("", device=device)
    for _ in trial.judged(subject, cases.parse(LINE, subject), target, result):
        pass
    return result.failures


def test_what_is_wrong_once_on_a_gpu_is_blamed_on_the_device(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-7")
    failures = judged(Flaky(lambda launch: launch <= 2), "cuda")
    assert {failure.verdict.outcome for failure in failures} == {Outcome.SUSPECT}
    assert all(failure.verdict.wrong for failure in failures)
    evidence = failures[0].verdict.evidence
    assert evidence.startswith("y[0, 0] is ")
    assert evidence.endswith("; wrong in 0 of 3 repetitions on GPU-7")


def test_what_is_wrong_again_is_the_kernel_s():
    failures = judged(Flaky(lambda launch: launch % 4 == 1), "cuda")
    assert {failure.verdict.outcome for failure in failures} == {Outcome.FAIL}
    assert "; wrong in " in failures[0].verdict.evidence


def test_on_the_host_nothing_is_repeated():
    failures = judged(Flaky(lambda launch: launch <= 2), "host")
    assert {failure.verdict.outcome for failure in failures} == {Outcome.FAIL}
    assert "repetitions" not in failures[0].verdict.evidence


# What a second run changes


def test_a_case_runs_once_under_each_colour():
    class Colours(Watched):
        def launch(self, *arguments: Any) -> str | None:
            super().launch(*arguments)
            colours.append(int(self.seen["y"].flat[0]))
            return None

    colours: list[int] = []
    observed(Colours())
    assert colours == [colour["bf16"] for colour in POISON]


def test_nothing_runs_after_a_problem():
    assert len(observed(second_subject.WRITES_INTO_INPUT).runs) == 1


@pytest.mark.parametrize("seed", [8, 264])
def test_every_other_workspace_stays_as_the_last_launch_left_it(seed: int):
    class Scratch(Watched):
        def tensors(self, params: Params) -> list[Tensor]:
            return [*super().tensors(params), Tensor("scratch", (4,), "byte", "workspace")]

        def launch(self, library: Any, params: Params, buffers: Any, stream: int) -> str | None:
            super().launch(library, params, buffers, stream)
            seen.append(int(self.seen["scratch"][0]))
            buffers["scratch"].elements[:] = 1
            return None

    seen: list[int] = []
    observed(Scratch(), LINE.replace("seed=9", f"seed={seed}"))
    assert seen == [POISON[0]["byte"], POISON[1]["byte"] if seed > 255 else 1]


# Finding a subject


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("second_subject", "is not of the form module:ATTRIBUTE"),
        ("second_subject:", "is not of the form module:ATTRIBUTE"),
        (":SUBJECT", "is not of the form module:ATTRIBUTE"),
        (".second_subject:SUBJECT", "is not of the form module:ATTRIBUTE"),
        ("no_such_module:SUBJECT", "cannot import subject 'no_such_module:SUBJECT'"),
        ("second_subject:NONE", "module 'second_subject' has no 'NONE'"),
    ],
)
def test_a_subject_that_cannot_be_found_is_one_clear_line(reference: str, message: str):
    with pytest.raises(BadInput, match=message) as caught:
        load(reference)
    assert "\n" not in str(caught.value)
