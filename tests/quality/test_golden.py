"""Golden probes: how they are chosen, asked, kept and read back."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.quality.model_server import Body, Reply, model_server
from whet.core.errors import StorageError, UsageError
from whet.core.store import write_json
from whet.quality.asking import ModelEndpoint
from whet.quality.distances import pack
from whet.quality.golden import (
    choose_probes,
    entropies_of,
    read_golden,
    take_golden,
)

PROBES = [(f"d{index}", (index, 7, 8)) for index in range(4)]


def says(top: dict[str, Any]) -> Reply:
    return 200, {"choices": [{"index": 0, "text": "x", "logprobs": {"top_logprobs": [top]}}]}


def endpoint(url: str) -> ModelEndpoint:
    return ModelEndpoint(url=url, model="m", concurrency=16)


def test_each_probe_follows_the_token_that_an_uncounted_pass_chose() -> None:
    # The third request of a prompt on has another likeliest token: it is not the one followed.
    seen: dict[int, itertools.count[int]] = {}

    def answer(body: Body) -> Reply:
        turn = next(seen.setdefault(body["prompt"][0], itertools.count()))
        first, second = (-0.25, -1.5) if turn < 2 else (-0.75, -0.5)
        return says({"token_id:40": first, "token_id:41": second})

    with model_server(answer) as (url, asked):
        found = take_golden(endpoint(url), PROBES, "fp16", repetitions=3)
    assert len(asked) == 4 * (1 + 3)
    assert found.draws == ((-0.25,) * 4, (-0.75,) * 4, (-0.75,) * 4)
    (token,) = found.probes[2].tokens
    assert token.token_id == 40
    assert token.mean == pytest.approx(-1.75 / 3)


def test_replies_are_put_back_to_their_prompts_whatever_the_order_asked() -> None:
    with model_server(lambda body: says({"token_id:9": -1.0 - body["prompt"][0]})) as (url, asked):
        found = take_golden(endpoint(url), PROBES, "fp16", repetitions=2)
    assert found.draws == ((-1.0, -2.0, -3.0, -4.0),) * 2
    orders = {tuple(body["prompt"][0] for body in asked[i : i + 4]) for i in (0, 4, 8)}
    assert len(orders) > 1


def test_a_request_asks_one_greedy_token_by_id_and_no_cached_prefix() -> None:
    with model_server(lambda body: says({"token_id:9": -1.0})) as (url, asked):
        take_golden(endpoint(url), PROBES, "fp16", repetitions=2)
    for body in asked:
        assert (body["max_tokens"], body["temperature"], body["logprobs"]) == (1, 0.0, 5)
        assert body["return_tokens_as_token_ids"] is True
    assert len({body["cache_salt"] for body in asked}) == len(asked)
    # vLLM answers a whole batch by it, also what others asked.
    assert not any("logprob_token_ids" in body for body in asked)


def test_taken_again_the_old_token_is_followed_and_counts_as_the_last_listed_if_it_is_gone() -> (
    None
):
    with model_server(lambda body: says({"token_id:4": -0.5, "token_id:9": -1.0})) as (url, _):
        lower = take_golden(endpoint(url), PROBES, "fp16", follow=[9] * 4, repetitions=2)
    with model_server(lambda body: says({"token_id:4": -0.5, "token_id:5": -3.0})) as (url, _):
        gone = take_golden(endpoint(url), PROBES, "fp16", follow=[9] * 4, repetitions=2)
    assert [p.tokens[0].token_id for p in lower.probes] == [9] * 4
    assert lower.draws == ((-1.0,) * 4,) * 2
    assert gone.draws == ((-3.0,) * 4,) * 2


def test_a_server_that_cannot_say_it_leaves_a_reason_and_no_probes() -> None:
    replies: dict[str, Reply] = {
        "HTTP 400|http_400": (400, {"error": {"message": "no logprobs here"}}),
        "leaves logprobs out": (200, {"choices": [{"index": 0, "text": "x"}]}),
        "by their text": says({" the": -0.5}),
    }
    for words, reply in replies.items():
        with model_server(lambda body, reply=reply: reply) as (url, _):
            found = take_golden(endpoint(url), PROBES, "fp16")
        assert (found.probes, found.draws, found.broken) == ((), (), None)
        assert found.missing is not None
        assert any(word in found.missing for word in words.split("|"))


@pytest.mark.parametrize(
    "reply",
    [
        says({"token_id:9": None}),
        says({"token_id:9": math.nan}),
        (500, {"error": {"message": "Out of range float values are not JSON compliant: nan"}}),
    ],
)
def test_probabilities_that_are_no_numbers_are_broken_and_not_missing(reply: Reply) -> None:
    with model_server(lambda body: reply) as (url, _):
        found = take_golden(endpoint(url), PROBES, "fp16")
    assert found.missing is None
    assert found.broken is not None
    assert "NaN" in found.broken


def test_the_unsure_cuts_come_first_spread_over_documents_and_never_twice() -> None:
    shared = tuple(range(100, 112))
    documents = [(*shared, 1, 2, 3), (*shared, 4, 5, 6)]
    unsure: list[list[float | None]] = [[None, *[0.1] * 14], [None, *[0.1] * 14]]
    unsure[0][10], unsure[1][10] = 2.0, 2.0  # within the shared opening: one prompt
    unsure[0][13], unsure[1][14] = 1.0, 1.5
    found = choose_probes(documents, 3, entropies=unsure)
    prompts = {prompt for _, prompt in found}
    assert documents[0][:10] in prompts
    assert len(prompts) == 3
    assert prompts <= {documents[0][:10], documents[0][:13], documents[1][:14]}


def test_cuts_without_entropies_are_drawn_alike_within_their_bounds() -> None:
    documents = [tuple(range(n, n + 400)) for n in range(0, 4000, 400)]
    found = choose_probes(documents, 30)
    assert found == choose_probes(documents, 30)
    assert len({prompt for _, prompt in found}) == 30
    assert all(8 <= len(prompt) <= 256 for _, prompt in found)
    assert {len([name for name, _ in found if name.startswith(f"{d}@")]) for d in range(10)} == {3}


def test_short_documents_give_fewer_and_none_at_all_is_refused() -> None:
    found = choose_probes([(1, 2, 3), (1, 2, 4)], 9)
    assert [prompt for _, prompt in found] == [(1, 2)]
    with pytest.raises(UsageError, match="longer held-out text"):
        choose_probes([(1,)], 4)


def test_entropy_counts_what_is_not_named_as_one_bucket() -> None:
    quarter = math.log(0.25)
    # A fair coin: ln 2. Two quarters and a rest of a half: 1.5 ln 2. A certain token: 0.
    named = [[(1, math.log(0.5)), (2, math.log(0.5))], [(1, quarter), (2, quarter)], [(1, 0.0)]]
    found = entropies_of(pack(named, 2))
    assert found[0] is None
    assert found[1:] == pytest.approx([np.log(2), 1.5 * np.log(2), 0.0], abs=1e-6)


def test_a_file_reads_back_as_written_and_a_bad_one_is_one_sentence(tmp_path: Path) -> None:
    with model_server(lambda body: says({"token_id:9": -0.1 - body["prompt"][0]})) as (url, _):
        taken = take_golden(endpoint(url), PROBES, "fp16")
    path = tmp_path / "golden" / "fp16.json"
    write_json(path, taken)
    assert read_golden(path) == taken
    write_json(path, replace(taken, draws=(*taken.draws[:-1], taken.draws[0][1:])))
    with pytest.raises(StorageError, match="do not match"):
        read_golden(path)
    for text in ("{", '{"variant": "x"}', "[]"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(StorageError, match="measure the baseline again"):
            read_golden(path)
    with pytest.raises(StorageError, match="no golden probes can be read from"):
        read_golden(tmp_path / "none.json")
