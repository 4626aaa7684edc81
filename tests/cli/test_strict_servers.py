"""Servers that refuse fields they do not know: the fix that is printed is one that works."""

from __future__ import annotations

import json
import re
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.cli.stage import Whet, write_whole_spec
from tests.client.raw_server import answering
from tests.scripted_server import scripted_server
from whet.core.errors import NothingQualifiesError
from whet.demo import pair_paths

SMALL = ("--tokenizer", pair_paths()[0], "--num-warmups", 0, "--num-prompts", 3, "--input-len", 20)
OPENAI = frozenset(
    {"model", "prompt", "messages", "max_tokens", "temperature", "stream", "stream_options"}
)


def respond(kind: str, body: str, status: str = "200 OK") -> list[bytes]:
    data = body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
    return [head.encode() + data]


class Strict:
    """A server that takes the fields in ``known`` alone, and names one that it does not take."""

    def __init__(self, known: frozenset[str]) -> None:
        self.known, self.bodies = known, list[dict[str, Any]]()

    def __call__(self, sent: bytes) -> list[bytes]:
        head, _, body = sent.partition(b"\r\n\r\n")
        if head.startswith(b"GET /v1/models"):
            return respond("application/json", '\ufeff{"data": [{"id": "m"}]}')
        if head.startswith(b"GET"):
            return respond("text/plain", "no such page", "404 Not Found")
        self.bodies.append(json.loads(body))
        for name in self.bodies[-1].keys() - self.known:
            words = f"Unrecognized request argument supplied: {name}"
            error = json.dumps({"error": {"message": words, "type": "invalid_request_error"}})
            return respond("application/json", error, "400 Bad Request")
        if not self.bodies[-1].get("stream"):
            answer = {"choices": [{"index": 0, "text": "a ", "finish_reason": "stop"}]}
            return respond("application/json", json.dumps(answer))
        events = ({"choices": [{"index": 0, "text": "a ", "finish_reason": "stop"}]}, "[DONE]")
        texts = (each if isinstance(each, str) else json.dumps(each) for each in events)
        return respond("text/event-stream", "".join(f"data: {text}\n\n" for text in texts))


@pytest.mark.parametrize("form", ["ids", "text", "chat"])
@pytest.mark.parametrize(
    "missing", [(), ("stream_options",), ("temperature",), ("stream_options", "temperature")]
)
def test_each_optional_field_can_be_left_out(
    whet: Whet, form: str, missing: tuple[str, ...]
) -> None:
    server, left_out = Strict(OPENAI - {*missing}), dict[str, Any]()
    with answering(server) as (url, _):
        for _ in range(5):
            words = ("--extra-body", json.dumps(left_out)) if left_out else ()
            said = whet("bench", url, *SMALL, "--form", form, "--output-len", 4, *words)
            if said.code == 0:
                break
            sentence = said.sentence(6)
            assert "Unrecognized request argument supplied" in sentence
            assert '"error"' not in sentence, "the server's words, not its JSON"
            left_out |= json.loads(shlex.split(sentence.split("; leave out")[-1])[-1])
    assert said.code == 0, said.err
    assert left_out.keys() == {"ignore_eos", "skip_special_tokens", *missing}
    assert server.bodies[-1].keys() <= server.known


def test_a_server_that_wants_the_other_name_of_the_limit(whet: Whet) -> None:
    server = Strict(OPENAI - {"max_tokens"} | {"max_completion_tokens"})
    with answering(server) as (url, _):
        said = whet("bench", url, *SMALL, "--form", "chat", "--no-ignore-eos")
        (extra,) = shlex.split(said.sentence(6).split("--extra-body ")[-1])
        assert json.loads(extra) == {"max_tokens": None, "max_completion_tokens": 128}
        done = whet(
            "bench", url, *SMALL, "--form", "chat", "--no-ignore-eos", "--extra-body", extra
        )
    assert done.code == 0, done.err
    assert server.bodies[-1]["max_completion_tokens"] == 128


@pytest.mark.usefixtures("lenient_client")
def test_a_run_on_a_strict_server(whet: Whet, tmp_path: Path) -> None:
    """The warning names the fields; with them left out every timed request is answered."""
    strict, args = Strict(OPENAI), dict[str, Any](model="m")
    with answering(strict) as (url, _):
        for number in range(3):
            engine = {"name": "openai", "url": url, "args": args}
            write_whole_spec(tmp_path, engine=engine, name=f"run{number}")
            said = whet("run")
            left_out = re.search(r"engine\.args\.extra_body leaves fields out: '(.*?)'", said.out)
            if left_out is None:
                break
            args["extra_body"] = json.dumps(
                json.loads(args.get("extra_body", "{}")) | json.loads(left_out[1])
            )
    assert json.loads(args["extra_body"]) == {"ignore_eos": None, "skip_special_tokens": None}
    assert said.code == NothingQualifiesError.exit_code, said.err  # it has no log to prove by
    timed = [body for body in strict.bodies if body.get("stream")]
    assert timed[-1].keys() <= OPENAI
    assert "extra_body" not in said.err, "it is no setting of the server"


@pytest.mark.parametrize("fields", ["{", "[1]"])
def test_fields_of_a_run_that_are_no_object(whet: Whet, tmp_path: Path, fields: str) -> None:
    with answering(Strict(OPENAI)) as (url, _):
        args = {"model": "m", "extra_body": fields}
        write_whole_spec(tmp_path, engine={"name": "openai", "url": url, "args": args})
        assert "engine.args.extra_body" in whet("run").sentence(2)


def test_what_is_not_asked_for_is_not_held_against_the_answer(whet: Whet) -> None:
    """Without ``ignore_eos`` a short answer is no doubt."""
    with scripted_server(tokens=2) as server:
        words = ("--output-len", 4, "--extra-body", '{"ignore_eos": null}')
        said = whet("bench", server.url, *SMALL, *words)
    assert "differ from the request" not in said.err + said.out


def test_a_whole_endpoint_on_an_ipv6_address(whet: Whet) -> None:
    server = Strict(OPENAI | {"ignore_eos", "skip_special_tokens"})
    with answering(server, host="::1") as (url, _):
        assert url.startswith("http://[::1]:")
        said = whet("bench", f"{url}/v1/chat/completions", *SMALL, "--form", "chat")
    assert said.code == 0, said.err
    assert len(server.bodies) == 3


def test_hosts_that_cannot_be_are_one_sentence(whet: Whet) -> None:
    port = socket.create_server(("127.0.0.1", 0)).getsockname()[1]
    for url, said in (
        (f"http://::1:{port}", "in brackets"),
        ("http://a..b:1", "not a name or an address"),
        (f"http://127.0.0.1:{port}/a b", "%XX"),
    ):
        assert said in whet("bench", url, *SMALL).sentence(2)
