"""What two requests have in common, before and after their text was taken away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.core.errors import StorageError, UsageError
from whet.prompts.analyse import Prompt
from whet.prompts.writers import write_prefix_trace
from whet.requests import LoggedRequest
from whet.requests.prefix_trace_file import (
    PrefixTrace,
    PrefixTraceFacts,
    read_prefix_trace,
    regenerate,
)

Tokens = Sequence[int]

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=14)


def prompt(ids: Tokens, **fields: object) -> Prompt:
    request = LoggedRequest(place="log:1", **fields)  # type: ignore[arg-type]
    return Prompt(request, np.array(ids, dtype=np.int32), np.empty(0, dtype=np.uint64), 0)


def asked(prompts: Iterable[Tokens], **same: object) -> list[Prompt]:
    return [prompt(ids, **same) for ids in prompts]


def anonymised(requests: Iterable[Prompt]) -> PrefixTrace:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        facts = write_prefix_trace(requests, path)
        assert [file.name for file in path.parent.iterdir()] == ["trace.jsonl"]
        trace = read_prefix_trace(path)
    assert trace.facts == facts
    return trace


def again(trace: PrefixTrace) -> list[list[int]]:
    return [ids.tolist() for ids in regenerate(trace, range(5000, 5100), 1)]


def common(one: Tokens, other: Tokens) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def every_common(prompts: Sequence[Tokens]) -> list[list[int]]:
    """For each prompt, the beginning that it has in common with each before."""
    return [[common(ids, other) for other in prompts[:at]] for at, ids in enumerate(prompts)]


def found_blocks(prompts: Sequence[Tokens], size: int) -> int:
    """Tokens in full blocks that a request before left, counted over the ids themselves."""
    seen: set[tuple[int, ...]] = set()
    hits = 0
    for ids in prompts:
        ends = range(size, len(ids) + 1, size)
        paths = [tuple(ids[:end]) for end in ends]
        hits += size * sum(path in seen for path in paths if len(path) < len(ids))
        seen.update(paths)
    return hits


@given(PROMPTS)
@settings(max_examples=60, deadline=None)
def test_any_two_requests_share_as_many_tokens_as_before(prompts: list[list[int]]) -> None:
    trace = anonymised(asked(prompts))
    before = every_common(prompts)
    assert [request.shared for request in trace.requests] == [max(s, default=0) for s in before]
    assert every_common(again(trace)) == before


@pytest.mark.parametrize("size", [8, 16, 32, 64, 128])
def test_the_hits_are_the_same_at_every_block_size(size: int) -> None:
    rng = np.random.default_rng(5)
    base = rng.integers(0, 1000, 700).tolist()
    prompts = [
        [*base[: int(cut)], *rng.integers(0, 1000, int(own)).tolist()]
        for cut, own in zip(rng.integers(0, 700, 60), rng.integers(1, 200, 60), strict=True)
    ]
    trace = anonymised(asked(prompts))
    assert trace.hits(size).hit_tokens == found_blocks(prompts, size)
    assert found_blocks(again(trace), size) == found_blocks(prompts, size)


def write(requests: Iterable[Prompt], path: Path) -> str:
    write_prefix_trace(requests, path)
    return path.read_text()


def test_nothing_of_the_tokens_or_names_is_in_the_file(tmp_path: Path) -> None:
    """The file is the same for any other tokens that are alike in the same places."""
    rng = np.random.default_rng(0)
    prompts = [[70001, 70002, *rng.integers(70003, 71000, 20).tolist()] for _ in range(30)]
    prompts += [[*ids, 70007] for ids in prompts[:10]]
    other = dict(zip(range(70001, 71000), rng.permutation(999).tolist(), strict=True))
    at_ns = 1_700_000_000_123_456_789
    mine = asked(prompts, session="alice@example.com", at_ns=at_ns)
    others = asked([[other[i] for i in ids] for ids in prompts], session="bob", at_ns=7)
    text = write(mine, tmp_path / "mine")
    assert text == write(others, tmp_path / "others")
    assert not any(secret in text for secret in ("alice", "7000", "17000000"))


def test_times_count_from_the_first_and_sessions_are_numbered() -> None:
    trace = anonymised(
        [
            prompt([1, 2], session="b"),
            prompt([], at_ns=900),
            prompt([1, 2], at_ns=1000, session="a", output_tokens=5),
            prompt([1, 2], at_ns=1250, session="b"),
        ]
    )
    assert [request.at_ns for request in trace.requests] == [None, 0, 250]
    assert [request.session for request in trace.requests] == [0, 1, 0]
    assert [request.output_tokens for request in trace.requests] == [None, 5, None]
    assert trace.facts == PrefixTraceFacts(
        granularity=1, requests=3, prompt_tokens=6, shared_tokens=4, left_out=1
    )


def test_what_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with pytest.raises(UsageError, match="no request with a token"):
        write_prefix_trace(asked([[]]), path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        write_prefix_trace(asked([[1]]), tmp_path / "file" / "t.jsonl")
