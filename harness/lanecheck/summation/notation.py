"""A summation tree on one line, and in words.

``(a + b + c)`` are additions of two, from left to right; ``{0 1 2}`` is one fused sum; ``[{…} → {…}]``
fused sums in turn, each of which takes in the result of the one before. Numbers are values of k. What
repeats itself is written once: ``0…3 ×4@8`` is 0…3, 8…11, 16…19, 24…27. The notation is exact: it leaves
nothing out, and two trees of the same text are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal, Union

from lanecheck.summation.fprev import Tree

LEGEND = (
    "{ } one fused sum; [ → ] fused sums in turn, each with the result before it; "
    "( + ) from left to right; ×4@8 four times, 8 apart in k"
)

_BIAS = "bias"
_MARKS = {"(": ("(", " + ", ")"), "[": ("[", " → ", "]"), "{": ("{", " ", "}")}
_DEEP, _MANY = 3, 4  # how much a description spells out


@dataclass(frozen=True)
class _Group:
    kind: Literal["(", "[", "{"]
    items: tuple[_Term, ...]


@dataclass(frozen=True)
class _Run:
    """A term, ``count`` times, each ``by`` further in k than the one before."""

    item: _Term
    count: int
    by: int


_Term = Union[int, str, _Group, _Run]


def notation(tree: Tree, bias: bool = False) -> str:
    """The tree on one line.

    Args:
        bias: the last leaf is one, and no product.
    """
    return _text(_term(tree, bias))


def description(tree: Tree, bias: bool = False) -> str:
    """The tree in words, as far as it is regular: "4 chains of 6 fused sums of 16, added left to right"."""
    term = _term(tree, bias)
    if isinstance(term, _Group) and term.kind == "(" and term.items[-1] == _BIAS:
        *others, _ = term.items
        rest = others[0] if len(others) == 1 else _Group("(", tuple(others))
        return f"{_sentence(rest)}, then the bias"
    return _sentence(term)


# From the tree to terms ------------------------------------------------------------------------


def _term(tree: Tree, bias: bool) -> _Term:
    last = len(tree.leaves) - 1
    return tree.canonical.fold(lambda k: _BIAS if bias and k == last else k, _node)


def _node(children: list[_Term]) -> _Term:
    if len(children) == 2:
        return _added(*children)
    chains = [child for child in children if _is(child, "[")]
    if not chains:
        return _Group("[", (_Group("{", tuple(children)),))
    before = max(chains, key=_size)
    others = tuple(child for child in children if child is not before)
    return _Group("[", (*_items(before), _Group("{", others)))


def _added(a: _Term, b: _Term) -> _Term:
    """a + b, where the sum that came first is spelled out: (p + q) + b is p + q + b."""
    sums = [term for term in (a, b) if _is(term, "(")]
    if not sums or (len(sums) == 2 and _skeleton(a) == _skeleton(b)):  # neither came first
        return _Group("(", (b, a) if isinstance(b, _Group) > isinstance(a, _Group) else (a, b))
    before = max(sums, key=_size)
    after, items = b if before is a else a, _items(before)
    if len(items) == 2:  # whose own order is for us to choose: 2 + 1 + 0 rather than 1 + 2 + 0
        by = _shift(items[1], items[0])
        if by is not None and by == _shift(items[0], after):
            items = items[::-1]
    return _Group("(", (*items, after))


def _is(term: _Term, kind: str) -> bool:
    return isinstance(term, _Group) and term.kind == kind


def _items(term: _Term) -> tuple[_Term, ...]:
    return term.items if isinstance(term, _Group) else (term,)


def _size(term: _Term) -> int:
    return sum(map(_size, term.items)) if isinstance(term, _Group) else 1


def _skeleton(term: _Term) -> object:
    return tuple(map(_skeleton, _items(term))) if _is(term, "(") else isinstance(term, _Group)


# On one line -----------------------------------------------------------------------------------


def _text(term: _Term) -> str:
    if isinstance(term, _Run):
        if isinstance(term.item, int) and abs(term.by) == 1:
            return f"{term.item}…{term.item + term.by * (term.count - 1)}"
        return f"{_text(term.item)} ×{term.count}@{term.by}"
    if not isinstance(term, _Group):
        return str(term)
    if term.kind == "[" and len(term.items) == 1:
        return _text(term.items[0])
    before, between, after = _MARKS[term.kind]
    return before + between.join(map(_text, _runs(term.items))) + after


def _runs(items: Sequence[_Term]) -> Sequence[_Term]:
    """The items with every stretch that moves on evenly as one run, and runs of such runs."""
    runs: list[_Term] = []
    start = 0
    while start < len(items):
        head, by, count = items[start], 0, 1
        while start + count < len(items):
            step = _shift(items[start + count - 1], items[start + count])
            if step is None or by not in (0, step):
                break
            by, count = step, count + 1
        if count < (3 if _flat(head) else 2):  # 0 8 is shorter than 0 ×2@8
            count = 1
        runs.append(head if count == 1 else _Run(head, count, by))
        start += count
    return runs if len(runs) == len(items) else _runs(runs)


def _flat(term: _Term) -> bool:
    return _flat(term.item) if isinstance(term, _Run) else not isinstance(term, _Group)


def _shift(a: _Term, b: _Term) -> int | None:
    """How much further in k the second is, if it is otherwise the first."""
    by = _lead(b) - _lead(a)
    return by if by and _moved(a, by) == b else None


def _lead(term: _Term) -> int:
    if isinstance(term, _Group):
        return _lead(term.items[0])
    if isinstance(term, _Run):
        return _lead(term.item)
    return term if isinstance(term, int) else 0


def _moved(term: _Term, by: int) -> _Term:
    if isinstance(term, _Group):
        return _Group(term.kind, tuple(_moved(item, by) for item in term.items))
    if isinstance(term, _Run):
        return _Run(_moved(term.item, by), term.count, term.by)
    return term + by if isinstance(term, int) else term


# In words --------------------------------------------------------------------------------------


def _sentence(term: _Term) -> str:
    if not _is(term, "("):
        return _counted([term])
    pairs = _pairwise(term)
    if pairs:
        return f"{_counted(pairs)}, added pairwise"
    way = _way(_items(term)) or " left to right"
    return f"{_counted(_items(term))}, added{way}"


def _counted(terms: Sequence[_Term], depth: int = 0) -> str:
    counts = [(len(list(alike)), *noun) for noun, alike in groupby(_noun(t, depth) for t in terms)]
    if len(counts) > _MANY:
        sizes = sorted(map(_size, terms))
        return f"{len(terms)} parts of {sizes[0]} to {sizes[-1]} leaves"
    parts = [f"{n} {noun}{'s' if n > 1 else ''}{of}" for n, noun, of in counts]
    text = ", then ".join(parts)
    return f"({text})" if depth and len(parts) > 1 else text


def _noun(term: _Term, depth: int) -> tuple[str, str]:
    """What a term is, in two parts: an "s" between them makes many of it."""
    if not isinstance(term, _Group):
        return ("bias" if term == _BIAS else "product"), ""
    if term.kind == "{":
        return "fused sum", f" of {_size(term)}"
    if term.kind == "[" and len(term.items) == 1:
        return _noun(term.items[0], depth)
    if depth == _DEEP:
        return "group", f" of {_size(term)} leaves"
    if term.kind == "[":
        return "chain", f" of {_counted(term.items, depth + 1)}{_way(term.items)}"
    pairs = _pairwise(term)
    if pairs:
        return "pairwise sum", f" of {_counted(pairs, depth + 1)}"
    return "group", f" of {_counted(term.items, depth + 1)}{_way(term.items)}"


def _way(terms: Sequence[_Term]) -> str:
    leads = list(map(_lead, terms))
    return " backwards" if all(b < a for a, b in pairwise(leads)) else ""


def _pairwise(term: _Term) -> list[_Term]:
    """What a sum adds two by two, those two by two, and so on for at least three levels; or nothing."""
    level, depth = [term], 0
    while all(_is(each, "(") and len(_items(each)) == 2 for each in level):
        level, depth = [item for each in level for item in _items(each)], depth + 1
    return level if depth >= 3 else []
