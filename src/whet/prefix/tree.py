"""A radix tree over token ids with counts: what prompts have in common, and where they part.

Memory is bounded: of a branch that only one request took, no more than its first tokens are kept,
and of a node's many such branches the latest. A branch that was let go counts among the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whet.core.records import PrefixNode

Ids = NDArray[np.int32]

_STUB: Final = 48
"""Tokens kept of a branch that one request took."""
_MOST_SINGLES: Final = 64
"""Branches of one request that a node keeps."""


class Node:
    """A run of tokens. ``length`` may exceed ``len(ids)`` where only its beginning is kept."""

    __slots__ = ("children", "count", "ids", "length", "lost", "others", "place")

    def __init__(self, ids: Ids, length: int, place: str) -> None:
        """One request's run of tokens."""
        self.ids, self.length, self.place = ids, length, place
        self.count = 1
        self.children: dict[int, Node] = {}
        self.others = 0
        self.lost: Counter[str] = Counter()


@dataclass(frozen=True, slots=True)
class Parting:
    """Where a request left the others: after ``depth`` tokens, at ``node``.

    ``sibling`` is the latest branch beside it, None where there is none.
    """

    depth: int
    node: Node
    sibling: Node | None


class TokenTree:
    """Prompts, one after another."""

    def __init__(self) -> None:
        """An empty tree."""
        self.root = Node(np.empty(0, dtype=np.int32), 0, "")
        self.root.count = 0

    def insert(self, ids: Ids, place: str, *, known: int = 0) -> Parting:
        """Add a prompt and return where it parts from those before.

        ``known`` is a number of leading tokens that some earlier prompt is known to share.
        """
        node, depth = self.root, 0
        node.count += 1
        while True:
            rest = ids[depth:]
            child = node.children.get(int(rest[0])) if len(rest) else None
            if child is None:
                return self._branch(node, ids, depth, place)
            same = _common(child.ids, rest)
            if same == len(child.ids) < child.length and len(rest) > same:
                same = _extend(child, rest, known - depth)
            if same < child.length:
                _split(child, same)
            child.count += 1
            node, depth = child, depth + same
            if depth == len(ids):
                return Parting(depth, node, None)

    def record(
        self, text_of: Callable[[Ids], str | None], *, children: int = 8, nodes: int = 400
    ) -> PrefixNode:
        """The largest nodes as a record; ``text_of`` gives the text that is shown of a node."""
        least = max(1, _nth_largest(self.root, nodes))
        return _record(self.root, _View(text_of, children, least))

    def _branch(self, node: Node, ids: Ids, depth: int, place: str) -> Parting:
        sibling = next(reversed(node.children.values()), None)
        if len(ids) > depth:
            if len(node.children) >= _MOST_SINGLES:
                _let_one_go(node)
            stub = ids[depth : depth + _STUB].copy()
            node.children[int(ids[depth])] = Node(stub, len(ids) - depth, place)
        return Parting(depth, node, sibling)


def _common(one: Ids, two: Ids) -> int:
    """How many tokens two runs have in common from their start."""
    size = min(len(one), len(two))
    if size and one[size - 1] == two[size - 1] and np.array_equal(one[:size], two[:size]):
        return size
    differ = np.flatnonzero(one[:size] != two[:size])
    return int(differ[0]) if len(differ) else size


def _extend(node: Node, rest: Ids, known: int) -> int:
    """Of a branch whose end was not kept, what this request is known to share is kept now."""
    same = min(max(known, len(node.ids)), node.length, len(rest))
    node.ids = rest[:same].copy()
    return same


def _split(node: Node, at: int) -> None:
    """Cut a run in two; the second keeps the children. What was not kept is one of the others."""
    rest = node.ids[at:]
    if len(rest):
        tail = Node(rest, node.length - at, node.place)
        tail.count, tail.children = node.count, node.children
        tail.others, tail.lost = node.others, node.lost
        node.children, node.others, node.lost = {int(rest[0]): tail}, 0, Counter()
    else:
        node.others += node.count
    node.ids, node.length = node.ids[:at], at


def _let_one_go(node: Node) -> None:
    """Forget the oldest branch that only one request took."""
    for key, child in node.children.items():
        if child.count == 1:
            del node.children[key]
            node.others += 1
            return


def _nth_largest(root: Node, count: int) -> int:
    sizes = sorted((child.count for child in _walk(root)), reverse=True)
    return sizes[count] + 1 if len(sizes) > count else 1


def _walk(node: Node) -> Iterator[Node]:
    stack = [node]
    while stack:
        each = stack.pop()
        yield each
        stack += each.children.values()


@dataclass(frozen=True, slots=True)
class _View:
    text_of: Callable[[Ids], str | None]
    children: int
    least: int

    def shown(self, node: Node) -> list[Node]:
        """The children that are told one by one, the largest first."""
        ranked = sorted(node.children.values(), key=lambda child: -child.count)
        return [child for child in ranked[: self.children] if child.count >= self.least]


def _record(root: Node, view: _View) -> PrefixNode:
    """The record of a tree, made from the leaves up: a chain of turns may be deep."""
    order = [(root, 0)]
    for node, start in order:
        order += [(child, start + node.length) for child in view.shown(node)]
    made: dict[int, PrefixNode] = {}
    for node, start in reversed(order):
        shown = view.shown(node)
        kind = node.lost.most_common(1)[0][0] if node.lost else None
        rest = [each for each in node.children.values() if all(each is not one for one in shown)]
        made[id(node)] = PrefixNode(
            start=start,
            tokens=node.length,
            requests=node.count,
            text=view.text_of(node.ids),
            children=tuple(
                replace(made.pop(id(child)), cause=kind if i else None)  # the largest is not lost
                for i, child in enumerate(shown)
            ),
            other_children=len(rest) + node.others,
            other_requests=sum(child.count for child in rest) + node.others,
        )
    return made[id(root)]
