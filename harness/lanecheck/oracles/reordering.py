"""Reordering: whether other bits than the predicted ones are those of another order of additions.

No tolerance decides that. The tree in which the kernel adds is recovered from outside
(:mod:`lanecheck.oracles.tree`), and its sums are computed in that tree on the model of the tensor core. If
they come to the bits that the kernel gave, it adds the right terms in an order of its own. If its tree
is the declared one, or none, or gives other bits, the kernel is wrong.

A node of the tree that holds products is a fused sum, and what it holds beside them is its accumulator.
One without is an FP32 addition. A single product beside a sum may be either; both are tried. Products
without a sum may be one fused sum, or one of them came first and is their accumulator; that is tried of
one that the declared order, too, sums apart from others, such as the last of K = 17.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from lanecheck.cases import Case
from lanecheck.native import mma_batch
from lanecheck.observation import Observation
from lanecheck.oracles import tree
from lanecheck.order import Order
from lanecheck.subject import Bits, Product
from lanecheck.summation.fprev import NoTree, Tree
from lanecheck.tensorcore import FP32_NAN, TensorCore
from lanecheck.tiles import by_element, fragments
from lanecheck.values import INTEGER_REGIMES, real_values

Sums = npt.NDArray[np.float32]

_ONE_MMA = Order(np.arange(16)[None], (range(1),), ((0,),))
_PAIRS = 256  # that have to show another order before the whole tree is recovered


def explained(observation: Observation) -> bool:
    """Whether the outputs are, bit for bit, those of another order than the declared one.

    Never of integers, whose sums are the same in every order, nor where no order is declared.
    """
    subject, params = observation.subject, observation.params
    order = subject.order(params)
    if order is None or params["regime"] in INTEGER_REGIMES or observation.large:
        return False
    exposed = _exposed(observation)
    if exposed is None or tree.hidden(exposed) is not None:
        return False
    products = subject.products(exposed.params)
    k, bias = exposed.inputs[products[0].x].shape[1], products[0].bias is not None
    declared = tree.implied(order, observation.core, k, bias)
    pairs = tree.telling(declared, _PAIRS, np.random.default_rng(observation.case.seed))
    try:
        if (tree.recovered(exposed, pairs) == declared.sizes(pairs)).all():
            return False
        found = tree.recover(exposed)
    except NoTree:
        return False
    ways = itertools.product((True, False), {frozenset(), _alone(order, observation.core, k)})
    return any(_gives(observation, exposed, found, products, *way) for way in ways)


def _alone(order: Order, core: TensorCore, k: int) -> frozenset[int]:
    """The products that are the only one of their fused sum."""
    sums = order.steps.reshape(-1, core.terms)
    real = sums < k
    return frozenset(sums[real & (real.sum(axis=1, keepdims=True) == 1)].tolist())


def _exposed(observation: Observation) -> Observation | None:
    """The case with the FP32 sums of its products for outputs."""
    params = observation.subject.exposed(observation.params)
    if params is None:
        return observation
    run = observation.launch(params, observation.inputs)
    if run.problems:
        return None
    case = Case(observation.case.subject, {**observation.params, **params})
    return replace(observation, case=case, runs=(run,))


def _gives(
    observation: Observation,
    exposed: Observation,
    found: Mapping[str, Tree],
    products: Sequence[Product],
    fused: bool,
    alone: frozenset[int],
) -> bool:
    sums = {}
    for product in products:
        x, w = (observation.inputs[name] for name in (product.x, product.w))
        bias = observation.inputs[product.bias] if product.bias else None
        computed = evaluated(found[product.output], observation.core, x, w, bias, fused, alone)
        if computed is None:
            return False
        sums[product.output] = fp32_bits(computed)
    outputs: Mapping[str, Bits] = sums
    if exposed is not observation:
        stored = {name: bits.view(np.float32) for name, bits in sums.items()}
        outputs = observation.subject.finish(observation.params, stored)
    return all(np.array_equal(outputs[name], bits) for name, bits in observation.outputs.items())


def evaluated(
    found: Tree,
    core: TensorCore,
    x: Bits,
    w: Bits,
    bias: Bits | None = None,
    fused: bool = True,
    alone: frozenset[int] = frozenset(),
) -> Sums | None:
    """The sums of every output element in a tree, on a tensor core.

    Args:
        found: over leaves 0…K-1, and K for the bias.
        x: ``[M, K]`` BF16 bits. w: ``[N, K]``. bias: ``[N]``, BF16 or FP32 bits.
        fused: whether one product beside one sum is a fused sum; otherwise that is an FP32 addition.
        alone: products that are a fused sum of their own where they meet only products.

    Returns:
        ``[M, N]``; None if some node is neither a fused sum nor an addition of two.
    """
    m, n, k = len(x), len(w), x.shape[1]

    def node(children: list[int | Sums | None]) -> Sums | None:
        if any(child is None for child in children):
            return None
        leaves = [child for child in children if isinstance(child, int) and child < k]
        sums = [value(child) for child in children if not isinstance(child, int) or child == k]
        apart: list[int] = []
        if len(leaves) == len(sums) == 1 and not fused:
            apart = leaves
        elif len(leaves) > 1 and not sums:
            apart = [leaf for leaf in leaves if leaf in alone]
        sums += [_fused_sum(core, x[:, [leaf]], w[:, [leaf]], zero) for leaf in apart]
        leaves = [leaf for leaf in leaves if leaf not in apart]
        if len(leaves) <= core.terms and len(sums) <= 1:
            return _fused_sum(core, x[:, leaves], w[:, leaves], sums[0] if sums else zero)
        if leaves or len(sums) != 2:
            return None
        with np.errstate(all="ignore"):
            return sums[0] + sums[1]

    def value(child: int | Sums | None) -> Sums:
        assert child is not None
        if not isinstance(child, int):
            return child
        assert bias is not None
        return np.broadcast_to(real_values(bias).astype(np.float32), (m, n))

    zero = np.zeros((m, n), np.float32)
    root: int | Sums | None = found.fold(lambda leaf: leaf, node)  # type: ignore[arg-type]
    return node([root]) if isinstance(root, int) else root


def _fused_sum(core: TensorCore, x: Bits, w: Bits, c: Sums) -> Sums:
    """``c`` and the products of at most 16 k, ``x [M, t]`` and ``w [N, t]``, in one mma a tile."""
    m, n = len(x), len(w)
    a, b = (operand[:, 0] for operand in fragments(_ONE_MMA, x, w))
    rows, columns = len(a), len(b)
    tiles = np.zeros((16 * rows, 8 * columns), np.float32)
    tiles[:n, :m] = c.T
    d = mma_batch(
        core,
        np.repeat(a, columns, axis=0),
        np.tile(b, (rows, 1, 1)),
        tiles.reshape(rows, 16, columns, 8).swapaxes(1, 2).reshape(-1, 16, 8),
    )
    return np.ascontiguousarray(by_element(d.reshape(1, rows, columns, 16, 8), m, n)[0])


def fp32_bits(sums: Sums) -> npt.NDArray[np.uint32]:
    """As they are stored, every NaN as the tensor core's."""
    return np.where(np.isnan(sums), FP32_NAN, np.ascontiguousarray(sums).view(np.uint32))
