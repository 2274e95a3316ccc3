"""The tree in which a sum is added, and how to recover it from the size of a few of its subtrees.

FPRev (Xie, Gao, Cao et al., "FPRev: Revealing Floating-Point Accumulation Order", 2024) sums ones of
which two are masked: one addend is a huge +M, another -M. All that is added while M is in the running sum
is absorbed, so the result counts the ones added after the two have met: all leaves less those of the
smallest subtree that holds both, the subtree of their lowest common ancestor. Those sizes determine the
tree. Terms that a tensor core adds in one fused sum vanish together, so such a sum is one node of many
children.

Nothing here knows a kernel: :func:`recover` asks a function for sizes, whatever that launches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
T = TypeVar("T")


class NoTree(Exception):
    """What a kernel returns cannot come from adding all its terms in some tree; the message says why."""


@dataclass(frozen=True, eq=False)
class Tree:
    """Which of the leaves 0…L-1 meet where. Equal trees have equal :attr:`digest`.

    Attributes:
        leaves: ``[L]``, in an order in which the leaves of every subtree are neighbours.
        joints: ``[L - 1]``, the size of the smallest subtree that holds leaves p and p + 1 of that
            order. For any two leaves that size is the largest joint between them.
    """

    leaves: Ints
    joints: Ints

    def sizes(self, pairs: Ints) -> Ints:
        """The leaves of the smallest subtree that holds both of a pair: ``[B, 2]`` to ``[B]``, each
        1…L; a leaf is met by itself in a subtree of 1."""
        places = np.sort(self._place[pairs], axis=1)
        joints = np.append(self.joints, 0)  # so that the last place is a valid end
        largest = np.maximum.reduceat(joints, places.ravel())[::2]
        return np.where(places[:, 0] == places[:, 1], 1, largest)

    def fold(self, leaf: Callable[[int], T], node: Callable[[list[T]], T]) -> T:
        """Compute something of the tree from the leaves up; without recursion, for trees are deep."""
        # Nodes with children still to come, outermost first.
        waiting: list[tuple[int, list[T]]] = []
        for k, joint in zip(self.leaves.tolist(), [*self.joints.tolist(), len(self.leaves) + 1]):
            done = leaf(k)
            while waiting and waiting[-1][0] < joint:
                done = node([*waiting.pop()[1], done])
            if not waiting or waiting[-1][0] > joint:
                waiting.append((joint, []))
            waiting[-1][1].append(done)
        return waiting[0][1][0]

    @cached_property
    def canonical(self) -> Tree:
        """The same tree, its children everywhere in the order of their smallest leaf."""
        return recover(len(self.leaves), self.sizes)

    @cached_property
    def digest(self) -> str:
        """12 hex digits that only another tree changes."""
        text = f"{self.canonical.leaves.tolist()} {self.canonical.joints.tolist()}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @cached_property
    def _place(self) -> Ints:
        return np.argsort(self.leaves)


@dataclass
class _Node:
    size: int
    first: int  # its smallest leaf
    children: list[_Node | int]


def recover(leaves: int, sizes: Callable[[Ints], Ints]) -> Tree:
    """The :attr:`~Tree.canonical` tree of so many leaves, from the sizes of some of its subtrees.

    One leaf of a subtree is paired with all others. Their sizes are the nodes above it, smallest first,
    and say which leaves each node adds to those below; the same again for those, until none is left.
    The leaf is the middle one, so that sums from left to right and from right to left take log L calls
    alike, and some O(L log L) pairs; L² / 2 pairs suffice for any tree.

    Args:
        leaves: L, at least 1.
        sizes: ``[B, 2]`` pairs of different leaves to ``[B]``, see :meth:`Tree.sizes`; called once for
            each level of the recursion, with all of its pairs, at least one.

    Raises:
        NoTree: if no tree has these sizes.
    """
    root = _Node(leaves, 0, [])
    # Leaves and a node that they are somewhere below.
    open_: list[tuple[list[int], _Node]] = [(list(range(leaves)), root)]
    while open_:
        pivots = [below[len(below) // 2] for below, _ in open_]
        pairs = [(i, j) for i, (below, _) in zip(pivots, open_) for j in below if j != i]
        found = iter(sizes(np.array(pairs, np.int64)).tolist() if pairs else ())
        deeper: list[tuple[list[int], _Node]] = []
        for pivot, (below, parent) in zip(pivots, open_):
            joining: dict[int, list[int]] = {}
            for leaf in below:
                if leaf != pivot:
                    joining.setdefault(next(found), []).append(leaf)
            top: _Node | int = pivot
            joined, first = 1, pivot
            for size, others in sorted(joining.items()):
                joined, first = joined + len(others), min(first, others[0])
                if size == parent.size:
                    deeper.append((others, parent))
                    continue
                if size != joined:
                    raise NoTree(
                        f"leaves {pivot} and {others[0]} meet in a subtree of {size}, "
                        f"which by the other sizes holds {joined}"
                    )
                top = _Node(size, first, [top])
                deeper.append((others, top))
            parent.children.append(top)
        open_ = deeper
    return _flat(root)


def _flat(root: _Node) -> Tree:
    leaves: list[int] = []
    joints: list[int] = []
    stack: list[tuple[_Node | int, int]] = [(root, 0)]  # each with the joint before its first leaf
    while stack:
        item, joint = stack.pop()
        if isinstance(item, int):
            leaves.append(item)
            joints.append(joint)
            continue
        head, *tail = sorted(item.children, key=_first)
        stack += [(child, item.size) for child in reversed(tail)]
        stack.append((head, joint))
    return Tree(np.array(leaves, np.int64), np.array(joints[1:], np.int64))


def _first(item: _Node | int) -> int:
    return item if isinstance(item, int) else item.first
