"""A server that answers ``/v1/completions`` as a test says: one function from body to reply."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Body = dict[str, Any]
Reply = tuple[int, Body]


@contextmanager
def model_server(answer: Callable[[Body], Reply]) -> Iterator[tuple[str, list[Body]]]:
    """The server's URL, and every body that it was sent."""
    asked: list[Body] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each reply waits 40 ms for a delayed ACK

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append(body)
            status, reply = answer(body)
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def likelihoods(body: Body, logprob: Callable[[int, int], Any]) -> Reply:
    """vLLM's reply to ``prompt_logprobs``; ``logprob(position, token)`` is this model."""
    entries: list[Any] = [None]
    entries += [
        {str(token): {"logprob": logprob(position, token), "rank": 1, "decoded_token": "x"}}
        for position, token in enumerate(body["prompt"])
        if position > 0
    ]
    return 200, {"choices": [{"index": 0, "text": "x", "prompt_logprobs": entries}]}


def says(text: str) -> Reply:
    """An ordinary completion."""
    return 200, {"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}
