"""A prefix trace as a workload, against counts made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from whet.core.errors import UsageError
from whet.core.load import Load
from whet.load.plan import Draw
from whet.load.prefix_traces import as_trace, load_prefix_trace
from whet.requests.prefix_trace_file import PrefixRequest, PrefixTrace, PrefixTraceFacts
from whet.requests.trace import cut_trace

IDS = tuple(range(100, 4000))
TRACE = PrefixTrace(
    path="by hand",
    facts=PrefixTraceFacts(
        granularity=1, requests=4, prompt_tokens=160, shared_tokens=72, left_out=3
    ),
    requests=(
        PrefixRequest(length=40, output_tokens=8, at_ns=0),
        PrefixRequest(length=60, parent=0, shared=40, output_tokens=9, at_ns=2_000_000_000),
        PrefixRequest(length=32, parent=1, shared=32, output_tokens=7, at_ns=4_000_000_000),
        PrefixRequest(length=28, at_ns=4_000_000_000, output_tokens=6),
    ),
)
DRAW = Draw(requests=4, load=Load.at(2), trial=0, block_size=16)


def test_a_load_sends_the_traces_lengths_and_finds_what_it_shares() -> None:
    """32 of 40 shared, and 16 of 32, whose last block holds the last token."""
    load = load_prefix_trace(TRACE, IDS, draw=DRAW, seed=0)
    requests = load.requests
    assert [len(request.prompt_token_ids) for request in requests] == [40, 60, 32, 28]
    assert [request.max_tokens for request in requests] == [8, 9, 7, 6]
    assert [request.prefix_id for request in requests] == ["found-0", "found-0", "found-0", None]
    assert load.facts.expected_hit_rate == 48 / 160


def test_every_trial_has_tokens_of_its_own() -> None:
    def first(draw: Draw, seed: int = 0) -> tuple[int, ...]:
        [request, *_] = load_prefix_trace(TRACE, IDS, draw=draw, seed=seed).requests
        return request.prompt_token_ids

    draws = [first(DRAW), first(replace(DRAW, trial=1)), first(replace(DRAW, load=Load.at(3)))]
    assert len({*draws, first(DRAW, seed=1)}) == 4
    assert first(DRAW) == first(replace(DRAW, requests=1))


def test_answers_of_no_known_length_are_refused() -> None:
    unknown = replace(TRACE, requests=(PrefixRequest(length=4), *TRACE.requests[3:]))
    two = replace(DRAW, requests=2)
    with pytest.raises(UsageError, match="1 of the requests in by hand have no answer"):
        load_prefix_trace(unknown, IDS, draw=two, seed=0)


@pytest.mark.parametrize("requests", [0, 5])
def test_more_requests_than_there_are_or_none_are_refused(requests: int) -> None:
    with pytest.raises(UsageError, match=f"and {requests} are asked for"):
        load_prefix_trace(TRACE, IDS, draw=replace(DRAW, requests=requests), seed=0)


def test_a_prefix_trace_can_be_cut_as_any_other() -> None:
    trace = as_trace(TRACE)
    assert (trace.left_out, trace.rate_rps) == (3, 0.75)
    assert [row.input_tokens for row in trace.rows] == [40, 60, 32, 28]
    assert cut_trace(trace, duration_s=3).times_ns == (0, 2_000_000_000)
