"""The tree of a sum: recovered as it is, compared with the one declared, and written to be read."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, Union

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from lanecheck import cli, trial
from lanecheck.cases import Case
from lanecheck.errors import BadInput
from lanecheck.observation import Observation
from lanecheck.oracles import tree
from lanecheck.order import Order
from lanecheck.subject import Bits, Buffer, Draw, Params, Product, Subject, Tensor
from lanecheck.summation import fprev
from lanecheck.summation.fprev import Ints, NoTree, Tree
from lanecheck.summation.notation import description, notation
from lanecheck.tensorcore import AMPERE, HOPPER, TensorCore
from lanecheck.verdict import Outcome, Verdict

Nested = Union[int, tuple["Nested", ...]]
Floats = np.ndarray
CORES = {"ampere": "8.0", "hopper": "9.0"}


# Trees by hand ---------------------------------------------------------------------------------


def tree_of(nested: Nested) -> Tree:
    """``((0, 1), 2)`` as a Tree, without any of the code under test."""

    def walk(part: Nested) -> tuple[list[int], list[int]]:
        if isinstance(part, int):
            return [part], []
        walked = list(map(walk, part))
        leaves = [leaf for each, _ in walked for leaf in each]
        joints = list(walked[0][1])
        for _, inside in walked[1:]:
            joints += [len(leaves), *inside]
        return leaves, joints

    leaves, joints = walk(nested)
    return Tree(np.array(leaves, np.int64), np.array(joints, np.int64))


def met(nested: Nested, i: int, j: int) -> int:
    """The size of the smallest subtree that holds both, the slow way."""

    def leaves(part: Nested) -> set[int]:
        return {part} if isinstance(part, int) else set().union(*map(leaves, part))

    below = [] if isinstance(nested, int) else [part for part in nested if {i, j} <= leaves(part)]
    return met(below[0], i, j) if below else len(leaves(nested))


def left_to_right(parts: Iterable[Nested]) -> Nested:
    nested, *rest = parts
    for part in rest:
        nested = (nested, part)
    return nested


def by_halves(leaves: range) -> Nested:
    half = len(leaves) // 2
    return (by_halves(leaves[:half]), by_halves(leaves[half:])) if half else leaves[0]


def all_pairs(leaves: int) -> Ints:
    return np.argwhere(np.ones((leaves, leaves)))


@st.composite
def nesteds(draw: st.DrawFn) -> Nested:
    parts: list[Nested] = list(draw(st.permutations(range(draw(st.integers(1, 14))))))
    while len(parts) > 1:
        count = draw(st.integers(2, min(5, len(parts))))
        start = draw(st.integers(0, len(parts) - count))
        parts[start : start + count] = [tuple(parts[start : start + count])]
    return parts[0]


# Subjects --------------------------------------------------------------------------------------


class Adds(Subject):
    """y = x · wᵀ (+ bias), every element by ``add``: FP32 terms ``[M, N, L]`` to sums ``[M, N]``."""

    name = "adds"

    def __init__(
        self, add: Callable[[Floats], Floats], order: Order | None = None, plain: bool = True
    ) -> None:
        self._add, self._order, self._plain = add, order, plain
        self.launches: list[int] = []

    def draw(self, draw: Draw) -> dict[str, int | str]:
        return {"m": draw.integer(1, 4), "n": 8, "k": 16, "bias": 0, "out": "fp32", "resizes": 1}

    def tensors(self, params: Params) -> list[Tensor]:
        m, n, k = (int(params[axis]) for axis in "mnk")
        out: Literal["bf16", "fp32"] = "bf16" if params["out"] == "bf16" else "fp32"
        bias = [Tensor("bias", (n,), "bf16", "input")] if params["bias"] else []
        return [
            Tensor("x", (m, k), "bf16", "input"),
            Tensor("w", (n, k), "bf16", "input"),
            *bias,
            Tensor("y", (m, n), out, "output"),
        ]

    def terms(self, params: Params) -> int:
        return int(params["k"]) + 1

    def launch(
        self, library: Any, params: Params, buffers: Mapping[str, Buffer], stream: int
    ) -> str | None:
        bits = {name: buffer.elements for name, buffer in buffers.items()}
        self.launches.append(len(bits["w"]))
        given = [bits[name].view(ml_dtypes.bfloat16).astype(np.float32) for name in ("x", "w")]
        terms = given[0][:, None, :] * given[1]
        if params["bias"]:
            last = bits["bias"].view(ml_dtypes.bfloat16).astype(np.float32)
            last = np.broadcast_to(last[:, None], (*terms.shape[:2], 1))
            terms = np.concatenate([terms, last], axis=-1)
        y = self._add(terms)
        bits["y"][...] = (
            y.astype(ml_dtypes.bfloat16).view(np.uint16)
            if params["out"] == "bf16"
            else y.view(np.uint32)
        )
        return None

    def reference(self, params: Params, inputs: Mapping[str, Bits]) -> dict[str, Floats]:
        raise NotImplementedError

    def products(self, params: Params) -> list[Product]:
        return [Product("y", "x", "w", "bias" if params["bias"] else None, self._plain)]

    def order(self, params: Params) -> Order | None:
        return self._order

    def resized(
        self, params: Params, m: int | None = None, n: int | None = None, k: int | None = None
    ) -> Params | None:
        return {**params, "n": n} if params["resizes"] and n else None


def nested_sum(nested: Nested) -> Callable[[Floats], Floats]:
    """Additions in FP32, or one fused sum for a node of more than two."""

    def add(terms: Floats) -> Floats:
        def value(part: Nested) -> Floats:
            if isinstance(part, int):
                return terms[..., part]
            values = np.stack(list(map(value, part)))
            return values[0] + values[1] if len(part) == 2 else fused(values)

        return value(nested)

    return add


def fused(values: Floats) -> Floats:
    """What is 2^25 times smaller than the largest is dropped; the rest is summed at once."""
    kept = np.where(np.abs(values) >= np.abs(values).max(axis=0) * 2.0**-25, values, 0)
    return kept.astype(np.float64).sum(axis=0).astype(np.float32)


def on_tensor_core(order: Order, core: TensorCore, k: int) -> Callable[[Floats], Floats]:
    """The declared order on a modelled tensor core: the terms are the weights of tokens of ones."""

    def add(terms: Floats) -> Floats:
        m, n, leaves = terms.shape
        a = np.zeros((-(-m * n // 16) * 16, order.steps.max(initial=k) + 1), np.uint16)
        a[: m * n, :k] = terms[..., :k].reshape(m * n, k).astype(ml_dtypes.bfloat16).view(np.uint16)
        ones = np.full((16, 8), 0x3F80, np.uint16)
        folds = []
        for chains in order.folds:
            sums = []
            for chain in chains:
                acc = np.zeros((len(a) // 16, 16, 8), np.float32)
                for step in order.chains[chain]:
                    acc = core.mma(a[:, order.steps[step]].reshape(-1, 16, 16), ones, acc)
                sums.append(acc[..., 0].reshape(-1))
            folds.append(in_turn(sums))
        y = in_turn(folds)[: m * n].reshape(m, n)
        return y + terms[..., k] if leaves > k else y

    return add


def in_turn(values: list[Floats]) -> Floats:
    total, *rest = values
    for value in rest:
        total = total + value
    return total


def observed(subject: Adds, k: int, core: str = "hopper", **changed: int | str) -> Observation:
    usual = {"m": 2, "n": 8, "k": k, "bias": 0, "out": "fp32", "resizes": 1}
    values = {"regime": "small", "side": "upper", "seed": 8}
    case = Case(subject.name, {**usual, **values, **changed})
    target = trial.Target("unused", capabilities=(CORES[core],))
    ((_, observation),) = trial.observe(subject, case, target)
    return observation


def said(verdict: Verdict | None) -> tuple[Outcome, str]:
    assert verdict is not None
    assert verdict.oracle == "tree"
    assert "\n" not in verdict.evidence
    return verdict.outcome, verdict.evidence


# Recovery --------------------------------------------------------------------------------------

KNOWN: dict[str, tuple[Nested, str, str]] = {
    "one": (0, "0", "1 product"),
    "sequential": (
        left_to_right(range(96)),
        "(0…95)",
        "96 products, added left to right",
    ),
    "backwards": (
        left_to_right(range(95, -1, -1)),
        "(95…0)",
        "96 products, added backwards",
    ),
    "pairwise": (
        by_halves(range(16)),
        "((((0 + 1) ×2@2) ×2@4) ×2@8)",
        "16 products, added pairwise",
    ),
    "two chains": (
        (left_to_right(range(0, 24, 2)), left_to_right(range(1, 24, 2))),
        "((0 ×12@2) ×2@1)",
        "2 groups of 12 products, added left to right",
    ),
    "blocked": (
        left_to_right([left_to_right(range(i, i + 8)) for i in range(0, 32, 8)]),
        "((0…7) ×4@8)",
        "4 groups of 8 products, added left to right",
    ),
    "fused": (
        (((0, 1, 2, 3), 4, 5, 6, 7), ((8, 9, 10, 11), 12, 13, 14, 15)),
        "([{0…3} ×2@4] ×2@8)",
        "2 chains of 2 fused sums of 4, added left to right",
    ),
    "irregular": (
        ((((((0, 3), 1, 2), 4), (5, 6)), (7, (8, 9, 10), 11)), 12),
        "({(0 + 3) 1 2} + 4 + (5 + 6) + [{8…10} → {7 11}] + 12)",
        "5 parts of 1 to 5 leaves, added left to right",
    ),
}


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("resizes", [0, 1])
def test_the_tree_of_a_known_order_is_recovered_and_written(name: str, resizes: int):
    nested, text, words = KNOWN[name]
    known = tree_of(nested)
    observation = observed(Adds(nested_sum(nested)), len(known.leaves), resizes=resizes)
    found = tree.recover(observation)["y"]
    assert found.digest == known.digest
    assert (notation(found), description(found)) == (text, words)
    assert notation(known) == text


def test_no_two_known_orders_have_one_digest():
    digests = {tree_of(nested).digest for nested, _, _ in KNOWN.values()}
    assert len(digests) == len(KNOWN)


def test_the_order_of_two_addends_is_none():
    (a, b), (c, d) = (0, (1, 2)), ((2, 1), 0)
    assert tree_of((a, b)).digest == tree_of((c, d)).digest
    assert tree_of(((0, 1), 2)).digest != tree_of((0, (1, 2))).digest


@pytest.mark.parametrize("walk", [range(512), range(511, -1, -1)])
def test_either_direction_takes_few_launches(walk: range):
    known = tree_of(left_to_right(walk))
    asked: list[int] = []

    def sizes(pairs: Ints) -> Ints:
        asked.append(len(pairs))
        return known.sizes(pairs)

    assert fprev.recover(512, sizes).digest == known.digest
    assert len(asked) < 12
    assert sum(asked) < 512 * 12


def test_rows_are_as_many_as_the_subject_allows():
    nested = left_to_right(range(20))
    free, fixed = Adds(nested_sum(nested)), Adds(nested_sum(nested))
    tree.recover(observed(free, 20))
    tree.recover(observed(fixed, 20, resizes=0))
    assert free.launches[2] == 19
    assert set(fixed.launches) == {8}


@given(nesteds())
def test_sizes_are_those_of_the_subtrees(nested: Nested):
    known = tree_of(nested)
    pairs = all_pairs(len(known.leaves))
    sizes = [1 if i == j else met(nested, i, j) for i, j in pairs.tolist()]
    assert known.sizes(pairs).tolist() == sizes


@given(nesteds())
def test_any_tree_is_recovered_from_some_of_its_sizes(nested: Nested):
    known = tree_of(nested)
    pairs = all_pairs(len(known.leaves))
    found = fprev.recover(len(known.leaves), known.sizes)
    assert np.array_equal(found.sizes(pairs), known.sizes(pairs))
    assert found.digest == known.digest


@given(nesteds(), nesteds())
def test_text_and_digest_tell_the_same_trees_apart(one: Nested, other: Nested):
    a, b = tree_of(one), tree_of(other)
    assert (a.digest == b.digest) == (notation(a) == notation(b))
    assert "\n" not in description(a)


def test_sizes_that_no_tree_has_are_refused():
    with pytest.raises(NoTree, match="meet in a subtree of 2, which by the other sizes holds 3"):
        fprev.recover(3, lambda pairs: np.full(len(pairs), 2))


def test_pairs_that_were_not_asked_for_have_to_agree():
    def add(terms: Floats) -> Floats:  # as (0 + 1) + 2, but 0 and 2 meet without 1
        y = nested_sum(((0, 1), 2))(terms)
        return np.where(np.abs(terms[..., [0, 2]]).min(axis=-1) > 1, np.float32(1), y)

    with pytest.raises(NoTree, match="y: sizes of subtrees contradict each other"):
        tree.recover(observed(Adds(add), 3))


# The implied tree ------------------------------------------------------------------------------


@st.composite
def orders(draw: st.DrawFn) -> tuple[Order, int]:
    """Any order of few products: slots shuffled and padded, chains empty or not, in any folds."""
    steps = draw(st.integers(1, 3))
    k = draw(st.integers(1, 16 * steps))
    slots = np.array(draw(st.permutations(range(16 * steps)))).reshape(steps, 16)
    bounds = [0, *sorted(draw(st.lists(st.integers(0, steps), max_size=3))), steps]
    chains = tuple(range(a, b) for a, b in itertools.pairwise(bounds))
    shuffled = draw(st.permutations(range(len(chains))))
    cut = draw(st.integers(1, len(chains)))
    folds = tuple(fold for fold in (tuple(shuffled[:cut]), tuple(shuffled[cut:])) if fold)
    return Order(slots, chains, folds), k


@pytest.mark.parametrize("core", [AMPERE, HOPPER], ids=lambda core: core.name)
@settings(max_examples=25)
@given(drawn=orders(), bias=st.booleans())
def test_the_implied_sizes_are_those_that_the_tensor_core_shows(
    core: TensorCore, drawn: tuple[Order, int], bias: bool
):
    order, k = drawn
    subject = Adds(on_tensor_core(order, core, k), order)
    observation = observed(subject, k, core.name, m=1, bias=int(bias))
    declared = tree.implied(order, core, k, bias)
    pairs = all_pairs(k + bias)
    assert np.array_equal(tree.recovered(observation, pairs)[0], declared.sizes(pairs))
    assert tree.recover(observation)["y"].digest == declared.digest
    assert said(tree.judge(observation)) == (Outcome.PASS, "")


PLAIN = Order(np.arange(64).reshape(4, 16), (range(0, 2), range(2, 4)), ((0, 1),))


def test_tensor_cores_of_two_widths_add_in_two_trees():
    ampere, hopper = (tree.implied(PLAIN, core, 64, True) for core in (AMPERE, HOPPER))
    assert notation(ampere, True) == "([{0…7} ×4@8] ×2@32 + bias)"
    assert notation(hopper, True) == "([{0…15} ×2@16] ×2@32 + bias)"
    assert description(hopper, True) == (
        "2 chains of 2 fused sums of 16, added left to right, then the bias"
    )
    assert ampere.sizes(np.array([[0, 7], [0, 8], [0, 32], [0, 64]])).tolist() == [8, 16, 64, 65]
    assert hopper.sizes(np.array([[0, 7], [0, 8], [0, 32], [0, 64]])).tolist() == [16, 16, 64, 65]


@pytest.mark.parametrize("folds", [((0,),), ((0, 1), (1,))])
def test_an_order_that_sums_not_each_product_once_is_refused(folds: tuple[tuple[int, ...], ...]):
    with pytest.raises(BadInput, match="does not sum each of 64 products once"):
        tree.implied(replace(PLAIN, folds=folds), HOPPER, 64, False)


# The oracle ------------------------------------------------------------------------------------


def declaring(order: Order | None, core: TensorCore = HOPPER, **changed: int | str) -> Observation:
    """A kernel that adds as PLAIN says, whatever it declares."""
    return observed(Adds(on_tensor_core(PLAIN, core, 64), order), 64, core.name, **changed)


def test_another_order_than_the_declared_one_is_reordered():
    swapped = replace(PLAIN, folds=((0,), (1,)), chains=(range(0, 1), range(1, 4)))
    outcome, text = said(tree.judge(declaring(swapped)))
    assert outcome is Outcome.REORDERED
    assert text == (
        "y: k 26 and k 30 meet after 32 of 64 leaves, declared: after 16, on the hopper model "
        "(4 of 8 pairs differ)"
    )


def test_the_width_of_another_tensor_core_is_reordered():
    observation = replace(declaring(PLAIN, AMPERE), core=HOPPER)
    outcomes = set()
    for seed in range(8):
        case = Case("adds", {**observation.params, "seed": seed})
        outcomes.add(said(tree.judge(replace(observation, case=case)))[0])
    assert Outcome.FAIL not in outcomes
    assert Outcome.REORDERED in outcomes


def test_a_token_that_is_summed_in_an_order_of_its_own_is_a_failure():
    def add(terms: Floats) -> Floats:
        y = on_tensor_core(PLAIN, HOPPER, 64)(terms)
        y[1] = nested_sum(left_to_right(range(64)))(terms[1:])[0]
        return y

    outcome, text = said(tree.judge(observed(Adds(add, PLAIN), 64)))
    assert outcome is Outcome.FAIL
    assert "of 64 leaves for token 0, but after" in text
    assert text.endswith("for token 1")


@pytest.mark.parametrize("kept", [63, 65])
def test_a_term_lost_or_added_twice_is_a_failure(kept: int):
    def add(terms: Floats) -> Floats:
        terms = np.concatenate([terms, terms[..., :1]], axis=-1)[..., :kept]
        return nested_sum(left_to_right(range(kept)))(terms)

    for seed in range(8):
        observation = observed(Adds(add, PLAIN), 64, n=32, seed=seed)
        outcome, text = said(tree.judge(observation))
        assert outcome is Outcome.FAIL
        assert "64 ones without k " in text
        assert text.endswith("which no tree gives")
    with pytest.raises(NoTree):
        tree.recover(observation)


def test_a_launch_that_breaks_is_a_failure():
    class Breaks(Adds):
        def launch(self, *given: Any) -> str | None:
            return super().launch(*given) if len(self.launches) < 2 else "out of memory"

    subject = Breaks(on_tensor_core(PLAIN, HOPPER, 64), PLAIN)
    outcome, text = said(tree.judge(observed(subject, 64)))
    assert outcome is Outcome.FAIL
    assert text.endswith("out of memory")


def test_nothing_is_said_where_no_order_is_declared_but_the_tree_is_found():
    observation = declaring(None)
    assert tree.judge(observation) is None
    found, known = tree.recover(observation)["y"], tree.implied(PLAIN, HOPPER, 64, False)
    assert found.digest == known.digest


@pytest.mark.parametrize(
    ("out", "plain", "reason"),
    [("bf16", True, "its outputs are BF16, .*; take FP32"), ("fp32", False, "an epilogue")],
)
def test_nothing_is_said_where_the_order_is_not_to_be_seen(out: str, plain: bool, reason: str):
    add = on_tensor_core(PLAIN, HOPPER, 64)
    observation = observed(Adds(add, PLAIN, plain), 64, out=out)
    assert tree.judge(observation) is None
    with pytest.raises(BadInput, match=reason):
        tree.recover(observation)


def test_a_pair_a_row_reaches_every_level():
    declared = tree.implied(PLAIN, HOPPER, 64, True)
    pairs = tree.telling(declared, 200, np.random.default_rng(0))
    assert set(declared.sizes(pairs).tolist()) == {1, 16, 32, 64, 65}


# The command -----------------------------------------------------------------------------------

HONEST = Adds(on_tensor_core(PLAIN, HOPPER, 64), PLAIN)
LYING = Adds(nested_sum(left_to_right(range(64))), PLAIN)
LOSING = Adds(lambda terms: terms[..., 1:].sum(axis=-1), PLAIN)
SILENT = Adds(nested_sum(left_to_right(range(64))))
LINE = "adds m=1 n=8 k=64 bias=0 out={out} resizes=1 regime=small side=upper seed=0"


@pytest.mark.parametrize(
    ("subject", "code", "expected"),
    [
        (
            "HONEST",
            0,
            r"^y on 9.0: 2 chains of .*\n  \(\[.*\n  64 leaves, tree \w{12}, as declared",
        ),
        (
            "LYING",
            1,
            r"\n  \(0…63\)\n.*, not as declared: \w{12}\n.*\n  \(\[\{0…15\} ×2@16\] ×2@32\)",
        ),
        ("LOSING", 1, r"^no tree on 9.0: y: 64 ones .* which no tree gives$"),
        ("SILENT", 0, r"\n  64 leaves, tree \w{12}; no order is declared\n"),
    ],
)
def test_the_command_says_whether_the_tree_is_the_declared_one(
    subject: str, code: int, expected: str, monkeypatch, capsys, tmp_path
):
    monkeypatch.chdir(tmp_path)
    words = ["tree", LINE.format(out="fp32"), "--subject", f"{__name__}:{subject}"]
    monkeypatch.setattr(sys, "argv", ["lanecheck", *words, "--json", "tree.json"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    text = capsys.readouterr().out
    assert left.value.code == code, text
    assert re.search(expected, text, re.MULTILINE), text
    if subject == "HONEST":
        (record,) = json.loads((tmp_path / "tree.json").read_text())
        assert record["as_declared"] is True
