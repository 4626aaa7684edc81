"""A log as a trace without text: what it shares, what is in the file, and what is left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from whet.core.errors import StorageError, UsageError
from whet.prompts.analyse import Prompt
from whet.prompts.report import write_workload
from whet.requests import LoggedRequest
from whet.requests.trace import read_trace

Tokens = Sequence[int]


def prompt(ids: Tokens, **fields: object) -> Prompt:
    known = {"at_ns": 10**9, "output_tokens": 5} | fields
    request = LoggedRequest(place="log:1", **known)  # type: ignore[arg-type]
    return Prompt(request, np.array(ids, dtype=np.int32), [])


def write(requests: Iterable[Prompt], path: Path) -> str:
    write_workload(requests, path)
    return path.read_text()


def test_bench_reads_the_same_lengths_times_and_blocks(tmp_path: Path) -> None:
    base = list(range(40))
    log = [
        prompt(base, at_ns=5 * 10**9),
        prompt([*base[:33], 7], at_ns=6 * 10**9, output_tokens=9),
        prompt([9, *base], at_ns=8 * 10**9),
        prompt(base, at_ns=9 * 10**9, cache_salt="other"),
    ]
    assert write_workload(log, tmp_path / "w.jsonl") == 0
    trace = read_trace(tmp_path / "w.jsonl")
    assert (trace.form, trace.block_size) == ("Qwen Bailian", 16)
    assert trace.times_ns == (0, 10**9, 3 * 10**9, 4 * 10**9)
    assert [row.input_tokens for row in trace.rows] == [40, 34, 41, 40]
    assert [row.output_tokens for row in trace.rows] == [5, 9, 5, 5]
    assert [row.hash_ids for row in trace.rows] == [(0, 1), (0, 1), (2, 3), (4, 5)]


def test_nothing_of_the_tokens_or_names_is_in_the_file(tmp_path: Path) -> None:
    """The file is the same for any other tokens that are alike in the same places."""
    rng = np.random.default_rng(0)
    prompts = [[70001, 70002, *rng.integers(70003, 71000, 20).tolist()] for _ in range(30)]
    prompts += [[*ids, 70007] for ids in prompts[:10]]
    other = dict(zip(range(70001, 71000), rng.permutation(999).tolist(), strict=True))
    at_ns = 1_700_000_000_123_456_789
    mine = [prompt(ids, session="alice@example.com", at_ns=at_ns) for ids in prompts]
    others = [prompt([other[i] for i in ids], session="bob", at_ns=7) for ids in prompts]
    text = write(mine, tmp_path / "mine")
    assert text == write(others, tmp_path / "others")
    assert not any(secret in text for secret in ("alice", "7000", "17000000"))


def test_requests_that_cannot_be_played_are_left_out(tmp_path: Path) -> None:
    odd = [prompt([]), prompt([1], at_ns=None), prompt([1], output_tokens=None)]
    assert write_workload([prompt([1]), *odd], tmp_path / "w.jsonl") == 3
    assert len(read_trace(tmp_path / "w.jsonl").rows) == 1


def test_what_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with pytest.raises(UsageError, match="no request of the log has a token"):
        write_workload([prompt([])], path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        write_workload([prompt([1])], tmp_path / "file" / "t.jsonl")
