"""A radix tree over token ids with counts: what prompts have in common, and where they part.

Memory is bounded: of a branch that only one request took, no more than its first tokens are kept,
and of a node's many such branches the latest; where all grows too large, the branches of few
requests are let go. What was let go counts among the others of its node.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whet.core.records import PrefixNode

Ids = NDArray[np.int32]

TextOf = Callable[[Ids, Ids, Ids], str | None]
"""The text shown of a node, from the tokens before it, its own, and some that follow."""

_WIDTH: Final = 4
"""Bytes of a token."""
_BEFORE: Final = 256
"""Tokens before a node by which a secret that it begins in is known."""
_STUB: Final = 48
"""Tokens kept of a branch that one request took."""
_MOST_SINGLES: Final = 64
"""Branches of one request that a node keeps."""
_MOST_NODES: Final = 200_000
_MOST_TOKENS: Final = 40_000_000
"""What a tree keeps at most: about 300 MB."""


class Node:
    """A run of tokens. ``length`` may exceed ``kept`` where only its beginning is kept.

    ``count`` requests have it: ``ends`` of them end with it, the others went on to the children or
    are ``others``, of which no more is known; ``gone`` is how many branches were let go.
    ``singles`` are the keys of children that one request took, the oldest first.
    """

    __slots__ = (
        "children", "count", "data", "ends", "gone", "length", "lost", "others", "place", "singles"
    )  # fmt: skip

    def __init__(self, data: bytes, length: int, place: str) -> None:
        """One request's run of tokens, with which it ends. ``data`` are those that are kept, four
        bytes each: as such they are compared many times faster than as short arrays."""
        self.data, self.length, self.place = data, length, place
        self.count = self.ends = 1
        self.others = self.gone = 0
        self.children: dict[int, Node] = {}
        self.singles: dict[int, None] = {}
        self.lost: Counter[str] = Counter()

    @property
    def ids(self) -> Ids:
        """The tokens that are kept; not to be written to."""
        return np.frombuffer(self.data, dtype=np.int32)

    @property
    def kept(self) -> int:
        """How many they are."""
        return len(self.data) // _WIDTH


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
        self.root = Node(b"", 0, "")
        self.root.count = self.root.ends = 0
        self._nodes = self._tokens = 0
        """At most so many nodes and tokens are kept."""

    def insert(self, ids: Ids, place: str, *, known: int = 0) -> Parting:
        """Add a prompt and return where it parts from those before.

        ``known`` is a number of leading tokens that some earlier prompt is known to share: it tells
        of those that are not kept.
        """
        if self._nodes > _MOST_NODES or self._tokens > _MOST_TOKENS:
            self._let_go()
        data = ids.astype(np.int32, copy=False).tobytes()
        words = memoryview(data).cast("i")
        node, depth = self.root, 0
        path: list[Node] = []
        while True:
            path.append(node)
            node.count += 1
            if depth == len(words):
                node.ends += 1
                return Parting(depth, node, None)
            key = words[depth]
            child = node.children.get(key)
            if child is None and known > depth and not node.ends:
                child = self._take_back(path, key, data[_WIDTH * depth : _WIDTH * known])
            if child is None:
                return self._branch(node, data, depth, place)
            run = child.data
            if len(run) < _WIDTH * child.length or not data.startswith(run, _WIDTH * depth):
                self._part(child, data[_WIDTH * depth :], known - depth)
            if child.count == 1:
                node.singles.pop(key, None)
            node, depth = child, depth + child.length

    def record(
        self,
        text_of: TextOf,
        *,
        children: int = 8,
        nodes: int = 400,
        levels: int = 48,
    ) -> PrefixNode:
        """The largest ``nodes`` as a record, at most ``children`` of one and ``levels`` deep.

        ``text_of`` gives the text that is shown of a node, by the tokens before it, its own and a
        child's.
        """
        return _record(self.root, _shown(self.root, children, nodes, levels), text_of)

    def _branch(self, node: Node, data: bytes, depth: int, place: str) -> Parting:
        sibling = next(reversed(node.children.values()), None)
        if len(node.singles) >= _MOST_SINGLES:
            self._forget(node, next(iter(node.singles)))
        rest = data[_WIDTH * depth :]
        made = Node(rest[: _WIDTH * _STUB], len(rest) // _WIDTH, place)
        node.children[_first(rest)] = made
        node.singles[_first(rest)] = None
        self._nodes += 1
        self._tokens += made.kept
        return Parting(depth, node, sibling)

    def _take_back(self, path: Sequence[Node], key: int, data: bytes) -> Node | None:
        """One of the others of the last of ``path`` that has any, by what a request is known to
        share with it; None where none is left.

        What is known may be an answer, after the end of an earlier prompt: there nothing is asked.
        """
        at = next((i for i in reversed(range(len(path))) if path[i].others), None)
        if at is None:
            return None
        path[at].others -= 1
        path[at].gone = min(path[at].gone, path[at].others)
        for node in path[at + 1 :]:
            node.count += 1
        child = Node(data, len(data) // _WIDTH, "")
        child.ends, child.others, child.gone = 0, 1, 1
        path[-1].children[key] = child
        self._nodes += 1
        self._tokens += child.kept
        return child

    def _part(self, node: Node, rest: bytes, known: int) -> None:
        """Let ``node`` end where a request leaves it that goes on with ``rest``.

        Of a branch whose end was not kept, what the request is ``known`` to share is kept now.
        """
        same, here = _common(node.data, rest), len(rest) // _WIDTH
        if same == node.kept < node.length and here > same:
            same = min(max(known, same), node.length, here)
            self._tokens += same - node.kept
            node.data = rest[: _WIDTH * same]
        if same < node.length:
            self._split(node, same)

    def _split(self, node: Node, at: int) -> None:
        """Cut a run in two; the second keeps the children. What was not kept is an other."""
        rest = node.data[_WIDTH * at :]
        if rest:
            tail = Node(rest, node.length - at, node.place)
            for name in ("count", "ends", "others", "gone", "children", "singles", "lost"):
                setattr(tail, name, getattr(node, name))
            key = _first(rest)
            node.children, node.lost = {key: tail}, Counter()
            node.singles = {key: None} if tail.count == 1 else {}
            node.others = node.gone = 0
            self._nodes += 1
        else:
            node.others, node.gone = node.count, 1
        node.ends = 0
        node.data, node.length = node.data[: _WIDTH * at], at

    def _forget(self, node: Node, key: int) -> None:
        """Let a branch go, and all below it."""
        child = node.children.pop(key)
        node.singles.pop(key, None)
        node.others += child.count
        node.gone += 1
        for each in _walk(child):
            self._nodes -= 1
            self._tokens -= each.kept

    def _let_go(self) -> None:
        """Forget the branches of fewest requests, until half of what may be kept is kept."""
        least = 1
        while self._nodes > _MOST_NODES // 2 or self._tokens > _MOST_TOKENS // 2:
            for node in _walk(self.root):
                for key in [key for key, child in node.children.items() if child.count <= least]:
                    self._forget(node, key)
            least *= 2


def _first(data: bytes) -> int:
    """The first token."""
    return memoryview(data).cast("i")[0]


def _common(one: bytes, two: bytes) -> int:
    """How many tokens two runs have in common from their start."""
    size = min(len(one), len(two))
    differ = np.flatnonzero(
        np.frombuffer(one[:size], dtype=np.int32) != np.frombuffer(two[:size], dtype=np.int32)
    )
    return int(differ[0]) if len(differ) else size // _WIDTH


def _walk(node: Node) -> Iterator[Node]:
    """``node`` and all below it; its children are read after it was given."""
    stack = [node]
    while stack:
        each = stack.pop()
        yield each
        stack += each.children.values()


def _shown(root: Node, children: int, nodes: int, levels: int) -> dict[int, list[Node]]:
    """The children that are told one by one, the largest first, by the id of their node.

    The largest nodes of the tree are taken first; none has more requests than its parent.
    """
    found: dict[int, list[Node]] = {}
    order = count()
    waiting = [(-root.count, next(order), 0, root, root)]
    left = nodes
    while waiting and left > 0:
        _, _, level, parent, node = heapq.heappop(waiting)
        left -= 1
        if node is not root:
            found.setdefault(id(parent), []).append(node)
        if level < levels:
            for child in heapq.nlargest(children, node.children.values(), key=lambda n: n.count):
                heapq.heappush(waiting, (-child.count, next(order), level + 1, node, child))
    return found


def _record(root: Node, shown: dict[int, list[Node]], text_of: TextOf) -> PrefixNode:
    """The record of a tree, made from the leaves up."""
    order = [(root, 0, root.ids)]
    for node, start, before in order:
        upto = np.concatenate([before, node.ids])[-_BEFORE:]
        order += [(child, start + node.length, upto) for child in shown.get(id(node), ())]
    made: dict[int, PrefixNode] = {}
    for node, start, before in reversed(order):
        told = shown.get(id(node), [])
        kind = node.lost.most_common(1)[0][0] if node.lost else None
        rest = sum(each.count for each in node.children.values()) - sum(c.count for c in told)
        child = next(iter(node.children.values()), None)
        after = node.ids[:0] if child is None else child.ids
        made[id(node)] = PrefixNode(
            start=start,
            tokens=node.length,
            requests=node.count,
            text=text_of(before, node.ids, after),
            children=tuple(
                replace(made.pop(id(child)), cause=kind if i else None)  # the largest is not lost
                for i, child in enumerate(told)
            ),
            other_children=len(node.children) - len(told) + node.gone,
            other_requests=rest + node.others,
        )
    return made[id(root)]
