"""Reordering: sums in a recovered tree are a tensor core's, and only another order's bits are excused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest

from lanecheck import trial
from lanecheck.cases import Case
from lanecheck.observation import Observation, Problem, Run
from lanecheck.oracles import bits, bound, reordering, tree
from lanecheck.order import Order
from lanecheck.subject import Bits, Buffer, Draw, Params, Product, Subject, Tensor
from lanecheck.summation.fprev import Tree
from lanecheck.tensorcore import AMPERE, FP32_NAN, HOPPER, TensorCore
from lanecheck.values import REGIMES, draw_values, real_values, to_bf16
from lanecheck.verdict import Outcome

Floats = np.ndarray
CORES = pytest.mark.parametrize("core", [AMPERE, HOPPER], ids=lambda core: core.name)
CAPABILITIES = {AMPERE: "8.0", HOPPER: "9.0"}


# Sums as the definition has them ---------------------------------------------------------------


def chain_sums(order: Order, core: TensorCore, x: Bits, w: Bits) -> list[Floats]:
    """Of every chain, ``[M, N]``, mma by mma."""
    (m, k), n = x.shape, len(w)
    a = np.zeros((n + -n % 16, k + 1), np.uint16)
    b = np.zeros((m + -m % 8, k + 1), np.uint16)
    a[:n, :k], b[:m, :k] = w, x
    sums = []
    for chain in order.chains:
        d = np.zeros((len(a) // 16, len(b) // 8, 16, 8), np.float32)
        for step in np.minimum(order.steps[chain], k):
            rows = a[:, step].reshape(-1, 1, 16, 16)
            d = core.mma(rows, b[:, step].reshape(-1, 8, 16).swapaxes(1, 2), d)
        sums.append(d.transpose(1, 3, 0, 2).reshape(len(b), len(a))[:m, :n])
    return sums


def added(order: Order, chains: Sequence[Floats], bias: Bits | None = None) -> Floats:
    with np.errstate(all="ignore"):
        folds = [reduce(np.add, [chains[chain] for chain in fold]) for fold in order.folds]
        y = reduce(np.add, folds)
        return y if bias is None else y + real_values(bias).astype(np.float32)


def summed(order: Order, core: TensorCore, x: Bits, w: Bits, bias: Bits | None = None) -> Bits:
    return fp32(added(order, chain_sums(order, core, x, w), bias))


def fp32(y: Floats) -> Bits:
    return np.where(np.isnan(y), FP32_NAN, np.ascontiguousarray(y).view(np.uint32))


def bf16(y: Floats) -> Bits:
    with np.errstate(over="ignore"):
        return np.where(np.isnan(y), np.uint16(0x7FFF), to_bf16(y))


def in_steps(*steps: Sequence[int], chains: Sequence[int] = (), k: int = 64) -> Order:
    """Some k for each step, the rest of its slots empty; a chain of so many steps after another, or
    one of all."""
    slots = np.full((len(steps), 16), k)
    for slot, step in zip(slots, steps):
        slot[: len(step)] = step
    ends = [0, *itertools.accumulate(chains or [len(steps)])]
    runs = tuple(range(a, b) for a, b in itertools.pairwise(ends))
    return Order(slots, runs, (tuple(range(len(runs))),))


def any_order(rng: np.random.Generator, k: int) -> Order:
    """Slots shuffled and padded, chains empty or not, in any folds."""
    steps = -(-k // 16) + int(rng.integers(2))
    ends = [0, *np.sort(rng.integers(0, steps + 1, int(rng.integers(4)))).tolist(), steps]
    chains = tuple(range(a, b) for a, b in itertools.pairwise(ends))
    folds = np.split(rng.permutation(len(chains)), np.sort(rng.integers(1, len(chains) + 1, 2)))
    return Order(
        rng.permutation(16 * steps).reshape(steps, 16),
        chains,
        tuple(tuple(fold.tolist()) for fold in folds if len(fold)),
    )


def operands(regime: str, m: int, n: int, k: int, rng: np.random.Generator) -> list[Bits]:
    """x, w and a bias; any bits at all in the regime ``any``."""
    shapes = ((m, k), (n, k), (n,))
    if regime == "any":
        return [rng.integers(2**16, size=shape).astype(np.uint16) for shape in shapes]
    return [draw_values(regime, shape, k, rng) for shape in shapes]


# Sums in a tree --------------------------------------------------------------------------------


@CORES
@pytest.mark.parametrize("regime", [*REGIMES, "any"])
def test_in_the_tree_of_an_order_sums_are_those_of_the_order(core: TensorCore, regime: str):
    rng, values = np.random.default_rng(0), []
    while len(values) < 12:
        m, n, k = (int(rng.integers(1, most)) for most in (11, 20, 71))
        order = any_order(rng, k)
        if reordering._alone(order, core, k):
            continue  # which there are two ways to add, see below
        x, w, bias = operands(regime, m, n, k, rng)
        bias = bias if len(values) % 3 else None
        want = summed(order, core, x, w, bias)
        found = tree.implied(order, core, k, bias is not None)
        for fused in (True, False):
            got = reordering.evaluated(found, core, x, w, bias, fused)
            assert got.shape == (m, n)
            assert np.array_equal(reordering.fp32_bits(got), want)
        values.append(np.abs(real_values(want)).reshape(-1))
    seen = np.concatenate(values)
    assert np.isfinite(seen).any()
    if regime in ("overflow", "special", "any"):
        assert np.isinf(seen).any()
    if regime == "subnormal":
        assert ((seen > 0) & (seen < 2.0**-126)).any()


@CORES
@pytest.mark.parametrize("regime", ["spread", "subnormal", "overflow", "any"])
@pytest.mark.parametrize(
    ("order", "k", "fused", "apart"),
    [
        (in_steps(range(8), [8], k=9), 9, True, False),
        (in_steps(range(8), [8], chains=[1, 1], k=9), 9, False, False),
        (in_steps(range(8), [8], range(9, 17), chains=[2, 1], k=17), 17, True, True),
        (in_steps([8], range(8), k=9), 9, True, True),
        (in_steps([8], range(8), range(9, 17), chains=[2, 1], k=17), 17, False, True),
        (in_steps([0], [1], chains=[1, 1], k=2), 2, False, True),
    ],
    ids=["last", "a chain", "last of a chain", "first", "first of a chain", "two chains"],
)
def test_a_single_product_is_added_in_every_way(
    order: Order, k: int, fused: bool, apart: bool, core: TensorCore, regime: str
):
    found, rng = tree.implied(order, core, k, False), np.random.default_rng(0)
    ways = list(itertools.product((True, False), repeat=2))
    right = dict.fromkeys(ways, True)
    for _ in range(8):
        x, w, _ = operands(regime, 8, 16, k, rng)
        want = summed(order, core, x, w)
        for way in ways:
            alone = reordering._alone(order, core, k) if way[1] else frozenset()
            got = reordering.evaluated(found, core, x, w, None, way[0], alone)
            right[way] &= got is not None and np.array_equal(reordering.fp32_bits(got), want)
    assert right[fused, apart]
    assert not all(right.values())


def test_a_bias_is_of_either_format():
    rng = np.random.default_rng(0)
    x, w, _ = operands("normal", 3, 5, 40, rng)
    bias = rng.standard_normal(5, np.float32).view(np.uint32)
    order = in_steps(range(16), range(16, 32), range(32, 40), k=40)
    found = tree.implied(order, HOPPER, 40, True)
    got = reordering.evaluated(found, HOPPER, x, w, bias)
    assert np.array_equal(reordering.fp32_bits(got), summed(order, HOPPER, x, w, bias))


def test_a_bias_in_the_accumulator_is_part_of_the_fused_sum():
    x, w, bias = operands("spread", 8, 16, 16, np.random.default_rng(0))
    c = np.broadcast_to(real_values(bias).astype(np.float32)[:, None], (16, 8))
    found = Tree(np.arange(17), np.full(16, 17))
    got = reordering.evaluated(found, HOPPER, x, w, bias)
    assert np.array_equal(got, HOPPER.mma(w, np.ascontiguousarray(x.T), c).T)


@pytest.mark.parametrize(
    ("core", "leaves", "joints"),
    [
        (HOPPER, 17, [17] * 16),  # too many products at once
        (AMPERE, 9, [9] * 8),
        (HOPPER, 9, [4, 4, 4, 9, 4, 4, 4, 9]),  # two sums and a product
        (HOPPER, 12, [4, 4, 4, 12, 4, 4, 4, 12, 4, 4, 4]),  # three sums
    ],
)
def test_what_the_tensor_core_cannot_add_has_no_sums(
    core: TensorCore, leaves: int, joints: list[int]
):
    x, w, _ = operands("normal", 2, 3, leaves, np.random.default_rng(0))
    found = Tree(np.arange(leaves), np.array(joints))
    assert reordering.evaluated(found, core, x, w) is None


# Kernels ---------------------------------------------------------------------------------------


class Kernel(Subject):
    """One or two products in the order ``adds``, whatever is declared, stored or multiplied.

    ``out`` is fp32 or bf16; ``way`` is plain (y), pair (y and z) or gated (y · max(z, 0) as y).

    Args:
        chains: what becomes of each chain's sum. store: what becomes of the bits.
        adds_z: the order of the second product, if it is another.
    """

    name = "kernel"

    def __init__(
        self,
        adds: Order,
        declared: Order | None,
        core: TensorCore = HOPPER,
        chains: Callable[[Floats], Floats] = lambda sums: sums,
        store: Callable[[Bits], Bits] = lambda bits: bits,
        adds_z: Order | None = None,
    ) -> None:
        self._adds = {"y": adds, "z": adds_z or adds}
        self._declared, self._core = declared, core
        self._chains, self._store = chains, store

    def draw(self, draw: Draw) -> dict[str, int | str]:
        raise NotImplementedError

    def tensors(self, params: Params) -> list[Tensor]:
        m, n, k = (int(params[axis]) for axis in "mnk")
        operands = [Tensor("x", (m, k), "bf16", "input")]
        for product in self.products({**params, "way": "plain" if self._one(params) else "pair"}):
            operands.append(Tensor(product.w, (n, k), "bf16", "input"))
            if product.bias:
                operands.append(Tensor(product.bias, (n,), "bf16", "input"))
        names = ("y", "z") if params["way"] == "pair" else ("y",)
        return [*operands, *(Tensor(name, (m, n), params["out"], "output") for name in names)]

    def terms(self, params: Params) -> int:
        return int(params["k"])

    def products(self, params: Params) -> list[Product]:
        bias = bool(params["bias"])
        y = Product("y", "x", "w", "b" if bias else None, params["way"] != "gated")
        z = Product("z", "x", "v", "c" if bias else None)
        return [y, z] if params["way"] == "pair" else [y]

    def order(self, params: Params) -> Order | None:
        return self._declared

    def exposed(self, params: Params) -> Params:
        return {**params, "out": "fp32", "way": "plain" if self._one(params) else "pair"}

    def finish(self, params: Params, sums: Mapping[str, Floats]) -> dict[str, Bits]:
        assert sums.keys() == ({"y"} if self._one(params) else {"y", "z"})
        assert all((fp32(y) == y.view(np.uint32)).all() for y in sums.values())
        values = dict(sums)
        if params["way"] == "gated":
            with np.errstate(all="ignore"):
                values = {"y": sums["y"] * np.maximum(sums["z"], 0)}
        return {k: (fp32 if params["out"] == "fp32" else bf16)(y) for k, y in values.items()}

    def resized(
        self, params: Params, m: int | None = None, n: int | None = None, k: int | None = None
    ) -> Params | None:
        return {**params, "n": n} if n else None

    def predict(
        self, params: Params, inputs: Mapping[str, Bits], core: TensorCore
    ) -> dict[str, Bits]:
        orders = {"y": self._declared, "z": self._declared}
        return self._outputs(params, inputs, core, orders, lambda sums: sums)

    def launch(
        self, library: Any, params: Params, buffers: Mapping[str, Buffer], stream: int
    ) -> str | None:
        given = {name: buffer.elements for name, buffer in buffers.items()}
        outputs = self._outputs(params, given, self._core, self._adds, self._chains)
        for name, stored in outputs.items():
            given[name][...] = self._store(stored)
        return None

    def reference(self, params: Params, inputs: Mapping[str, Bits]) -> dict[str, Floats]:
        raise NotImplementedError

    def _one(self, params: Params) -> bool:
        return params["way"] == "plain"

    def _outputs(self, params, inputs, core, orders, change) -> dict[str, Bits]:
        sums = {}
        for product in self.products(self.exposed(params)):
            w, bias = inputs[product.w], inputs[product.bias] if product.bias else None
            order = orders[product.output]
            chains = list(map(change, chain_sums(order, core, inputs["x"], w)))
            sums[product.output] = fp32(added(order, chains, bias)).view(np.float32)
        return self.finish(params, sums)


K = 50
BLOCKS = [range(k, min(k + 16, K)) for k in range(0, K, 16)]
ONE_CHAIN = in_steps(*BLOCKS, k=K)
FOUR_CHAINS = in_steps(*BLOCKS, chains=[1, 1, 1, 1], k=K)
BACKWARDS = replace(FOUR_CHAINS, folds=((3, 2, 1, 0),))
#: The order of the kernel and the one that it declares.
OTHERS = {
    "reduction commuted": (BACKWARDS, FOUR_CHAINS),
    "reduction in two folds": (replace(FOUR_CHAINS, folds=((0, 2), (1, 3))), FOUR_CHAINS),
    "steps in another order": (in_steps(*(BLOCKS[i] for i in (2, 0, 3, 1)), k=K), ONE_CHAIN),
    "steps of other k": (in_steps(*(range(i, K, 4) for i in range(4)), k=K), ONE_CHAIN),
    "split in two": (in_steps(*BLOCKS, chains=[1, 3], k=K), ONE_CHAIN),
    "split elsewhere": (
        in_steps(*BLOCKS, chains=[3, 1], k=K),
        in_steps(*BLOCKS, chains=[1, 3], k=K),
    ),
}
WAYS = pytest.mark.parametrize(
    ("way", "out", "bias"),
    [("plain", "fp32", 1), ("plain", "bf16", 0), ("pair", "bf16", 0), ("gated", "bf16", 1)],
)


def case_of(**changed: int | str) -> Case:
    usual = {"m": 5, "n": 21, "k": K, "bias": 0, "way": "plain", "out": "fp32"}
    return Case("kernel", {**usual, "regime": "normal", "side": "upper", "seed": 3, **changed})


def observed(
    kernel: Kernel,
    k: int = K,
    core: TensorCore = HOPPER,
    cancels: bool = True,
    **changed: int | str,
) -> Observation:
    """What the kernel shows, by default of operands whose first 32 terms are large and cancel out, so
    that every order has bits of its own."""
    case = case_of(k=k, **changed)
    inputs = trial.draw_inputs(kernel, case)
    if cancels:
        some = max(0, min(16, k - 16))
        inputs["x"][:, 16:32] = inputs["x"][:, :some]
        for name in {"w", "v"} & inputs.keys():
            large = real_values(inputs[name][:, :16])
            with np.errstate(over="ignore"):
                inputs[name][:, :16] = to_bf16(large * 2.0**18)
            inputs[name][:, 16:32] = inputs[name][:, :some] ^ 0x8000
    target = trial.Target("unused", capabilities=(CAPABILITIES[core],))
    ((_, observation),) = trial.observe(kernel, case, target, inputs)
    return observation


def showing(observation: Observation, change: Callable[[Bits], Bits]) -> Observation:
    """The observation with other bits in its outputs; the kernel when launched again has its own."""
    (first, *_) = observation.runs
    outputs = {name: change(each) for name, each in first.outputs.items()}
    return replace(observation, runs=(replace(first, outputs=outputs),))


def flipped(stored: Bits) -> Bits:
    """The last bit of one element."""
    stored = stored.copy()
    stored[-1, -1] ^= 1
    return stored


def cleared(stored: Bits) -> Bits:
    """The last bit of every element: no count has it."""
    return stored & ~stored.dtype.type(1)


def judged(observation: Observation) -> Outcome:
    verdict = bits.judge(observation)
    assert (verdict.outcome is Outcome.REORDERED) == reordering.explained(observation)
    return verdict.outcome


# What is excused -------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("name", OTHERS)
def test_another_order_is_reordered(name: str, way: str, out: str, bias: int):
    observation = observed(Kernel(*OTHERS[name]), way=way, out=out, bias=bias)
    verdict = bits.judge(observation)
    assert reordering.explained(observation)
    assert verdict.outcome is Outcome.REORDERED
    assert not verdict.wrong
    assert verdict.evidence.startswith("y[")
    assert verdict.evidence.endswith(
        "elements differ), on the hopper model: the bits of another order of additions"
    )


@pytest.mark.parametrize("name", OTHERS)
def test_another_order_is_reordered_on_either_tensor_core(name: str):
    adds, declared = OTHERS[name]
    observation = observed(Kernel(adds, declared, AMPERE), core=AMPERE)
    assert judged(observation) is Outcome.REORDERED


@pytest.mark.parametrize("regime", ["spread", "subnormal", "overflow", "special"])
@pytest.mark.parametrize("out", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["reduction commuted", "steps in another order"])
def test_another_order_is_no_failure_whatever_the_values(name: str, out: str, regime: str):
    outcomes = set()
    for seed in range(4):
        observation = observed(Kernel(*OTHERS[name]), regime=regime, seed=seed, out=out)
        outcomes.add(bits.judge(observation).outcome)
    assert Outcome.REORDERED in outcomes
    assert Outcome.FAIL not in outcomes


@CORES
def test_a_single_product_that_comes_first_is_no_failure(core: TensorCore):
    """A K of 33: walked backwards, the last product is the accumulator of the next step."""
    blocks = [range(16), range(16, 32), range(32, 33)]
    declared = in_steps(*blocks, k=33)
    for adds in (
        in_steps(*blocks[::-1], k=33),
        in_steps(blocks[0], blocks[2], blocks[1], k=33),
        in_steps(blocks[2], blocks[0], blocks[1], chains=[1, 1, 1], k=33),
    ):
        observation = observed(Kernel(adds, declared, core), 33, core)
        assert judged(observation) is Outcome.REORDERED


def test_where_one_product_is_reordered_the_other_may_be_as_declared():
    observation = observed(Kernel(FOUR_CHAINS, FOUR_CHAINS, adds_z=BACKWARDS), way="pair")
    assert judged(observation) is Outcome.REORDERED


def test_two_k_exchanged_are_another_order():
    slots = [*range(15), 40, *range(16, 40), 15, *range(41, K)]
    exchanged = in_steps(*(slots[each.start : each.stop] for each in BLOCKS), k=K)
    assert judged(observed(Kernel(exchanged, ONE_CHAIN))) is Outcome.REORDERED


def test_the_bound_of_the_declared_order_is_not_the_other_one_s():
    adds, declared = OTHERS["steps in another order"]
    observation = observed(Kernel(adds, declared))
    verdict = bound.judge(observation)
    assert verdict.outcome is Outcome.REORDERED
    assert "exact sum" in verdict.evidence
    assert bound.judge(showing(observation, flipped)).outcome is Outcome.FAIL


# What is not -----------------------------------------------------------------------------------

ORDERS = pytest.mark.parametrize("adds", [FOUR_CHAINS, BACKWARDS], ids=["as declared", "reordered"])


@WAYS
def test_a_right_kernel_passes_and_is_not_reordered(way: str, out: str, bias: int):
    observation = observed(Kernel(FOUR_CHAINS, FOUR_CHAINS), way=way, out=out, bias=bias)
    assert judged(observation) is Outcome.PASS


@WAYS
@ORDERS
@pytest.mark.parametrize("change", [flipped, cleared])
def test_a_bit_that_no_order_has_is_a_failure(
    adds: Order, change: Callable[[Bits], Bits], way: str, out: str, bias: int
):
    wrong, right = Kernel(adds, FOUR_CHAINS, store=change), Kernel(adds, FOUR_CHAINS)
    always = observed(wrong, cancels=False, way=way, out=out, bias=bias)
    once = showing(observed(right, cancels=False, way=way, out=out, bias=bias), change)
    assert judged(always) is judged(once) is Outcome.FAIL


@pytest.mark.parametrize("name", ["y", "z"])
def test_a_bit_of_either_output_is_a_failure(name: str):
    right = observed(Kernel(BACKWARDS, FOUR_CHAINS), way="pair")
    outputs = {**right.outputs, name: flipped(right.outputs[name])}
    wrong = replace(right, runs=(replace(right.runs[0], outputs=outputs),))
    assert (judged(right), judged(wrong)) == (Outcome.REORDERED, Outcome.FAIL)


@ORDERS
@pytest.mark.parametrize("out", ["fp32", "bf16"])
def test_rounding_in_between_is_a_failure(adds: Order, out: str):
    def rounded(sums: Floats) -> Floats:
        return real_values(to_bf16(sums)).astype(np.float32)

    observation = observed(Kernel(adds, FOUR_CHAINS, chains=rounded), out=out)
    assert judged(observation) is Outcome.FAIL


@ORDERS
def test_a_store_that_truncates_is_a_failure(adds: Order):
    class Truncates(Kernel):
        def launch(
            self, library: Any, params: Params, buffers: Mapping[str, Buffer], stream: int
        ) -> str | None:
            if params["out"] == "fp32":
                return super().launch(library, params, buffers, stream)
            wide = {**buffers, "y": Buffer(0, np.zeros(buffers["y"].elements.shape, np.uint32))}
            super().launch(library, {**params, "out": "fp32"}, wide, stream)
            buffers["y"].elements[...] = wide["y"].elements >> 16
            return None

    observation = observed(Truncates(adds, FOUR_CHAINS), out="bf16")
    assert judged(observation) is Outcome.FAIL


@ORDERS
@pytest.mark.parametrize("lost", [0, 31, K - 1])
def test_a_lost_term_is_a_failure(adds: Order, lost: int):
    without = replace(adds, steps=np.where(adds.steps == lost, K, adds.steps))
    assert judged(observed(Kernel(without, FOUR_CHAINS))) is Outcome.FAIL


@ORDERS
def test_a_term_added_twice_is_a_failure(adds: Order):
    steps = np.where(adds.steps == K - 1, K - 2, adds.steps)
    assert judged(observed(Kernel(replace(adds, steps=steps), FOUR_CHAINS))) is Outcome.FAIL


@pytest.mark.parametrize("which", [np.s_[::2], np.s_[:, ::2]], ids=["tokens", "rows"])
def test_tokens_or_rows_in_an_order_of_their_own_are_a_failure(which: Any):
    class Mixed(Kernel):
        def launch(
            self, library: Any, params: Params, buffers: Mapping[str, Buffer], stream: int
        ) -> str | None:
            y = buffers["y"].elements
            Kernel(BACKWARDS, FOUR_CHAINS).launch(library, params, buffers, stream)
            other = y[which].copy()
            super().launch(library, params, buffers, stream)
            y[which] = other
            return None

    assert judged(observed(Mixed(FOUR_CHAINS, FOUR_CHAINS))) is Outcome.FAIL


@pytest.mark.parametrize("k", [1, 7, 16])
def test_a_single_step_has_no_other_order(k: int):
    order = in_steps(range(k), k=k)
    assert judged(observed(Kernel(order, order), k)) is Outcome.PASS
    assert judged(showing(observed(Kernel(order, order), k), flipped)) is Outcome.FAIL
    reverse = in_steps(range(k)[::-1], k=k)
    assert judged(observed(Kernel(reverse, order), k)) is Outcome.PASS


# What is not even asked ------------------------------------------------------------------------


def silent(observation: Observation) -> Observation:
    """It cannot be launched."""

    def launch(params: Params, inputs: Mapping[str, Bits]) -> Run:
        raise AssertionError("launched")

    return replace(observation, launch=launch)


@pytest.mark.parametrize("regime", ["small", "wide"])
def test_integers_have_no_other_order(regime: str):
    kernel, target = Kernel(BACKWARDS, FOUR_CHAINS), trial.Target("unused")
    ((_, observation),) = trial.observe(kernel, case_of(regime=regime), target)
    assert judged(silent(observation)) is Outcome.PASS
    assert judged(silent(showing(observation, flipped))) is Outcome.FAIL


def test_what_declares_no_order_has_no_other():
    observation = observed(Kernel(BACKWARDS, FOUR_CHAINS))
    undeclared = replace(observation, subject=Kernel(BACKWARDS, None))
    assert not reordering.explained(silent(undeclared))


def test_nothing_large_is_launched_again():
    observation = observed(Kernel(BACKWARDS, FOUR_CHAINS))
    inputs = {**observation.inputs, "more": np.zeros(2**20, np.uint16)}
    assert not reordering.explained(silent(replace(observation, inputs=inputs)))


@pytest.mark.parametrize("way", ["plain", "gated"])
def test_an_order_that_is_not_to_be_seen_excuses_nothing(way: str):
    class Closed(Kernel):
        def exposed(self, params: Params) -> Params | None:  # type: ignore[override]
            return None

    observation = observed(Kernel(BACKWARDS, FOUR_CHAINS), way=way, out="bf16")
    closed = replace(observation, subject=Closed(BACKWARDS, FOUR_CHAINS))
    assert reordering.explained(observation)
    assert not reordering.explained(silent(closed))


@pytest.mark.parametrize("broken", [0, 1, 3])
def test_a_launch_that_breaks_excuses_nothing(broken: int):
    observation = observed(Kernel(BACKWARDS, FOUR_CHAINS), out="bf16")
    launches = 0

    def launch(params: Params, inputs: Mapping[str, Bits]) -> Run:
        nonlocal launches
        run = observation.launch(params, inputs)
        launches += 1
        return run if launches <= broken else replace(run, problems=(Problem("error", "lost"),))

    assert not reordering.explained(replace(observation, launch=launch))
    assert launches == broken + 1
