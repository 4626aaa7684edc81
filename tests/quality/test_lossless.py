"""The verdict on speculation: what fails, what only rounding does, and what nobody answered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest

from tests.quality.model_server import Body
from whet.core.records.codec import decode, encode
from whet.core.records.quality_checks import LosslessCheck
from whet.quality.asking import ModelEndpoint
from whet.quality.continuations import Sampling
from whet.quality.lossless import (
    PlainReference,
    check_lossless,
    plain_reference,
)

PROMPTS = {str(index): (index,) for index in range(1, 13)}
PLAN = (4, Sampling(samples=8, tokens=4))
Greedy = Callable[[int], list[int]]


class Model:
    """A scripted model: greedy text, a sampler of two tokens, and speculation's counters."""

    def __init__(self, greedy: Greedy, *, share: float = 0.5, margin: float = 3.0) -> None:
        self.greedy, self.share, self.margin = greedy, share, margin
        self.accepted, self.drafted = 50.0, 100.0
        self.accepts: float | None = None  # of ten tokens drafted a request
        self.odd = 0  # sampled requests, the first ones, of a share of their own
        self.rng = np.random.default_rng(0)

    def answer(self, body: Body) -> Body:
        if self.accepts is not None:
            self.accepted, self.drafted = self.accepted + self.accepts, self.drafted + 10
        if body["temperature"] > 0:
            share, self.odd = 0.9 if self.odd > 0 else self.share, self.odd - 1
            drawn = (self.rng.random((body["n"], 4)) < share).astype(int).tolist()
            return {"choices": [{"token_ids": row} for row in drawn]}
        ids = self.greedy(body["prompt"][0])
        words = [f"token_id:{token}" for token in ids]
        tops = [{word: -0.1, "token_id:777": -0.1 - self.margin} for word in words]
        return {
            "choices": [{"token_ids": ids, "logprobs": {"tokens": words, "top_logprobs": tops}}]
        }

    def metrics(self) -> str | None:
        if self.accepts is None:
            return None
        return (
            f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {self.accepted}\n'
            f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {self.drafted}\n'
        )


