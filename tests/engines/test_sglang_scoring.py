"""A prompt scored by SGLang's ``/generate`` is read as one scored by vLLM."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.quality.model_server import Body, Reply, model_server
from whet.engines.sglang.scoring import DIALECT
from whet.quality.asking import ModelEndpoint
from whet.quality.continuations import continue_greedily
from whet.quality.likelihood import measure_likelihood

DOCUMENT = (3, 7, 9)
HALF, THIRD = math.log(0.5), math.log(1 / 3)


def generate(body: Body) -> Reply:
    """What SGLang 0.5.17 answers, by its source: (log-probability, id, text) by position."""
    prompt = body["input_ids"]
    meta: dict[str, Any] = {
        "finish_reason": {"type": "length"},
        "output_token_logprobs": [[HALF, 5, None]],
        "output_top_logprobs": [[[HALF, 5, None], [THIRD, 6, None]]],
    }
    if body["logprob_start_len"] == 0:
        meta["input_token_logprobs"] = [[None, prompt[0], None]]
        meta["input_token_logprobs"] += [[THIRD, token, None] for token in prompt[1:]]
        likeliest = [[HALF, 1, None], [THIRD, 2, None]][: body["top_logprobs_num"]]
        meta["input_top_logprobs"] = [None] + [likeliest] * (len(prompt) - 1)
    return 200, {"text": "x", "output_ids": [5], "meta_info": meta}


def endpoint(url: str) -> ModelEndpoint:
    return ModelEndpoint(url=url, model="m", concurrency=2, dialect=DIALECT)


def test_prompts_are_scored_with_their_likeliest_tokens() -> None:
    with model_server(generate) as (url, bodies):
        likelihood = measure_likelihood(endpoint(url), [DOCUMENT], vocab_size=50, top_k=2)
    assert likelihood.missing is None
    assert likelihood.nll == ((pytest.approx(-2 * THIRD), 2),)
    assert likelihood.top[0].ids[0].tolist() == [1, 2, 7]
    assert bodies[-1]["input_ids"] == list(DOCUMENT)
    assert bodies[-1]["sampling_params"] == {"temperature": 0.0, "max_new_tokens": 1}
    assert (bodies[-1]["top_logprobs_num"], bodies[-1]["logprob_start_len"]) == (2, 0)


def test_continuations_come_as_ids_with_their_lead() -> None:
    def answer(body: Body) -> Reply:
        return generate(body) if "input_ids" in body else (200, {"choices": [{"text": "x"}]})

    with model_server(answer) as (url, bodies):
        continued = continue_greedily(endpoint(url), {"a": DOCUMENT}, 1)
    (one,) = continued.answered
    assert one.tokens == (5,)
    assert one.margins == (pytest.approx(HALF - THIRD),)
    assert bodies[-1]["logprob_start_len"] == -1


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [1], "max_tokens": 1},
        {"prompt": "text", "prompt_logprobs": 0},
        {"prompt": [1], "logprobs": 1},
        {"prompt": [1], "logprobs": 1, "return_tokens_as_token_ids": True, "n": 4},
    ],
)
def test_what_the_openai_endpoint_answers_stays_there(body: Body) -> None:
    assert not DIALECT.asks_natively(body)


def test_a_reply_without_figures_has_none() -> None:
    (choice,) = DIALECT.reply({"text": "x"})["choices"]
    assert choice["prompt_logprobs"] is None
    assert choice["token_ids"] == []


def test_probabilities_that_are_no_numbers_are_a_defect() -> None:
    def broken(body: Body) -> Reply:
        status, reply = generate(body)
        for row in reply["meta_info"]["input_token_logprobs"]:
            row[0] = None
        return status, reply

    with model_server(broken) as (url, _):
        likelihood = measure_likelihood(endpoint(url), [DOCUMENT], vocab_size=50)
    assert "is not a number (NaN)" in str(likelihood.broken)
