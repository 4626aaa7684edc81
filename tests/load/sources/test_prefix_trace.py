"""Prefix traces as a run of ``whet bench``: what is sent, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.load.requests import bench_request, change_request
from tests.scripted_server import scripted_server
from whet.core.errors import UsageError
from whet.core.protocols import Silent
from whet.demo import pair_paths
from whet.flow.bench.run import bench
from whet.load.arrivals import Arrivals
from whet.load.lengths import fixed
from whet.load.prefix_traces import as_trace
from whet.load.sources.request import (
    BenchLoad,
    BenchRequest,
    PrefixReplay,
    Target,
)
from whet.load.sources.source import build_load
from whet.requests.prefix_trace_file import PrefixRequest, PrefixTrace, PrefixTraceFacts

FOLDER = Path(pair_paths()[0])
TARGET = Target(model="m", tokenizer=FOLDER)


def prefixed(*requests: PrefixRequest) -> PrefixReplay:
    facts = PrefixTraceFacts(
        granularity=1,
        requests=len(requests),
        prompt_tokens=sum(one.length for one in requests),
        shared_tokens=sum(one.shared for one in requests),
    )
    trace = PrefixTrace(path="by hand", facts=facts, requests=requests)
    return PrefixReplay(trace=trace, timeline=as_trace(trace))


def asked(source: PrefixReplay, **more: object) -> BenchRequest:
    requests = len(source.timeline.rows)
    plain = bench_request(tokenizer=str(FOLDER), requests=requests, source=source, warmup=3)
    return change_request(plain, **more)


def prompts(load: BenchLoad) -> list[tuple[int, ...]]:
    return [request.prompt_token_ids for request in load.workload.requests]


def common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


class Said(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(
        "whet.load.sources.drawn.psutil.virtual_memory", lambda: SimpleNamespace(available=size)
    )


EVEN = prefixed(
    PrefixRequest(length=40, output_tokens=8),
    *[PrefixRequest(length=40, parent=0, shared=32, output_tokens=8) for _ in range(4)],
)
"""Four of five requests find 32 of their 40 tokens: 64 %."""


@pytest.mark.parametrize(
    ("share", "concurrency", "warned", "told"),
    [
        (0.64, 1, False, "prefix hit rate 64.0%, built for 64.0%"),
        (0.625, 3, False, "prefix hit rate 62.5%, built for 64.0%"),
        (0.7, 1, True, "prefix hit rate 70.0%, built for 64.0%: prompts of an earlier run were"),
        (0.5, 1, True, "prefix hit rate 50.0%, built for 64.0%: the cache did not keep what"),
        (0.5, 3, True, "give --max-concurrency 1 to know"),
    ],
)
def test_what_was_hit_is_said_beside_what_it_was_built_for(
    share: float, concurrency: int, warned: bool, told: str
) -> None:
    said = Said()
    with scripted_server(hit_share=share) as server:
        request = asked(EVEN, url=server.url, concurrency=concurrency)
        bench(request, said)
    assert sum(told in line for line in said.warnings) == warned
    assert sum(told in line for line in said.notes) == (not warned)


FIRST = PrefixRequest(length=40, output_tokens=8, at_ns=0)
SECOND = PrefixRequest(length=60, parent=0, shared=40, output_tokens=9, at_ns=2 * 10**9)
THIRD = PrefixRequest(length=32, parent=1, shared=32, output_tokens=0, at_ns=4 * 10**9)


def test_a_prefix_trace_is_played_at_its_times_and_shares_what_it_says() -> None:
    """32 tokens of 40 are found, and 16 of 32, whose last block holds the last token."""
    source = prefixed(FIRST, SECOND, THIRD)
    request = asked(source, arrivals=Arrivals(kind="trace", speed=2.0))
    load = build_load(request, TARGET, 0)
    sent = prompts(load)
    assert [len(ids) for ids in sent] == [40, 60, 32]
    assert (common(sent[0], sent[1]), common(sent[1], sent[2])) == (40, 32)
    assert [plan.max_tokens for plan in load.workload.requests] == [8, 9, 1]
    assert load.offsets_ns == (0, 10**9, 2 * 10**9)
    assert load.workload.facts.expected_hit_rate == pytest.approx(48 / 132)
    assert request.rate_rps == pytest.approx(1.0)
    assert not set(sent) & set(prompts(build_load(request, TARGET, 1)))
    assert len(load.warmup) == 3


def test_answers_of_unknown_length_are_given_one() -> None:
    source = prefixed(FIRST, replace(SECOND, output_tokens=None), THIRD)
    with pytest.raises(UsageError, match=r"1 of the requests in by hand do not .*--output-len"):
        build_load(asked(source), TARGET, 0)
    load = build_load(asked(source, outputs=fixed(5)), TARGET, 0)
    assert [plan.max_tokens for plan in load.workload.requests] == [8, 5, 1]


def test_a_prefix_trace_has_no_text_and_must_fit_into_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = prefixed(FIRST, SECOND)
    with pytest.raises(UsageError, match="exact in token ids alone"):
        build_load(asked(source, form="text"), TARGET, 0)
    free(monkeypatch, 32 * 100 - 1)
    with pytest.raises(UsageError, match="prompts of 100 tokens in all"):
        build_load(asked(source), TARGET, 0)
