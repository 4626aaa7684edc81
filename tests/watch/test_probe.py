"""One look at a server: what it can say, and what it does instead."""

import json
import math
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from tests.scripted_server import ScriptedServer, scripted_server
from tests.watch.traffic import simulated_references
from whet.core import counters
from whet.watch.mismatches import mismatches
from whet.watch.observation import GOLDEN_PER_PERIOD
from whet.watch.probe import (
    Target,
    identity_of,
    next_probes,
    observe,
    probe_share,
    read_scrape,
)

REFERENCES = simulated_references()
ABSURD = (math.nan, math.inf, 10**400, "x", [], None)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server(model="target", tokens_per_chunk=4) as running:
        yield running


def target(url: str) -> Target:
    return Target(url=url, envelope=REFERENCES.envelope, golden=REFERENCES.golden, timeout_s=2.0)


def silence(url: str) -> str:
    look = observe(target(url), turn=0, cursor=0)
    assert look.silence is not None
    ((kind, words),) = mismatches(look, None, REFERENCES, None).items()
    assert look.silence == f"{kind}: {words}", "the words do not repeat the name"
    return look.silence


def test_a_server_that_answers(server: ScriptedServer) -> None:
    look = observe(target(server.url), turn=0, cursor=0)
    assert look.silence is None
    assert look.models == {"target": None}
    assert look.version == "scripted"
    assert look.speed is not None
    assert (look.speed.tokens, look.speed.chunks) == (32, 8)
    assert look.answers is not None
    assert look.before is not None
    assert look.after is not None


def test_nothing_listens() -> None:
    assert silence("http://127.0.0.1:9").startswith("unreachable: http://127.0.0.1:9")


def test_a_key_is_missing(server: ScriptedServer) -> None:
    server.script = replace(server.script, get_status=401)
    assert silence(server.url).startswith("unauthorized: ")


def test_a_server_that_hangs_is_given_up_after_the_timeout(server: ScriptedServer) -> None:
    server.script = replace(server.script, ttft_s=30.0)
    began = time.monotonic()
    look = observe(target(server.url), turn=None, cursor=0)
    assert look.silence is None
    look = observe(target(server.url), turn=0, cursor=0)
    assert time.monotonic() - began < 25
    assert "hung" in mismatches(look, None, REFERENCES, None)


def test_a_server_without_metrics_is_watched_by_its_answers(server: ScriptedServer) -> None:
    server.script = replace(server.script, metrics=False)
    look = observe(target(server.url), turn=0, cursor=0)
    assert look.before is None
    assert look.speed is not None
    assert mismatches(look, None, REFERENCES, None)["metrics_missing"]
    without = replace(REFERENCES, envelope=replace(REFERENCES.envelope, series=()))
    assert "metrics_missing" not in mismatches(look, None, without, None)


@pytest.mark.parametrize("data", [None, "x", {"a": 1}, ["x"], [{"id": "target"}], [[]]])
def test_a_list_of_models_that_is_none(server: ScriptedServer, data: object) -> None:
    answer, models = server._get, (200, "application/json", json.dumps({"data": data}))
    server._get = lambda path: models if path == "/v1/models" else answer(path)  # type: ignore[method-assign]
    look = observe(target(server.url), turn=None, cursor=0)
    assert ("wrong_model" in mismatches(look, None, REFERENCES, None)) == (
        data != [{"id": "target"}]
    )


@pytest.mark.parametrize(
    "reply",
    [
        {"choices": 5},
        {"choices": "abc"},
        {"choices": [None]},
        {"choices": {"a": 1}},
        {"choices": [{"text": 5}]},
        {"choices": [{"message": "x"}]},
        {"choices": [{"logprobs": [1]}]},
        {"choices": [{"logprobs": {"top_logprobs": 5}}]},
        {"choices": [{"logprobs": {"token_logprobs": {"0": 1}}}]},
        {"usage": [1]},
        *({"choices": [{"logprobs": {"top_logprobs": [{"token_id:5": x}]}}]} for x in ABSURD),
    ],
    ids=lambda reply: str(reply)[:60],
)
def test_an_answer_of_another_form_ends_no_watch(reply: dict[str, Any]) -> None:
    """It is no figure either: one that is not finite would stay in the stored state."""
    with scripted_server(model="target", tokens_per_chunk=4, completion=reply) as server:
        look = observe(target(server.url), turn=0, cursor=0)
    assert look.speed is not None
    assert look.answers is not None
    assert look.answers.logprobs == {}
    assert look.answers.error or look.answers.broken
    assert look.chat_prompt_tokens is None


def test_metrics_alone_are_refused(server: ScriptedServer) -> None:
    server.script = replace(server.script, metrics_status=403)
    look = observe(target(server.url), turn=None, cursor=0)
    assert look.silence is None
    assert "metrics_missing" in mismatches(look, None, REFERENCES, None)