@contextmanager
def _served(model: Model) -> Iterator[ModelEndpoint]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each reply waits 40 ms for a delayed ACK
        wbufsize = -1  # one packet a reply: two wait for each other (Nagle)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self._send(200, json.dumps(model.answer(body)))

        def do_GET(self) -> None:
            text = model.metrics()
            self._send(404 if text is None else 200, text or "")

        def _send(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        port = server.server_address[1]
        yield ModelEndpoint(url=f"http://127.0.0.1:{port}", model="m", concurrency=1)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def _usual(prompt: int) -> list[int]:
    return [prompt, 20, 30, 2]


def _other_from(first: int) -> Greedy:
    """Prompts from ``first`` on leave the usual text at their second token."""
    return lambda prompt: [prompt, 21] if prompt >= first else _usual(prompt)


def _plain(*, margin: float = 3.0) -> PlainReference:
    with _served(Model(_usual, margin=margin)) as endpoint:
        found = plain_reference(endpoint, PROMPTS, *PLAN)
    stored: PlainReference = decode(PlainReference, encode(found))
    return stored


def _speculative(
    plain: PlainReference,
    greedy: Greedy = _usual,
    *,
    share: float = 0.5,
    accepts: float | None = 6.0,
) -> LosslessCheck:
    model = Model(greedy, share=share)
    model.rng, model.accepts = np.random.default_rng(1), accepts
    with _served(model) as endpoint:
        return check_lossless(endpoint, plain, PROMPTS)


@pytest.fixture(scope="module")
def plain() -> PlainReference:
    return _plain()


def test_equal_answers_and_accepted_drafts_pass(plain: PlainReference) -> None:
    found = _speculative(plain)
    assert found.verdict == "pass"
    assert found.acceptance_rate == pytest.approx(0.6)  # of what was drafted since the first look
    assert found.parity is not None
    assert (found.parity.same, found.parity.aa_same) == (12, 12)


def test_leaving_a_certain_token_in_many_prompts_fails(plain: PlainReference) -> None:
    found = _speculative(plain, _other_from(8))  # 5 of 12 lost: p = 2⁻⁵
    assert found.verdict == "fail"
    assert "7 of 12 greedy continuations" in found.reasons[0]
    assert "5 leave it where its own token leads by more than 1 nats" in found.reasons[0]


def test_ties_alone_pass_however_many() -> None:
    found = _speculative(_plain(margin=0.1), _other_from(1))
    assert found.parity is not None
    assert found.parity.p_value == pytest.approx(2**-12)
    assert found.verdict == "pass"


def test_one_difference_that_is_no_tie_is_not_a_pass(plain: PlainReference) -> None:
    found = _speculative(plain, _other_from(12))
    assert found.verdict == "unknown"
    assert "give more prompts" in found.reasons[0]


def test_what_the_plain_server_does_to_itself_is_no_defect() -> None:
    calls: dict[int, int] = {}

    def wavering(prompt: int) -> list[int]:
        calls[prompt] = calls.get(prompt, 0) + 1
        return [prompt, 21] if calls[prompt] > 1 and prompt > 6 else _usual(prompt)

    with _served(Model(wavering)) as endpoint:
        unsteady = plain_reference(endpoint, PROMPTS, *PLAN)
    assert _speculative(unsteady, _other_from(7)).verdict == "pass"


@pytest.mark.parametrize("first", [12, 8])
def test_a_difference_that_does_not_recur_in_other_batches_is_rounding(
    plain: PlainReference, first: int
) -> None:
    asked: dict[int, int] = {}

    def once(prompt: int) -> list[int]:
        asked[prompt] = asked.get(prompt, 0) + 1
        return _other_from(first)(prompt) if asked[prompt] == 1 else _usual(prompt)

    found = _speculative(plain, once)
    assert found.verdict == "pass"
    assert found.parity is not None
    assert found.parity.same == 12, "the record is the second draw's"


def test_of_two_draws_the_milder_counts(plain: PlainReference) -> None:
    asked: dict[int, int] = {}

    def fewer(prompt: int) -> list[int]:
        asked[prompt] = asked.get(prompt, 0) + 1
        return _other_from(8 if asked[prompt] == 1 else 12)(prompt)

    assert _speculative(plain, fewer).verdict == "unknown", "the first failed"


def test_a_sampler_of_another_distribution_fails(plain: PlainReference) -> None:
    found = _speculative(plain, share=0.9)
    assert found.verdict == "fail"
    assert found.sampling is not None
    assert found.sampling.p_value < 0.01
    assert "on a second draw; sampled text has another distribution" in found.reasons[0]


def test_a_first_draw_that_a_second_does_not_confirm_was_chance(plain: PlainReference) -> None:
    model = Model(_usual)
    model.accepts, model.odd = 6.0, len(PROMPTS)
    with _served(model) as endpoint:
        found = check_lossless(endpoint, plain, PROMPTS)
    assert model.odd < -len(PROMPTS) + 1, "a second draw was asked for"
    assert found.verdict == "pass"
    assert found.sampling is not None
    assert found.sampling.p_value > 0.05, "the record is the second draw's"
    (said,) = [reason for reason in found.reasons if "second draw" in reason]
    assert "so the first was chance" in said


def test_a_sound_first_draw_asks_for_no_second(plain: PlainReference) -> None:
    model = Model(_usual)
    model.accepts = 6.0
    with _served(model) as endpoint:
        check_lossless(endpoint, plain, PROMPTS)
    assert -model.odd == len(PROMPTS)


def test_drafts_that_are_never_accepted_fail_though_the_output_is_right(
    plain: PlainReference,
) -> None:
    found = _speculative(plain, accepts=0.0)
    assert (found.verdict, found.acceptance_rate) == ("fail", 0.0)
    assert "the draft proposes tokens that the target never writes" in found.reasons[0]
    assert found.parity is not None
    assert found.parity.same == 12


def test_a_server_without_counters_is_unknown(plain: PlainReference) -> None:
    found = _speculative(plain, accepts=None)
    assert (found.verdict, found.acceptance_rate, found.drafted) == ("unknown", None, None)


def test_other_prompts_are_not_asked(plain: PlainReference) -> None:
    with _served(Model(_usual)) as endpoint:
        found = check_lossless(endpoint, plain, {"other": (99,)})
    assert (found.verdict, found.parity) == ("unknown", None)
    assert "other prompts" in found.reasons[0]


def test_a_server_that_is_gone_is_unknown(plain: PlainReference) -> None:
    gone = ModelEndpoint(url="http://127.0.0.1:9", model="m", concurrency=1)
    found = check_lossless(gone, plain, PROMPTS)
    assert (found.verdict, found.parity, found.sampling) == ("unknown", None, None)
    assert any("greedy continuations were not answered" in reason for reason in found.reasons)


def test_few_prompts_are_too_few() -> None:
    prompts = dict(list(PROMPTS.items())[:4])
    with _served(Model(_usual)) as endpoint:
        few = plain_reference(endpoint, prompts, *PLAN)
        found = check_lossless(endpoint, few, prompts)
    assert found.verdict == "unknown"
    assert any("4 prompts are too few" in reason for reason in found.reasons)


def test_a_plan_of_greedy_text_alone_samples_nothing() -> None:
    with _served(Model(_usual)) as endpoint:
        stored = decode(PlainReference, encode(plain_reference(endpoint, PROMPTS, 4, None)))
    found = _speculative(stored, share=0.9)
    assert (found.verdict, found.sampling) == ("pass", None)
    assert any("sampled text was not compared" in reason for reason in found.reasons)
