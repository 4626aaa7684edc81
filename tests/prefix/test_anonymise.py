"""What two requests have in common, before and after their text was taken away."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.core.errors import StorageError, UsageError
from whet.core.prefix_trace import PrefixTrace, PrefixTraceFacts, read_prefix_trace, regenerate
from whet.prefix import anonymise
from whet.prefix.anonymise import TokenizedRequest, write_mooncake, write_prefix_trace

Prompt = Sequence[int]

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=14)


def asked(prompts: Iterable[Prompt], **same: object) -> list[TokenizedRequest]:
    return [
        TokenizedRequest(ids=np.array(ids, dtype=np.int32), **same)  # type: ignore[arg-type]
        for ids in prompts
    ]


def anonymised(requests: Iterable[TokenizedRequest], *, round_to: int = 1) -> PrefixTrace:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        facts = write_prefix_trace(requests, path, round_to=round_to)
        assert [file.name for file in path.parent.iterdir()] == ["trace.jsonl"]
        trace = read_prefix_trace(path)
    assert trace.facts == facts
    return trace


def again(trace: PrefixTrace) -> list[list[int]]:
    return [ids.tolist() for ids in regenerate(trace, range(5000, 5100), 1)]


def common(one: Prompt, other: Prompt) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def every_common(prompts: Sequence[Prompt]) -> list[list[int]]:
    """For each prompt, the beginning that it has in common with each before."""
    return [[common(ids, other) for other in prompts[:at]] for at, ids in enumerate(prompts)]


def found_blocks(prompts: Sequence[Prompt], size: int) -> int:
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
@settings(max_examples=150, deadline=None)
def test_any_two_requests_share_as_many_tokens_as_before(prompts: list[list[int]]) -> None:
    trace = anonymised(asked(prompts))
    before = every_common(prompts)
    assert [request.shared for request in trace.requests] == [max(s, default=0) for s in before]
    assert every_common(again(trace)) == before


@given(PROMPTS, st.sampled_from([2, 3, 4]))
@settings(max_examples=100, deadline=None)
def test_rounded_lengths_leave_the_blocks_that_the_multiple_divides(
    prompts: list[list[int]], multiple: int
) -> None:
    trace = anonymised(asked(prompts), round_to=multiple)
    assert {r.length % multiple for r in trace.requests} == {0}
    assert [-(-len(ids) // multiple) for ids in prompts] == [
        request.length // multiple for request in trace.requests
    ]
    for size in (multiple, 2 * multiple):
        hits = found_blocks(prompts, size)
        assert trace.hits(size).hit_tokens == hits
        assert found_blocks(again(trace), size) == hits


def test_a_prompt_longer_than_one_read_is_compared_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(anonymise, "_READ_TOKENS", 4)
    long = list(range(50))
    prompts = [long, [*long[:37], 9, 9], [*long, 1], [*long[:8], 7], [*long, 1], [*long, 1, 2]]
    trace = anonymised(asked(prompts))
    assert [request.shared for request in trace.requests] == [0, 37, 50, 8, 51, 51]


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


def write(requests: Iterable[TokenizedRequest], path: Path) -> str:
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
    ids = np.array([1, 2], dtype=np.int32)
    trace = anonymised(
        [
            TokenizedRequest(ids=ids, session="b"),
            TokenizedRequest(ids=ids[:0], at_ns=900),
            TokenizedRequest(ids=ids, at_ns=1000, session="a", output_tokens=5),
            TokenizedRequest(ids=ids, at_ns=1250, session="b"),
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
    late, early = asked([[1]], at_ns=20), asked([[1]], at_ns=10)
    with pytest.raises(UsageError, match="request 2 of the log is older"):
        write_prefix_trace([*late, *early], path)
    with pytest.raises(UsageError, match="no request with a token"):
        write_prefix_trace(asked([[]]), path)
    with pytest.raises(UsageError, match="multiple of 0"):
        write_prefix_trace(late, path, round_to=0)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="give another place"):
        write_prefix_trace(late, tmp_path / "file" / "t.jsonl")


def test_mooncakes_form_names_equal_blocks_alike(tmp_path: Path) -> None:
    """Blocks of 4 tokens, counted by hand; the third parts from the first inside a block."""
    prompts = [
        [1, 2, 3, 4, 5, 6, 7, 8, 9],
        [1, 2, 3, 4, 5, 6, 7, 8],
        [1, 2, 3, 4, 5, 6, 0, 0, 0],
        [1, 2, 3, 4, 5, 6, 0, 0, 1],
        [1, 2, 3, 4, 5, 6, 7, 8, 9],
        [4, 4],
    ]
    trace = anonymised(asked(prompts, at_ns=3_500_000, output_tokens=6))
    path = tmp_path / "mooncake.jsonl"
    write_mooncake(trace, path, block_tokens=4)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["hash_ids"] for line in lines] == [
        [0, 1, 2],
        [0, 1],
        [0, 3, 4],
        [0, 3, 5],
        [0, 1, 2],
        [6],
    ]
    assert lines[0] == {
        "timestamp": 0,
        "input_length": 9,
        "output_length": 6,
        "hash_ids": [0, 1, 2],
    }


@pytest.mark.parametrize(
    ("same", "missing"), [({"at_ns": 1}, "length of the answer"), ({"output_tokens": 1}, "time")]
)
def test_mooncakes_form_needs_times_and_answers(
    tmp_path: Path, same: dict[str, int], missing: str
) -> None:
    with pytest.raises(UsageError, match=f"request 0 of .* has no {missing}"):
        write_mooncake(anonymised(asked([[1]], **same)), tmp_path / "m.jsonl")
    assert list(tmp_path.iterdir()) == []
