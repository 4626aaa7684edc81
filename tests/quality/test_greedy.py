"""Greedy parity against hand counts and the binomial closed form."""

from __future__ import annotations

import pytest

from tests.quality.model_server import Body, Reply, model_server
from whet.core.records.codec import decode, encode
from whet.quality.asking import ModelEndpoint
from whet.quality.continuations import (
    Continuation,
    Continuations,
    continue_greedily,
    greedy_parity,
)


def _choice(ids: list[int], **changes: object) -> Reply:
    """vLLM 0.32's reply to logprobs 2 and its two fields that ask for token ids."""
    words = [f"token_id:{token}" for token in ids]
    tops = [{word: -0.25, "token_id:9999": -1.0} for word in words]
    choice: Body = {
        "index": 0,
        "text": "x",
        "finish_reason": "stop",
        "token_ids": ids,
        "logprobs": {"tokens": words, "token_logprobs": [-0.25] * len(ids), "top_logprobs": tops},
    }
    return 200, {"choices": [choice | changes]}


def _side(rows: list[tuple[int, ...]], margin: float | None = 0.5) -> Continuations:
    return Continuations(
        prompts_sha256="p",
        max_tokens=4,
        answered=tuple(
            Continuation(id=str(index), tokens=row, margins=(margin,) * len(row))
            for index, row in enumerate(rows)
        ),
        missing=None,
    )


def test_ids_and_margins_are_read_and_survive_the_store() -> None:
    with model_server(lambda body: _choice([7, 8, 2])) as (url, asked):
        found = continue_greedily(
            ModelEndpoint(url=url, model="m", concurrency=1), {"0": (5, 6)}, 16
        )
    assert found.answered == (Continuation(id="0", tokens=(7, 8, 2), margins=(0.75,) * 3),)
    assert asked[-1]["temperature"] == 0.0
    assert "ignore_eos" not in asked[-1]
    assert decode(Continuations, encode(found)) == found


def test_backwards_asks_in_the_other_order_and_answers_in_this_one() -> None:
    with model_server(lambda body: _choice(body["prompt"])) as (url, asked):
        endpoint = ModelEndpoint(url=url, model="m", concurrency=1)
        found = continue_greedily(endpoint, {"a": (1,), "b": (2,), "c": (3,)}, 4, backwards=True)
    assert [body["prompt"] for body in asked[1:]] == [[3], [2], [1]]
    assert [one.tokens for one in found.answered] == [(1,), (2,), (3,)]


def test_a_server_that_refuses_the_fields_is_read_by_the_tokens_text() -> None:
    def strict(body: Body) -> Reply:
        if "return_token_ids" in body:
            return 400, {"error": {"message": "unknown field return_token_ids"}}
        said = {"tokens": ["a", "12"], "top_logprobs": [{"a": -0.5, "b": -0.75}, {"12": -0.1}]}
        return 200, {"choices": [{"text": "a12", "logprobs": said}]}

    with model_server(strict) as (url, _):
        found = continue_greedily(ModelEndpoint(url=url, model="m", concurrency=1), {"0": (1,)}, 4)
    assert found.answered[0].tokens == ("a", "12")
    assert found.answered[0].margins == (0.25, None)  # no runner-up is no margin
    assert decode(Continuations, encode(found)) == found  # "12" stays text


def test_what_names_no_tokens_is_missing_and_not_empty() -> None:
    with model_server(lambda body: (200, {"choices": [{"text": "x"}]})) as (url, _):
        endpoint = ModelEndpoint(url=url, model="m", concurrency=1)
        found = continue_greedily(endpoint, {"0": (1,), "1": (2,)}, 4)
    assert found.answered == ()
    assert found.missing is not None
    assert found.missing.startswith("2 of 2 greedy")


def test_the_first_difference_and_its_margin() -> None:
    plain = _side([(1, 2, 3, 4), (1, 2, 3, 4), (1, 2)], margin=0.125)
    here = _side([(1, 2, 3, 4), (1, 9, 3, 4), (1, 2, 3, 4)], margin=7.0)
    found = greedy_parity(here, plain)
    assert [(one.at, one.margin) for one in found.divergences] == [
        (None, None),
        (1, 0.125),  # the plain server's, not this one's
        (2, None),  # the plain one had ended: it says no margin there
    ]
    assert (found.same, found.aa_same, found.p_value) == (1, None, None)


def test_mcnemar_counts_the_prompts_that_only_this_server_loses() -> None:
    plain = _side([(1,)] * 10)
    again = _side([(1,)] * 8 + [(2,)] * 2)  # two ties that batching turns
    here = _side([(3,)] * 6 + [(1,)] * 2 + [(1,), (3,)])  # loses six, gains one
    found = greedy_parity(here, plain, again)
    assert (found.same, found.aa_same) == (3, 8)
    # P(X ≥ 6 of 7) = (7 + 1) ÷ 2⁷
    assert found.p_value == pytest.approx(8 / 128)


def test_agreeing_more_often_than_the_plain_server_does_is_no_defect() -> None:
    plain, again = _side([(1,)] * 10), _side([(2,)] * 10)
    assert greedy_parity(plain, plain, again).p_value == 1.0


def test_an_unanswered_prompt_leaves_the_pairs() -> None:
    whole, short = _side([(1,), (2,), (3,)]), _side([(1,), (2,)])
    assert greedy_parity(whole, short).prompts == 2


def test_another_form_of_tokens_is_no_pair() -> None:
    plain = _side([(1,)])
    words = Continuations(
        prompts_sha256="p",
        max_tokens=4,
        answered=(Continuation(id="0", tokens=("a",), margins=(None,)),),
        missing=None,
    )
    with pytest.raises(ValueError, match="as ids and the other as text"):
        greedy_parity(words, plain)