def test_no_probe_is_sent_while_requests_wait(server: ScriptedServer) -> None:
    server.counters['vllm:num_requests_waiting{model_name="target"}'] = 3.0
    look = observe(target(server.url), turn=0, cursor=0)
    assert look.skipped == "requests wait"
    assert server.requests == []


def test_another_model_gets_no_probe(server: ScriptedServer) -> None:
    server.script = replace(server.script, model="other")
    look = observe(target(server.url), turn=0, cursor=0)
    assert server.requests == []
    assert "wrong_model" in mismatches(look, None, REFERENCES, None)


def test_a_period_without_a_turn_reads_only(server: ScriptedServer) -> None:
    first = observe(target(server.url), turn=0, cursor=0)
    server.requests.clear()
    look = observe(target(server.url), turn=None, cursor=0, checked=identity_of(first))
    assert look.before is not None
    assert server.requests == []


def test_a_server_that_was_not_checked_is_asked_the_whole_set(server: ScriptedServer) -> None:
    first = observe(target(server.url), turn=None, cursor=0)
    assert first.answers is not None
    assert REFERENCES.golden is not None
    whole = len(server.requests)
    server.requests.clear()
    observe(target(server.url), turn=0, cursor=0, checked=identity_of(first))
    assert whole - len(server.requests) == len(REFERENCES.golden.probes) - GOLDEN_PER_PERIOD
    server.counters[counters.PROCESS_START] = 99.0
    server.requests.clear()
    observe(target(server.url), turn=None, cursor=0, checked=identity_of(first))
    assert len(server.requests) == whole


def test_a_probe_that_times_out_while_tokens_come_is_no_hang(server: ScriptedServer) -> None:
    server.script = replace(server.script, ttft_s=30.0)
    tokens = count(1)
    server.metrics_text = lambda: f"{counters.GENERATED} {next(tokens)}\n"  # type: ignore[method-assign]
    look = observe(target(server.url), turn=0, cursor=0)
    assert look.speed_error is not None
    assert not {"hung", "probe_failed"} & mismatches(look, None, REFERENCES, None).keys()


def test_a_server_that_stands_still_is_probed_whatever_waits(server: ScriptedServer) -> None:
    first = observe(target(server.url), turn=0, cursor=0)
    server.counters |= {counters.RUNNING: 3.0, counters.WAITING: 30.0, counters.GENERATED: 5.0}
    last = observe(target(server.url), turn=None, cursor=0, checked=identity_of(first)).before
    server.requests.clear()
    observe(target(server.url), turn=None, cursor=0, checked=identity_of(first))
    assert server.requests == []
    observe(target(server.url), turn=None, cursor=0, checked=identity_of(first), last=last)
    assert server.requests


def test_a_server_that_takes_connections_and_says_nothing_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        said = silence(f"http://127.0.0.1:{listening.getsockname()[1]}")
    assert said.startswith("hung: ")


def test_every_golden_probe_has_its_turn() -> None:
    golden = REFERENCES.golden
    assert golden is not None
    asked = [probe.id for at in range(4) for probe in next_probes(golden, at * GOLDEN_PER_PERIOD)]
    assert sorted(asked) == sorted(probe.id for probe in golden.probes)


def test_the_probes_take_less_than_one_percent_of_the_demo() -> None:
    share = probe_share(target("http://127.0.0.1:9"), 60.0)
    assert 0 < share < 0.01
    assert probe_share(target("http://127.0.0.1:9"), 1.0) == pytest.approx(60 * share)


def test_names_are_counted_and_a_bad_line_is_left_out() -> None:
    text = "# HELP x\nvllm:a_total 1\nvllm:b 2\nprocess_start_time_seconds 5\nvllm:c{ broken\n\n"
    scrape = read_scrape(text, at_s=0.0)
    assert (scrape.names, scrape.other_names) == (3, 1)
    assert scrape.values["vllm:a_total"] == 1
    assert scrape.process_start == 5


def test_two_engines_half_full_are_half_full() -> None:
    text = "".join(f'vllm:kv_cache_usage_perc{{engine="{at}"}} 0.5\n' for at in range(2))
    assert read_scrape(text, at_s=0.0).values["vllm:kv_cache_usage_perc"] == 0.5


def test_an_engine_s_own_names_are_read_as_those_of_the_run() -> None:
    renamed = {"sglang:generation_tokens_total": counters.GENERATED}
    scrape = read_scrape("sglang:generation_tokens_total 7\n", at_s=0.0, renamed=renamed)
    assert (scrape.names, scrape.values[counters.GENERATED]) == (1, 7)
