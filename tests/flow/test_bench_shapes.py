"""Shapes and prefix traces as a run of ``whet bench``: what is sent, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.scripted_server import scripted_server
from whet.core.errors import UsageError
from whet.core.protocols import Silent
from whet.demo import pair_paths
from whet.flow.bench import bench
from whet.flow.bench_request import (
    BenchLoad,
    BenchRequest,
    KnownShape,
    PrefixReplay,
    Source,
    Target,
)
from whet.flow.bench_shapes import count_requests
from whet.flow.bench_traffic import build_load
from whet.load.arrivals import Arrivals
from whet.load.lengths import Fixed
from whet.load.prefix_trace_file import PrefixRequest, PrefixTrace, PrefixTraceFacts
from whet.load.prefix_traces import as_trace
from whet.load.shapes import FewShot, Shape, SingleSystem, shape_named

FOLDER = Path(pair_paths()[0])
TARGET = Target(model="m", tokenizer=FOLDER)
CHATS = "multi-turn:conversations=3,turns=3,system_tokens=40,question_tokens=9,answer_tokens=20"


def shaped(words: str) -> KnownShape:
    return KnownShape(words=words, shape=shape_named(words))


def prefixed(*requests: PrefixRequest) -> PrefixReplay:
    facts = PrefixTraceFacts(
        granularity=1,
        requests=len(requests),
        prompt_tokens=sum(one.length for one in requests),
        shared_tokens=sum(one.shared for one in requests),
    )
    trace = PrefixTrace(path="by hand", facts=facts, requests=requests)
    return PrefixReplay(trace=trace, timeline=as_trace(trace))


def asked(source: Source, **more: object) -> BenchRequest:
    requests = (
        count_requests(source.shape)
        if isinstance(source, KnownShape)
        else len(source.timeline.rows)
        if isinstance(source, PrefixReplay)
        else 0
    )
    plain = BenchRequest(
        url="http://x", model=None, tokenizer=str(FOLDER), form="ids", requests=requests,
        source=source, concurrency=1, warmup=3,
    )  # fmt: skip
    return replace(plain, **more)


def prompts(load: BenchLoad) -> list[tuple[int, ...]]:
    return [request.prompt_token_ids for request in load.workload.requests]


def common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def found(sent: Sequence[Sequence[int]], size: int) -> list[int]:
    """Tokens of each prompt that a cache of those before it has, in blocks of ``size``."""
    hits = []
    for at, prompt in enumerate(sent):
        most = max((common(prompt, other) for other in sent[:at]), default=0)
        hits.append(min(most, len(prompt) - 1) // size * size)
    return hits


class Said(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)

    def warn(self, message: str) -> None:
        self.warnings.append(message)


@pytest.mark.parametrize(
    ("words", "rate"),
    [
        # 5 requests find 40 // 16 blocks, of 6 × 50 tokens.
        ("single:requests=6,system_tokens=40,question_tokens=10", 5 * 32 / 300),
        # 2 × 2 find 30 // 16 blocks, of 6 × 35.
        (
            "few-shot:tasks=2,examples=3,example_tokens=10,requests_per_task=3,question_tokens=5",
            4 * 16 / 210,
        ),
        # 2 find 40 // 16 blocks; 3 find 49 // 16, and 78 // 16; of 3 × (49 + 78 + 107).
        (CHATS, (2 * 32 + 3 * (48 + 64)) / 702),
    ],
)
def test_a_server_that_gets_a_shape_can_hit_what_it_was_built_for(words: str, rate: float) -> None:
    said = Said()
    with scripted_server() as server:
        result = bench(replace(asked(shaped(words)), url=server.url, runs=2), said)
        sent = [body["prompt"] for body in server.requests]
    assert result.facts is not None
    assert result.facts.expected_hit_rate == pytest.approx(rate)
    each = len(sent) // 2
    hits = found(sent, 16)
    for run in (sent[:each], sent[each:]):
        timed = hits[:each][3:] if run is sent[:each] else hits[each:][3:]
        assert sum(timed) == pytest.approx(rate * sum(map(len, run[3:])))
    assert [hits[at] for at in (0, 1, 2)] == [0, 0, 0]
    assert f"{words}: {each - 3} requests in order, built for a prefix hit rate of {rate:.1%}" in (
        "\n".join(said.notes)
    )
    assert f"prefix hits are not counted by this server; built for {rate:.1%}" in said.notes


SINGLE = "single:requests=5,system_tokens=32,question_tokens=8"  # 4 × 32 of 200: 64 %


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
        request = asked(shaped(SINGLE), url=server.url, concurrency=concurrency)
        bench(request, said)
    assert sum(told in line for line in said.warnings) == warned
    assert sum(told in line for line in said.notes) == (not warned)


def test_every_run_has_tokens_of_its_own_and_so_has_the_warm_up() -> None:
    request = asked(shaped(CHATS))
    loads = [build_load(request, TARGET, number) for number in (0, 0, 1)]
    one, again, other = map(prompts, loads)
    assert one == again
    assert [len(ids) for ids in one] == [len(ids) for ids in other]
    warm = [plan.prompt_token_ids for plan in loads[0].warmup]
    assert len(warm) == 3
    assert all(common(a, b) < 16 for a in one for b in (*other, *warm))


def test_a_shape_is_sent_as_text_that_shares_as_much() -> None:
    request = asked(shaped(SINGLE), form="text")
    load = build_load(request, TARGET, 0)
    texts = [call.prompt or "" for call in load.calls or ()]
    assert len({text[:40] for text in texts}) == 1
    assert [len(ids) for ids in prompts(load)] == [40] * 5
    assert load.workload.facts.expected_hit_rate == pytest.approx(0.64)
    assert all(call.prompt for call in load.warmup_calls or ())
    with pytest.raises(UsageError, match="give --form ids or --form text"):
        build_load(replace(request, form="chat"), TARGET, 0)


def test_a_shape_may_arrive_at_a_rate() -> None:
    arrivals = Arrivals(kind="constant", rate_rps=10.0)
    load = build_load(asked(shaped(SINGLE), arrivals=arrivals, concurrency=0), TARGET, 0)
    assert load.offsets_ns == (0, 10**8, 2 * 10**8, 3 * 10**8, 4 * 10**8)


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(
        "whet.flow.bench_synthetic.psutil.virtual_memory", lambda: SimpleNamespace(available=size)
    )


@pytest.mark.parametrize(
    ("shape", "free_bytes"),
    [
        (SingleSystem(requests=4, system_tokens=90, question_tokens=10), 32 * 400 - 1),
        (FewShot(requests_per_task=1_000_000), 1_000_000),  # ends long before the last
    ],
)
def test_a_shape_that_does_not_fit_into_memory_is_refused_while_it_is_counted(
    shape: Shape, free_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, free_bytes)
    with pytest.raises(UsageError, match="tokens in all need about"):
        count_requests(shape)
    free(monkeypatch, 32 * 400)
    assert count_requests(SingleSystem(requests=4, system_tokens=90, question_tokens=10)) == 4


FIRST = PrefixRequest(length=40, output_tokens=8, at_ns=0)
SECOND = PrefixRequest(length=60, parent=0, shared=40, output_tokens=9, at_ns=2 * 10**9)
THIRD = PrefixRequest(length=32, parent=1, shared=32, output_tokens=0, at_ns=4 * 10**9)


def test_a_prefix_trace_is_played_at_its_times_and_shares_what_it_says() -> None:
    """32 tokens of 40 are found, and 16 of 32, whose last block holds the last token."""
    source = prefixed(FIRST, SECOND, THIRD)
    request = asked(source, arrivals=Arrivals(kind="trace", speed=2.0), concurrency=0)
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
    load = build_load(asked(source, outputs=Fixed(value=5)), TARGET, 0)
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
