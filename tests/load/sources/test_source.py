"""What a run of ``whet bench`` is built of, by source."""

from __future__ import annotations

import json
import math
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.load.requests import bench_request
from tests.scripted_server import scripted_server
from whet.core.errors import UsageError
from whet.core.protocols import Silent
from whet.demo import pair_paths
from whet.flow.bench.run import reach
from whet.load.arrivals import Arrivals
from whet.load.lengths import LONGEST, SharedPrefixes, fixed
from whet.load.plan import PlannedLoad
from whet.load.sources.replay import open_rows
from whet.load.sources.request import BenchRequest, Source, Target
from whet.load.sources.source import build_load
from whet.requests import LoggedRequest
from whet.requests.trace import Trace

FOLDER = Path(pair_paths()[0])
TARGET = Target(model="m", tokenizer=FOLDER)


def asked(source: Source | None, requests: int, **more: object) -> BenchRequest:
    return bench_request(requests=requests, source=source, **more)


def traced(*rows: LoggedRequest) -> Trace:
    return Trace(path="trace", form="Mooncake", rows=rows, left_out=0)


def hashed(tokens: int, *ids: int) -> LoggedRequest:
    return LoggedRequest(place="", at_ns=0, prompt_tokens=tokens, output_tokens=1, hash_ids=ids)


def prompts(load: PlannedLoad) -> list[tuple[int, ...]]:
    return [request.prompt_token_ids for request in load.workload.requests]


def test_equal_hash_ids_are_equal_blocks_in_a_run_and_fresh_ones_in_the_next() -> None:
    trace = traced(hashed(1024, 4, 5), hashed(1025, 4, 5, 6), hashed(1024, 9, 5), hashed(100))
    request = asked(trace, 4, warmup=3)
    one, again, other = (prompts(build_load(request, TARGET, number)) for number in (0, 0, 1))
    assert [len(prompt) for prompt in one] == [1024, 1025, 1024, 100]
    assert one == again
    assert one[0] == one[1][:1024]
    assert one[0][:512] != one[2][:512]
    assert one[0][512:] == one[2][512:]
    assert not set(one) & set(other)


def test_the_hit_rate_of_hash_ids_is_that_of_an_empty_cache() -> None:
    trace = traced(hashed(600, 1, 2), hashed(600, 1, 3), hashed(600, 1, 4))
    facts = build_load(asked(trace, 3), TARGET, 0).workload.facts
    assert facts.expected_hit_rate == pytest.approx(2 * 512 / 1800)


class Notes(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, message: str) -> None:
        self.said.append(message)


@pytest.mark.parametrize(
    ("exported", "size", "said"),
    [
        ('vllm:cache_config_info{block_size="32",engine="0"}', 32, "KV blocks of 32 tokens"),
        ('vllm:cache_config_info{block_size="None",engine="0"}', 16, "16 tokens are assumed"),
        ('vllm:cache_config_info{block_size="0"}', 16, "16 tokens are assumed"),
        ("sglang:num_running_reqs", 16, "16 tokens are assumed"),
        (None, 16, "16 tokens are assumed"),
    ],
)
def test_the_size_of_a_block_is_the_server_s_own(
    exported: str | None, size: int, said: str
) -> None:
    notes = Notes()
    with scripted_server(metrics=exported is not None) as server:
        if exported is not None:
            server.counters[exported] = 1.0
        target = reach(asked(None, 4, url=server.url, tokenizer=str(FOLDER)), notes)
    assert target.block_size == size
    assert sum(said in line for line in notes.said) == 1


PREFIXED = SharedPrefixes(count=1, tokens=40)


@pytest.mark.parametrize(
    ("source", "more", "rates"),
    [
        (None, {"prefixes": PREFIXED, "inputs": fixed(24)}, (32 / 64, 40 / 64)),
        (traced(hashed(601, 1), hashed(601, 1)), {}, (512 / 1202, 510 / 1202)),
    ],
)
def test_the_hit_rate_counts_blocks_of_that_size(
    source: Source | None, more: dict[str, object], rates: tuple[float, float]
) -> None:
    """In blocks of 16 and of 10."""
    for size, rate in zip((16, 10), rates, strict=True):
        load = build_load(asked(source, 2, **more), replace(TARGET, block_size=size), 0)
        assert load.workload.facts.block_size == size
        assert load.workload.facts.expected_hit_rate == pytest.approx(rate)


