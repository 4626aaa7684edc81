"""Prompts regenerated from a prefix trace, against traces and beginnings written by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from whet.core.errors import UsageError
from whet.requests.prefix_trace_file import (
    PrefixRequest,
    PrefixTrace,
    PrefixTraceFacts,
    header_line,
    is_prefix_trace,
    owners,
    read_prefix_trace,
    regenerate,
    request_line,
)

WORDS = tuple(range(100, 4000))


def trace_of(*requests: PrefixRequest) -> PrefixTrace:
    facts = PrefixTraceFacts(
        granularity=1,
        requests=len(requests),
        prompt_tokens=sum(request.length for request in requests),
        shared_tokens=sum(request.shared for request in requests),
    )
    return PrefixTrace(path="by hand", facts=facts, requests=requests)


def written(path: Path, trace: PrefixTrace, *more: str) -> Path:
    lines = [header_line(trace.facts), *map(request_line, trace.requests), *more]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


CHAIN = trace_of(
    PrefixRequest(length=40, output_tokens=8, at_ns=0, session=0),
    PrefixRequest(length=60, parent=0, shared=40, output_tokens=8, at_ns=5, session=0),
    PrefixRequest(length=33, parent=1, shared=32, at_ns=5),
    PrefixRequest(length=32, parent=2, shared=32, at_ns=9),
    PrefixRequest(length=16, output_tokens=1, at_ns=9, session=1),
)


def test_a_file_reads_back_as_it_was(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", CHAIN)
    assert is_prefix_trace(path)
    assert read_prefix_trace(path) == replace(CHAIN, path=str(path))
    assert path.read_text().splitlines()[5] == (
        '{"length": 16, "output": 1, "at_ns": 9, "session": 1}'
    )


def test_the_beginning_of_a_file_can_be_read_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", CHAIN)
    assert read_prefix_trace(path, max_requests=2).requests == CHAIN.requests[:2]
    assert read_prefix_trace(path, max_requests=9).requests == CHAIN.requests


@pytest.mark.parametrize("text", ["", "not JSON\n", '{"form": "other"}\n', "[1]\n"])
def test_another_file_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    assert not is_prefix_trace(path)
    assert not is_prefix_trace(tmp_path / "nowhere")
    with pytest.raises(UsageError):
        read_prefix_trace(path)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            '{"length": 4, "parent": 5, "shared": 1}',
            "line 7: its parent 5 is not an earlier request",
        ),
        ('{"length": 4, "parent": 0, "shared": 5}', "line 7: it shares 5 tokens"),
        ('{"length": 99, "parent": 0, "shared": 41}', "line 7: it shares 41 tokens"),
        ('{"length": 4, "shared": 1}', "line 7: it shares 1 tokens with no parent"),
        ('{"length": 0}', "no length of at least 1"),
        ('{"length": 1.5}', "length is 1.5, not a whole number"),
        ('{"length": 4, "at_ns": 8}', "line 7: time goes back"),
        ('{"length": 4, "ouput": 8}', "unknown key 'ouput'; did you mean 'output'"),
        ('{"length": 4', "line 7: not JSON"),
        ("4", "line 7: not a JSON object"),
    ],
)
def test_a_line_that_cannot_be_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        read_prefix_trace(written(tmp_path / "t.jsonl", CHAIN, line))


def test_another_version_and_a_cut_file_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", CHAIN)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-1]))
    with pytest.raises(UsageError, match="holds 4 of the 5 requests"):
        read_prefix_trace(path)
    path.write_text(json.dumps({**json.loads(lines[0]), "version": 2}) + "\n")
    with pytest.raises(UsageError, match="version 2"):
        read_prefix_trace(path)


def test_prompts_share_what_the_trace_says_and_no_more() -> None:
    first, second, third, fourth, fifth = (ids.tolist() for ids in regenerate(CHAIN, WORDS, 3))
    assert [len(ids) for ids in (first, second, third, fourth, fifth)] == [40, 60, 33, 32, 16]
    assert second[:40] == first
    assert third[:32] == first[:32]
    assert third[32] != first[32]
    assert fourth == first[:32]
    assert fifth[0] != first[0]
    assert {*second, *third, *fifth} <= set(WORDS)


def test_the_owner_is_who_brought_the_last_shared_token() -> None:
    assert owners(CHAIN) == [None, 0, 0, 0, None]


def test_every_branch_of_one_place_begins_with_its_own_token() -> None:
    """Four ids, and a parent and three children that part after its second token."""
    children = [PrefixRequest(length=5, parent=0, shared=2) for _ in range(3)]
    trace = trace_of(PrefixRequest(length=4), *children)
    prompts = [ids.tolist() for ids in regenerate(trace, (7, 8, 9, 9, 10), 0)]
    assert {tuple(prompt[:2]) for prompt in prompts} == {tuple(prompts[0][:2])}
    assert sorted(prompt[2] for prompt in prompts) == [7, 8, 9, 10]


def test_too_few_ids_for_the_branches_are_refused() -> None:
    trace = trace_of(*(PrefixRequest(length=2) for _ in range(3)))
    with pytest.raises(UsageError, match="request 2 goes on differently than 2 others"):
        list(regenerate(trace, (7, 8), 0))
    with pytest.raises(UsageError, match="seed"):
        regenerate(trace, WORDS, -1)


def test_the_same_seed_gives_the_same_prompts_and_another_other_ones() -> None:
    def prompts(seed: int) -> list[list[int]]:
        return [ids.tolist() for ids in regenerate(CHAIN, WORDS, seed)]

    assert prompts(1) == prompts(1)
    assert all(a != b for a, b in zip(prompts(1), prompts(2), strict=True))
    shorter = list(regenerate(trace_of(*CHAIN.requests[:3]), WORDS, 1))
    assert [ids.tolist() for ids in shorter] == prompts(1)[:3]


def test_hits_are_full_blocks_without_the_last_token() -> None:
    """By hand: 0, 40, 32, 31 (of 32, which are all shared) and 0 tokens that can be found."""
    assert [CHAIN.hits(size).hit_tokens for size in (1, 8, 16, 32, 64)] == [103, 96, 80, 64, 0]
    assert CHAIN.hits(16).prompt_tokens == 181
