"""The router over scripted servers: whom it asks, in which order, with what."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from whet.client import scrape
from whet.engines.probe import is_healthy, request
from whet.engines.process import free_port
from whet.engines.vllm import layout

pytest.importorskip("aiohttp")
ROUTER = Path(layout.__file__).with_name("router.py")
ASK = {"model": "m", "prompt": "hello", "max_tokens": 7, "stream": True, "min_tokens": 3}


class Scripted:
    """A server that remembers what it was asked."""

    def __init__(self, name: str, *, status: int = 200) -> None:
        self.asked: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                tokens = sum(each["max_tokens"] for each in outer.asked)
                page = f'vllm:generation_tokens_total{{engine="0"}} {tokens}.0\n'
                self.send(200, page if self.path == "/metrics" else json.dumps({"name": name}))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.asked.append(json.loads(body))
                answer = {"from": name, "kv_transfer_params": {"remote_engine_id": name}}
                self.send(status, json.dumps(answer))

            def send(self, code: int, text: str) -> None:
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


Start = Callable[..., str]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a router with these words; its URL."""
    processes = []

    def begin(*words: str) -> str:
        port = free_port()
        command = [sys.executable, str(ROUTER), "--port", str(port), *words]
        processes.append(subprocess.Popen(command))
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 20
        while not is_healthy(url) and time.monotonic() < deadline:
            time.sleep(0.05)
        return url

    yield begin
    for each in processes:
        each.terminate()
        each.wait()


def post(url: str, body: object = ASK, path: str = "/v1/completions") -> tuple[int, dict[str, Any]]:
    status, text = request(url, path, body=body, timeout_s=10)
    return status, json.loads(text)


def test_replicas_take_requests_in_turn(start: Start) -> None:
    one, two = Scripted("one"), Scripted("two")
    url = start("--decode", one.url, "--decode", two.url)
    assert [post(url)[1]["from"] for _ in range(4)] == ["one", "two", "one", "two"]
    assert one.asked == [ASK, ASK]


def test_a_prompt_is_computed_apart_and_handed_over(start: Start) -> None:
    prefill, decode = Scripted("prefill"), Scripted("decode")
    url = start("--prefill", prefill.url, "--decode", decode.url, "--hand-over")
    assert post(url)[1]["from"] == "decode"
    (first,) = prefill.asked
    assert first.pop("kv_transfer_params")["do_remote_decode"] is True
    assert first == {"model": "m", "prompt": "hello", "max_tokens": 1, "stream": False}
    assert decode.asked == [{**ASK, "kv_transfer_params": {"remote_engine_id": "prefill"}}]


@pytest.mark.parametrize("more", [{"echo": True}, {"prompt_logprobs": 5}])
def test_a_prompt_that_is_scored_is_computed_once(start: Start, more: dict[str, Any]) -> None:
    prefill, decode = Scripted("prefill"), Scripted("decode")
    url = start("--prefill", prefill.url, "--decode", decode.url)
    post(url, ASK | more)
    assert prefill.asked == []
    assert decode.asked == [ASK | more]


def test_a_refusal_of_the_prefill_server_is_the_answer(start: Start) -> None:
    prefill, decode = Scripted("prefill", status=400), Scripted("decode")
    url = start("--prefill", prefill.url, "--decode", decode.url)
    status, answer = post(url)
    assert (status, answer["from"]) == (400, "prefill")
    assert decode.asked == []


def test_metrics_tell_the_servers_apart(start: Start) -> None:
    servers = [Scripted("prefill"), Scripted("one"), Scripted("two")]
    words = ["--prefill", servers[0].url, "--decode", servers[1].url, "--decode", servers[2].url]
    url = start(*words)
    for _ in range(3):
        post(url)
    counters = scrape(url)
    assert counters.get("vllm:generation_tokens_total") == 21
    assert counters.get("prefill:generation_tokens_total") == 3
    assert counters.get('router:generation_tokens_total{source="decode0"}') == 14
    assert counters.get('router:generation_tokens_total{source="decode1"}') == 7