def test_rows_of_a_dataset_share_blocks_of_that_size(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [
        {"prompt": " ".join(["the"] * 39) + f" {number}", "output_tokens": 2} for number in "12"
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    request = asked(file, 2)
    target = replace(TARGET, rows=open_rows(request, FOLDER, Silent()))
    facts = [
        build_load(request, replace(target, block_size=size), 0).workload.facts for size in (16, 10)
    ]
    assert [item.block_size for item in facts] == [16, 10]
    assert [item.expected_hit_rate * item.input_tokens_mean for item in facts] == [32, 40]


@pytest.mark.parametrize(
    ("source", "more"),
    [
        (traced(*[hashed(4000, 1, at + 2) for at in range(20)]), {}),
        (None, {"inputs": fixed(4000)}),
        (None, {"inputs": fixed(4000), "form": "text"}),
        (None, {"inputs": fixed(4000), "form": "chat"}),
    ],
)
def test_a_token_costs_a_reference_and_not_a_number_of_its_own(
    source: Source | None, more: dict[str, object]
) -> None:
    """Eight bytes each, and a text where one is sent; a number of its own would be 32 more."""
    request = asked(source, 20, **more)
    build_load(replace(request, requests=1), TARGET, 0)  # what is loaded once
    tracemalloc.start()
    try:
        load = build_load(request, TARGET, 0)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    tokens = sum(len(prompt) for prompt in prompts(load))
    assert tokens == 20 * 4000
    assert kept < 20 * tokens


def test_a_trace_is_prepared_in_little_more_than_its_prompts_take() -> None:
    """No table of all its blocks stands beside them; the vocabulary does, for a while."""
    trace = traced(*[hashed(4096, 1, *range(8 * at + 2, 8 * at + 9)) for at in range(80)])
    build_load(asked(trace, 1), TARGET, 0)  # what is loaded once
    tracemalloc.start()
    try:
        build_load(asked(trace, 80), TARGET, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * 80 * 4096


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=size))


@pytest.mark.parametrize(
    ("source", "more"),
    [
        (traced(hashed(400_000, 1), hashed(600_000, 1)), {}),
        (traced(hashed(400_000), hashed(600_000)), {}),
        (traced(replace(hashed(10**6), prompt="x")), {}),
        (None, {"inputs": fixed(500_000)}),
        (None, {"prefixes": SharedPrefixes(count=1, tokens=500_000), "inputs": fixed(1)}),
    ],
)
def test_prompts_that_do_not_fit_into_memory_are_refused_before_they_are_written(
    source: Source | None, more: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 bytes a token, 10⁶ tokens: 32 MB."""
    free(monkeypatch, 31_000_000)
    count = len(source.rows) if isinstance(source, Trace) else 2
    with pytest.raises(
        UsageError, match=r"1,000,00\d tokens.*0.032 GB.*0.031 GB.*--trace-duration"
    ):
        build_load(asked(source, count, **more), TARGET, 0)


def test_prompts_that_fit_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 40_000)
    build_load(asked(traced(hashed(600, 1), hashed(600, 1)), 2), TARGET, 0)


def test_a_trace_may_be_sent_at_another_rate() -> None:
    lengths = {"prompt_tokens": 8, "output_tokens": 2}
    rows = [LoggedRequest(place="", at_ns=at * 10**9, **lengths) for at in range(3)]
    own = asked(traced(*rows), 3, arrivals=Arrivals(speed=2.0))
    assert build_load(own, TARGET, 0).offsets_ns == (0, 500_000_000, 1_000_000_000)
    assert own.rate_rps == pytest.approx(2.0)
    other = replace(own, arrivals=Arrivals(rate_rps=10.0, burstiness=math.inf))
    assert build_load(other, TARGET, 0).offsets_ns == (0, 100_000_000, 200_000_000)
    assert other.rate_rps == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("row", "requests", "told"),
    [
        (hashed(5), 2, "has 1 requests and 2 are asked for"),
        (hashed(LONGEST + 1), 1, "request 1: 10,000,001 tokens in"),
    ],
)
def test_a_trace_that_cannot_be_sent(row: LoggedRequest, requests: int, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        build_load(asked(traced(row), requests), TARGET, 0)


def test_runs_send_rows_of_their_own_while_there_are_such(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"question {number}", "output_tokens": 2} for number in range(9)]
    file.write_text("\n".join(map(json.dumps, rows)))
    request = asked(file, 2, warmup=1, runs=3)
    target = replace(TARGET, rows=open_rows(request, FOLDER, Silent()))
    loads = [build_load(request, target, number) for number in range(3)]
    sent = [call.prompt for load in loads for call in (load.calls or ())]
    warm = [call.prompt for load in loads for call in (load.warmup_calls or ())]
    assert (len(sent), len(warm)) == (6, 3)
    assert set(sent) | set(warm) == {row["prompt"] for row in rows}
    assert all(load.workload.facts.requests == 2 for load in loads)
