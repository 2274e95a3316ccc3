"""Tree: terms meet in the order that the subject declares, seen from outside.

Predicted bits say that the order is right if all else is. Here the order alone is looked at, by masking
(:mod:`lanecheck.summation.fprev`): every product is 1 but for two, +M and -M with M = 2^120, and the FP32
output counts the ones that were added after the two had met. M is far above 2^25 times any sum of ones,
so a tensor core drops a one beside it, as FP32 does, and +M - M is exactly 0; counts stay exact up to
2^24. Each weight row carries a pair of its own, and every token has to count the same.

Two more rows leave out a single term each, and have to count all the others.

A kernel whose tree is another than the declared one adds all its terms, so it is REORDERED; counts that
no tree gives, a term lost or added twice, or tokens that disagree are a FAIL. One launch judges one
pair a row; :func:`recover` finds the whole tree, declared or not.

Sees: another order of additions, whatever the values; a column or row of the batch that is summed
differently from the others; a term lost or added twice.

Cannot see: anything in BF16 output, which holds too few counts, or through an epilogue; what is wrong
without changing which terms meet where.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lanecheck.errors import BadInput
from lanecheck.observation import Observation
from lanecheck.oracles.compare import first
from lanecheck.order import Order
from lanecheck.subject import Bits, Params
from lanecheck.summation import fprev
from lanecheck.summation.fprev import Ints, NoTree, Tree
from lanecheck.tensorcore import TensorCore
from lanecheck.values import real_values, rounded_bits
from lanecheck.verdict import Outcome, Verdict

NAME = "tree"
EVERY = 8

#: What a masked sum is made of: ones, the two that mask, and what is left where both are the same.
_ONE, _PLUS, _MINUS, _NONE = range(4)
_VALUES = np.array([1.0, 2.0**120, -(2.0**120), 0.0])
_COUNTABLE = 2**24
_WEIGHTS = 2**20  # at most this many weights a launch


def judge(observation: Observation) -> Verdict | None:
    subject, params = observation.subject, observation.params
    order = subject.order(params)
    if order is None or hidden(observation) is not None:
        return None
    k, rows, bias = _sizes(observation)
    declared = implied(order, observation.core, k, bias)
    rng = np.random.default_rng(observation.case.seed)
    pairs = telling(declared, max(rows, 3), rng)
    if k + bias > 1:  # two sums, of which one is short if any term is lost
        pairs[:2] = rng.choice(k + bias, size=(2, 1), replace=False)
    try:
        found = recovered(observation, pairs)
    except NoTree as error:
        return Verdict(NAME, Outcome.FAIL, str(error))
    want = declared.sizes(pairs)
    differs = found != want
    if not differs.any():
        return Verdict(NAME, Outcome.PASS)
    product, pair = first(differs)
    text = (
        f"{subject.products(params)[product].output}: {_named(pairs[pair], k)} meet after "
        f"{found[product, pair]} of {k + bias} leaves, declared: after {want[pair]}, "
        f"on the {observation.core.name} model ({differs.sum()} of {differs.size} pairs differ)"
    )
    return Verdict(NAME, Outcome.REORDERED, text)


def hidden(observation: Observation) -> str | None:
    """Why the order of additions cannot be seen in this case's outputs; None if it can."""
    products = observation.subject.products(observation.params)
    if not products:
        return "the subject names no matrix products"
    if not all(product.plain for product in products):
        return "an epilogue makes something else of the sums"
    if any(observation.outputs[product.output].dtype != np.uint32 for product in products):
        return "its outputs are BF16, which count no further than 256; take FP32"
    if len({observation.inputs[product.w].shape for product in products}) > 1:
        return "its products are not of the same size"
    if len({product.bias is None for product in products}) > 1:
        return "only some of its products have a bias"
    if _sizes(observation)[0] >= _COUNTABLE:
        return "FP32 does not count its terms"
    return None


