"""The tree against a brute force over all prompts before, and what it keeps and lets go."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.core.records import PrefixNode
from whet.prefix import tree as tree_module
from whet.prefix.tree import Node, Parting, TokenTree

BLOCK = 2
tokens = st.lists(st.integers(0, 2), max_size=12)
logs = st.lists(tokens, min_size=1, max_size=24)


def shared(one: Sequence[int], two: Sequence[int]) -> int:
    pairs = zip(one, two, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(two)))


def longest(log: Sequence[Sequence[int]], index: int) -> int:
    """The longest prefix that prompt ``index`` shares with one before it."""
    return max((shared(log[index], each) for each in log[:index]), default=0)


def insert_all(log: Sequence[Sequence[int]]) -> tuple[TokenTree, list[Parting]]:
    tree = TokenTree()
    partings = [
        tree.insert(np.array(ids, dtype=np.int32), str(i), known=longest(log, i) // BLOCK * BLOCK)
        for i, ids in enumerate(log)
    ]
    return tree, partings


def nodes_of(tree: TokenTree) -> Iterator[tuple[tuple[int, ...], Node]]:
    """Every node with the tokens from the root to its end, as far as they are kept."""
    stack: list[tuple[tuple[int, ...], Node]] = [((), tree.root)]
    while stack:
        path, node = stack.pop()
        yield path, node
        for child in node.children.values():
            stack.append(((*path, *child.ids.tolist()), child))


def records(node: PrefixNode) -> Iterator[PrefixNode]:
    yield node
    for child in node.children:
        yield from records(child)


def check_sums(tree: TokenTree) -> None:
    for _, node in nodes_of(tree):
        below = sum(child.count for child in node.children.values())
        assert node.count == node.ends + below + node.others
        assert min(node.ends, node.others, node.gone) >= 0
        singles = {key for key, child in node.children.items() if child.count == 1}
        assert set(node.singles) == singles


@given(logs)
@settings(deadline=None)
def test_a_prompt_parts_where_no_earlier_one_goes_on_with_it(log: list[list[int]]) -> None:
    _, partings = insert_all(log)
    assert [each.depth for each in partings] == [longest(log, i) for i in range(len(log))]


@given(logs)
@settings(deadline=None)
def test_a_node_counts_the_prompts_that_begin_so(log: list[list[int]]) -> None:
    tree, _ = insert_all(log)
    for path, node in nodes_of(tree):
        assert node.count == sum(tuple(each[: len(path)]) == path for each in log)
        assert node.ends == sum(tuple(each) == path for each in log)
        assert node.others == 0
    check_sums(tree)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=10, max_size=10), min_size=1, max_size=24),
    st.integers(1, 4),
    st.integers(1, 3),
)
@settings(deadline=None)
def test_what_is_known_makes_up_for_what_was_not_kept(
    log: list[list[int]], stub: int, singles: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_module, "_STUB", stub)
        patch.setattr(tree_module, "_MOST_SINGLES", singles)
        tree, partings = insert_all(log)
    for i, parting in enumerate(partings):
        true = longest(log, i)
        assert true // BLOCK * BLOCK <= parting.depth <= true
    assert tree.root.count == len(log)
    check_sums(tree)


@given(logs, st.integers(1, 30))
@settings(deadline=None)
def test_a_tree_that_lets_go_still_adds_up(log: list[list[int]], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_module, "_MOST_TOKENS", most)
        tree, _ = insert_all(log)
    assert tree.root.count == len(log)
    assert tree._tokens == sum(len(node.ids) for _, node in nodes_of(tree))
    assert tree._nodes == sum(1 for _ in nodes_of(tree)) - 1
    check_sums(tree)
    root = tree.record(lambda before, ids, after: None)
    for node in records(root):
        ends = node.requests - sum(c.requests for c in node.children) - node.other_requests
        assert ends >= 0


def test_unique_prompts_are_kept_up_to_a_cap() -> None:
    tree, head = TokenTree(), list(range(100))
    for i in range(1_000):
        ids = np.array([*head, 1_000 + i, *range(500)], dtype=np.int32)
        tree.insert(ids, str(i), known=96 if i else 0)
    (top,) = tree.root.children.values()
    (node,) = top.children.values()
    # Of the first prompt no more than the second is known to share is kept.
    assert (top.length, top.count, top.others, node.length) == (96, 1_000, 1, 4)
    assert (node.count, len(node.children), node.others, node.gone) == (999, 64, 935, 935)
    assert min(node.children) == 1_000 + 936  # the latest stay
    assert all(len(child.ids) == 48 and child.length == 501 for child in node.children.values())


def test_many_branches_of_two_are_let_go_when_the_tree_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tree_module, "_MOST_NODES", 100)
    tree = TokenTree()
    for i in range(2_000):
        for _ in range(2):
            tree.insert(np.array([7, 1_000 + i], dtype=np.int32), str(i))
            assert sum(1 for _ in nodes_of(tree)) <= 103
    assert tree.root.count == 4_000
    check_sums(tree)


def test_the_oldest_branch_of_one_goes_and_those_of_two_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tree_module, "_MOST_SINGLES", 4)
    tree = TokenTree()
    for i in range(3_000):  # every second branch is taken twice
        for _ in range(1 + i % 2):
            tree.insert(np.array([i, 0], dtype=np.int32), "")
    singles = [key for key, child in tree.root.children.items() if child.count == 1]
    assert singles == list(tree.root.singles) == [2_994, 2_996, 2_998]
    assert len(tree.root.children) == 1_503
    assert tree.root.others == 1_497


def test_the_sibling_is_the_latest_branch() -> None:
    tree = TokenTree()
    parted = [
        tree.insert(np.array(ids, dtype=np.int32), place)
        for place, ids in [("a", [1, 2, 3]), ("b", [1, 2, 4]), ("c", [1, 2, 5]), ("d", [1, 2])]
    ]
    assert [each.sibling and each.sibling.place for each in parted] == [None, "a", "b", None]
    assert [each.depth for each in parted] == [0, 2, 2, 2]


def test_a_very_deep_tree_is_recorded() -> None:
    tree = TokenTree()
    ids = np.arange(5_000, dtype=np.int32)
    tree.insert(ids, "", known=0)
    tree.insert(ids, "", known=5_000)
    for end in range(4_999, 0, -1):
        tree.insert(ids[:end], "")
    root = tree.record(lambda before, ids, after: "x", nodes=10_000, levels=10_000)
    depth, node = 0, root
    while node.children:
        (node,), depth = node.children, depth + 1
    assert (depth, node.start, node.tokens, node.requests) == (5_000, 4_999, 1, 2)


def test_a_record_stays_shallow_enough_to_be_written() -> None:
    tree = TokenTree()
    ids = np.arange(1_000, dtype=np.int32)
    for end in (1_000, 1_000, *range(999, 0, -1)):
        tree.insert(ids[:end], "", known=end)
    told = list(records(tree.record(lambda before, ids, after: None)))
    assert len(told) == 49
    assert (told[-1].other_children, told[-1].other_requests) == (1, told[-1].requests - 1)


def test_the_largest_nodes_are_told_and_the_largest_child_is_not_lost() -> None:
    tree, rng = TokenTree(), random.Random(0)
    log = [*[[1, 2, 3]] * 5, *[[1, 2, 4]] * 3, *[[1, 2, 5]] * 2, [1, 2, 6], [1, 2]]
    rng.shuffle(log)
    for ids in log:
        parting = tree.insert(np.array(ids, dtype=np.int32), "")
        parting.node.lost["date" if parting.depth == 2 else "id"] += 1
    root = tree.record(lambda before, ids, after: " ".join(map(str, ids)), children=2)
    (node,) = root.children
    assert (root.text, root.requests, root.tokens, root.cause) == ("", 12, 0, None)
    assert (node.text, node.requests, node.start, node.tokens) == ("1 2", 12, 0, 2)
    assert [(each.text, each.requests, each.start) for each in node.children] == [
        ("3", 5, 2),
        ("4", 3, 2),
    ]
    assert (node.other_children, node.other_requests) == (2, 3)
    assert node.children[0].cause is None
    assert node.children[1].cause == "date"


def test_no_more_nodes_are_told_than_asked_for() -> None:
    tree = TokenTree()
    for i in range(50):
        tree.insert(np.array([i % 5, i], dtype=np.int32), "")
    root = tree.record(lambda before, ids, after: None, nodes=4)
    assert sum(1 for _ in records(root)) == 4
    assert [child.requests for child in root.children] == [10, 10, 10]
    assert (root.other_children, root.other_requests) == (2, 20)


def test_an_empty_prompt_and_an_empty_tree() -> None:
    tree = TokenTree()
    assert tree.record(lambda before, ids, after: None).requests == 0
    parting = tree.insert(np.empty(0, dtype=np.int32), "")
    assert (parting.depth, parting.node is tree.root, parting.sibling) == (0, True, None)
    assert tree.record(lambda before, ids, after: None).requests == 1