def implied(order: Order, core: TensorCore, k: int, bias: bool) -> Tree:
    """The tree that a declared order comes to on a tensor core.

    Args:
        k: products; they are leaves 0…k-1. bias: whether it is added last, as leaf k.

    Raises:
        BadInput: if the order does not sum each product once.
    """
    places = [(fold, chain) for fold, chains in enumerate(order.folds) for chain in chains]
    steps = [order.chains[chain] for _, chain in places]
    lengths = [16 * len(run) for run in steps]
    leaves = order.steps[[step for run in steps for step in run]].reshape(-1)
    real = leaves < k
    # The fold, chain and fused sum of each leaf, numbered as they are added.
    folds = np.repeat([fold for fold, _ in places], lengths)[real]
    chains = np.repeat(np.arange(len(places)), lengths)[real]
    sums = (np.arange(len(leaves)) // core.terms)[real]
    leaves = leaves[real]
    if not np.array_equal(np.sort(leaves), np.arange(k)):
        raise BadInput(f"the subject declares an order that does not sum each of {k} products once")
    if bias:
        leaves = np.append(leaves, k)
        folds, chains, sums = (np.append(part, part[-1] + 1) for part in (folds, chains, sums))

    def start(labels: Ints) -> Ints:
        """For each leaf but the last, the first leaf of its part."""
        return np.searchsorted(labels, labels[:-1])

    def end(labels: Ints) -> Ints:
        """For each leaf but the first, one past the last leaf of its part."""
        return np.searchsorted(labels, labels[1:], "right")

    joints = np.select(
        [np.diff(folds) > 0, np.diff(chains) > 0],
        [end(folds), end(chains) - start(folds)],
        default=end(sums) - start(chains),
    )
    return Tree(leaves, joints)


def recovered(observation: Observation, pairs: Ints) -> Ints:
    """The size of the subtree in which each pair of leaves meets, by launching the kernel.

    Args:
        pairs: ``[B, 2]``, at least one, of leaves 0…K-1 and, with a bias, K. The same leaf twice is a check
            that it is added, once: 1.

    Returns:
        ``[P, B]`` for the subject's products.

    Raises:
        NoTree: if some output is no count of leaves, or tokens disagree.
        BadInput: if the outputs do not show the order, see :func:`hidden`.
    """
    _require_visible(observation)
    k, rows, _ = _sizes(observation)
    subject, params = observation.subject, observation.params
    some = min(len(pairs), max(1, _WEIGHTS // k))
    taller = params if some == rows else subject.resized(params, n=some)
    if taller is None:
        taller, some = params, rows
    sizes = [
        _launched(observation, taller, np.resize(pairs[start:], (some, 2)))
        for start in range(0, len(pairs), some)
    ]
    return np.concatenate(sizes, axis=1)[:, : len(pairs)]


def recover(observation: Observation) -> dict[str, Tree]:
    """The whole tree of every product, by its output, whether or not the subject declares one.

    It takes some K log K pairs, each a row of weights. As many as K more, drawn at random, have to agree
    with the tree.

    Raises:
        NoTree: if no tree explains what is counted.
        BadInput: if the outputs do not show the order, see :func:`hidden`.
    """
    _require_visible(observation)
    k, _, bias = _sizes(observation)
    leaves = k + bias
    trees = {}
    for index, product in enumerate(observation.subject.products(observation.params)):

        def sizes(pairs: Ints, index: int = index) -> Ints:
            return recovered(observation, pairs)[index]

        tree = fprev.recover(leaves, sizes)
        pairs = np.random.default_rng(0).integers(leaves, size=(max(64, leaves), 2))
        if (sizes(pairs) != tree.sizes(pairs)).any():
            raise NoTree(f"{product.output}: sizes of subtrees contradict each other")
        trees[product.output] = tree
    return trees


def _require_visible(observation: Observation) -> None:
    reason = hidden(observation)
    if reason is not None:
        raise BadInput(f"the order of additions is not to be seen in this case: {reason}")


def _launched(observation: Observation, params: Params, pairs: Ints) -> Ints:
    """One launch with a pair for each row: ``[P, N]``."""
    k, _, bias = _sizes(observation)
    products = observation.subject.products(params)
    rows = np.arange(len(pairs))
    terms = np.full((len(pairs), k + bias), _ONE)
    terms[rows, pairs[:, 0]] = _PLUS
    terms[rows, pairs[:, 1]] = np.where(pairs[:, 0] == pairs[:, 1], _NONE, _MINUS)
    inputs = dict(observation.inputs)

    def give(name: str, kinds: npt.NDArray[np.int64]) -> None:
        inputs[name] = rounded_bits(_VALUES, inputs[name].dtype)[kinds]

    for product in products:
        give(product.x, np.full(inputs[product.x].shape, _ONE))
        give(product.w, terms[:, :k])
        if product.bias:
            give(product.bias, terms[:, k])
    run = observation.launch(params, inputs)
    if run.problems:
        raise NoTree(f"{run.problems[0].kind}: {run.problems[0].message}")
    return np.stack(
        [_counted(each.output, run.outputs[each.output], pairs, k, bias) for each in products]
    )


def _counted(output: str, bits: Bits, pairs: Ints, k: int, bias: bool) -> Ints:
    """The sizes ``[N]`` that one output ``[M, N]`` tells, once it is clear that it tells some."""
    leaves = k + bias
    sums = real_values(bits)
    least = np.where(pairs[:, 0] == pairs[:, 1], 1, 2)
    count = (sums >= 0) & (sums <= leaves - least) & (sums == np.floor(sums))
    count &= (least == 2) | (sums == leaves - 1)
    if not count.all():
        token, row = first(~count)
        i, j = pairs[row]
        what = f"without {_leaf(i, k)}" if i == j else f"with {_named(pairs[row], k)} at +M and -M"
        text = f"{leaves} ones {what} sum to {sums[token, row]:.9g} for token {token}"
        raise NoTree(f"{output}: {text}, which no tree gives")
    if (sums != sums[0]).any():
        token, row = first(sums != sums[0])
        one, other = (int(leaves - sums[t, row]) for t in (0, token))
        raise NoTree(
            f"{output}: {_named(pairs[row], k)} meet after {one} of {leaves} leaves for token 0, "
            f"but after {other} for token {token}"
        )
    return (leaves - sums[0]).astype(np.int64)


def telling(tree: Tree, count: int, rng: np.random.Generator) -> Ints:
    """Pairs ``[count, 2]`` that meet near and far: at distances, in the order of addition, of which
    every magnitude is as likely, 0 included; one in eight with what is added last."""
    leaves = len(tree.leaves)
    places = np.where(rng.random(count) < 1 / 8, leaves - 1, rng.integers(leaves, size=count))
    distances = (leaves ** rng.random(count)).astype(np.int64) - 1
    return tree.leaves[np.stack([places - distances, places], axis=1)]  # below 0 is from the end


def _sizes(observation: Observation) -> tuple[int, int, bool]:
    """K, N, and whether there is a bias."""
    product = observation.subject.products(observation.params)[0]
    rows, k = observation.inputs[product.w].shape
    return k, rows, product.bias is not None


def _leaf(leaf: int, k: int) -> str:
    return "the bias" if leaf == k else f"k {leaf}"


def _named(pair: Ints, k: int) -> str:
    one, other = sorted(pair.tolist())
    return f"{_leaf(one, k)} and {_leaf(other, k)}"
