"""A scripted OpenAI server: known times, known faults, known counters; in a thread or a process.

    with scripted_server(ttft_s=0.05, gap_s=0.01) as server:
        ... server.url, server.requests, server.counters ...

A request may override any field of the server's ``Script`` with its own ``"script": {…}``.
``python tests/scripted_server.py '{"ttft_s": 0.1}'`` serves alone and prints its URL.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

SENTENCE = (
    "the order was shipped today and should reach you within three days so please write again if "
    "nothing has come by then and we will ask the carrier or send another one at no cost to you "
    "whichever suits best"
)
"""Longer than any loop that is looked for, so that an answer made of them is an ordinary one."""


def ordinary(count: int, start: int = 0) -> str:
    """So many ordinary words, each followed by a blank, as ``text`` repeated would be."""
    words = SENTENCE.split()
    return "".join(f"{words[(start + i) % len(words)]} " for i in range(count))


@dataclass(frozen=True)
class Script:
    """What the server does. ``fault`` is one of the words that ``_stream`` and ``_answer`` know."""

    ttft_s: float = 0.0
    gap_s: float = 0.0
    prefill_s_per_token: float = 0.0  # above 0: a prefill keeps every other stream waiting
    tokens_per_chunk: int = 1
    tokens: int | None = None  # None: the request's max_tokens
    cached_tokens: int | None = None
    fault: str | None = None
    usage: bool = True
    claims: dict[str, Any] = field(default_factory=dict)  # replaces parts of the usage
    text: str = "t "
    completion: Any = None  # the whole answer to a plain request, in place of a right one
    words: bool = False  # ordinary words, one a token, in place of ``text`` again and again
    status: int = 200
    message: str = "scripted"  # of an error
    get_status: int = 200
    metrics: bool = True
    metrics_s: float = 0.0  # how long /metrics takes
    metrics_status: int = 200
    accepted_per_draft: float | None = None
    hit_share: float | None = None
    model: str = "scripted"
    key: str | None = None  # a request without it is answered 401, whatever its path

    def says(self, count: int, start: int = 0) -> str:
        """``count`` tokens of the answer, from the one at ``start``."""
        return ordinary(count, start) if self.words else self.text * count


@dataclass
class ScriptedServer:
    """A running server. ``requests`` holds every body received, ``counters`` what /metrics says.

    ``paths`` are those that were answered, ``refused`` those of requests without the key.
    """

    script: Script
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    stalls: dict[int, float] = field(default_factory=dict)  # seconds more, by place of arrival
    connections: int = 0
    paths: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)  # of the newest request
    engine: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        answered = 0
        try:
            while (request := await _read_request(reader)) is not None:
                if answered and self.script.fault == "reset_reused":
                    writer.transport.abort()
                    break
                if not await self._respond(*request, writer):
                    break
                answered += 1
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _respond(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes,
        out: asyncio.StreamWriter,
    ) -> bool:
        key = headers.get("authorization", "")
        self.headers = headers
        if self.script.key is not None and key != f"Bearer {self.script.key}":
            self.refused.append(path)
            text = json.dumps({"error": {"message": f"wrong key: {key}"}})
            return _send(out, 401, "application/json", text)
        self.paths.add(path)
        if method == "GET":
            await asyncio.sleep(self.script.metrics_s * (path == "/metrics"))
            return _send(out, *self._get(path))
        data = json.loads(body)
        self.requests.append(data)
        script = replace(self.script, **data.get("script", {}))
        more_s = self.stalls.get(len(self.requests) - 1, 0.0)
        script = replace(script, ttft_s=script.ttft_s + more_s)
        if script.status != 200:
            error = json.dumps({"error": {"message": script.message}})
            return _send(out, script.status, "application/json", error)
        if data.get("stream"):
            return await _stream(script, data, out, self)
        return await _answer(script, data, out, chat=path.endswith("chat/completions"))

    async def take_turn(self, script: Script, prompt: int) -> None:
        """One prefill at a time, as an engine that does not cut it into chunks; 0 waits for it."""
        if script.prefill_s_per_token:
            async with self.engine:
                if prompt:
                    await asyncio.sleep(prompt * script.prefill_s_per_token)

    def _get(self, path: str) -> tuple[int, str, str]:
        if self.script.get_status != 200:
            return self.script.get_status, "application/json", '{"error":{"message":"scripted"}}'
        if path == "/v1/models":
            models = {"object": "list", "data": [{"id": self.script.model, "object": "model"}]}
            return 200, "application/json", json.dumps(models)
        if path == "/metrics" and self.script.metrics:
            return self.script.metrics_status, "text/plain; version=0.0.4", self.metrics_text()
        if path in ("/health", "/version"):
            return 200, "application/json", '{"version":"scripted"}'
        return 404, "application/json", '{"error":{"message":"not found"}}'

    def metrics_text(self) -> str:
        lines = ["# HELP vllm:x Something.", "# TYPE vllm:x counter"]
        lines += [f"{name} {value}" for name, value in self.counters.items()]
        return "\n".join(lines) + "\n"

    def count(self, script: Script, *, prompt: int, output: int) -> None:
        labels = '{engine="0",model_name="scripted"}'
        added = {
            f"vllm:prompt_tokens_total{labels}": prompt,
            f"vllm:generation_tokens_total{labels}": output,
        }
        if script.hit_share is not None:
            added[f"vllm:prefix_cache_queries_total{labels}"] = prompt
            added[f"vllm:prefix_cache_hits_total{labels}"] = prompt * script.hit_share
        if script.accepted_per_draft is not None:
            drafts = output / (1 + script.accepted_per_draft)
            accepted = drafts * script.accepted_per_draft
            added[f"vllm:spec_decode_num_drafts_total{labels}"] = drafts
            added[f"vllm:spec_decode_num_accepted_tokens_total{labels}"] = accepted
        for name, value in added.items():
            self.counters[name] = self.counters.get(name, 0.0) + value


async def _read_request(
    reader: asyncio.StreamReader,
) -> tuple[str, str, dict[str, str], bytes] | None:
    """Method, path, headers and body of the next request."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *rest = head.split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in rest)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    method, path, _ = first.split(" ")
    return method, path, headers, body


def _send(out: asyncio.StreamWriter, status: int, kind: str, text: str) -> bool:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status} Scripted\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    out.write(head.encode() + body)
    return True


async def _answer(
    script: Script, data: dict[str, Any], out: asyncio.StreamWriter, *, chat: bool
) -> bool:
    await asyncio.sleep(script.ttft_s)
    if script.fault == "not_json":
        return _send(out, 200, "application/json", "hello")
    if script.fault == "reset":
        out.transport.abort()
        return False
    if script.completion is not None:
        return _send(out, 200, "application/json", json.dumps(script.completion))
    tokens = script.tokens or data.get("max_tokens", 16)
    text = script.says(tokens)
    choice = {"message": {"content": text}} if chat else {"text": text}
    usage = {"prompt_tokens": _prompt_tokens(data), "completion_tokens": tokens}
    answer = {"choices": [choice | {"index": 0, "finish_reason": "length"}], "usage": usage}
    return _send(out, 200, "application/json", json.dumps(answer))


def _prompt_tokens(data: dict[str, Any]) -> int:
    prompt = data.get("prompt", "")
    return len(prompt) if isinstance(prompt, list) else len(str(prompt).split())


def _event(payload: object) -> bytes:
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


def _chunk(out: asyncio.StreamWriter, data: bytes) -> None:
    out.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _text_event(text: str, finish: str | None = None) -> bytes:
    return _event({"choices": [{"index": 0, "text": text, "finish_reason": finish}]})


async def _stream(
    script: Script, data: dict[str, Any], out: asyncio.StreamWriter, server: ScriptedServer
) -> bool:
    if script.fault == "reset_before":
        out.transport.abort()
        return False
    kind = "text/html" if script.fault == "wrong_content_type" else "text/event-stream"
    out.write(
        f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    )
    loop = asyncio.get_running_loop()
    tokens = script.tokens or data.get("max_tokens", 16)
    due, sent, fault = loop.time() + script.ttft_s, 0, script.fault
    while sent < tokens and script.fault not in ("empty", "done_only"):
        await asyncio.sleep(max(0.0, due - loop.time()))
        await server.take_turn(script, 0 if sent else _prompt_tokens(data))
        count = min(script.tokens_per_chunk, tokens - sent)
        if sent > 0 and fault is not None:
            if await _mid_fault(fault, out):
                return False
            fault = None
        last = sent + count == tokens
        _chunk(out, _text_event(script.says(count, sent), "length" if last else None))
        sent, due = sent + count, due + script.gap_s
    sent += script.fault in ("split_utf8", "invalid_utf8")  # these add a token of their own
    _finish(script, data, out, sent)
    server.count(script, prompt=_prompt_tokens(data), output=sent)
    return script.fault != "close_after"  # a kept connection that is closed without a word


def _finish(script: Script, data: dict[str, Any], out: asyncio.StreamWriter, sent: int) -> None:
    if script.usage:
        usage: dict[str, Any] = {"prompt_tokens": _prompt_tokens(data), "completion_tokens": sent}
        usage |= script.claims
        if script.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": script.cached_tokens}
        _chunk(out, _event({"choices": [], "usage": usage}))
    if script.fault not in ("no_done", "empty"):
        _chunk(out, _event("[DONE]"))
    out.write(b"0\r\n\r\n")


async def _mid_fault(fault: str, out: asyncio.StreamWriter) -> bool:
    """Do what ``fault`` says after the first chunk; True where the connection is over."""
    if fault == "reset":
        await out.drain()
        await asyncio.sleep(0.02)
        out.transport.abort()
        return True
    if fault == "eof":
        return True
    if fault == "hang":
        await asyncio.sleep(3600)
    if fault == "sse_error":
        _chunk(out, _event({"error": {"message": "scripted failure", "code": 500}}))
        _chunk(out, _event("[DONE]"))
        out.write(b"0\r\n\r\n")
        return True
    if fault == "bad_chunk":
        _chunk(out, b"data: {not json}\n\n")
    if fault == "bad_http":
        out.write(b"zz\r\nnot a chunk size")
        await out.drain()
    if fault == "split_utf8":
        whole = _text_event("é😀")
        cut = whole.index("😀".encode()) + 2
        _chunk(out, whole[:cut])
        await out.drain()
        await asyncio.sleep(0.01)
        _chunk(out, whole[cut:])
    if fault == "invalid_utf8":
        _chunk(out, b'data: {"choices":[{"index":0,"text":"\xff\xfe","finish_reason":null}]}\n\n')
    if fault == "slow_loris":
        while True:
            _chunk(out, b":")
            await out.drain()
            await asyncio.sleep(0.01)
    if fault == "flood":
        while True:
            _chunk(out, b"data: " + b"x" * 65536)
            await out.drain()
    return False


async def _main(server: ScriptedServer, ready: Any, stop: asyncio.Event) -> None:
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    server.url = f"http://127.0.0.1:{port}"
    ready()
    await stop.wait()
    listener.close()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


@contextmanager
def in_thread(server: ScriptedServer) -> Iterator[ScriptedServer]:
    """Serve from a thread: quick to start, and the test sees what arrived."""
    started = threading.Event()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(
        target=lambda: loop.run_until_complete(_main(server, started.set, stop)), daemon=True
    )
    thread.start()
    assert started.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


@contextmanager
def scripted_server(**script: Any) -> Iterator[ScriptedServer]:
    """A server of that script, from a thread."""
    with in_thread(ScriptedServer(Script(**script))) as server:
        yield server


@contextmanager
def scripted_process(**script: Any) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve from a process of its own, so that its work does not share the client's interpreter."""
    command = [sys.executable, __file__, json.dumps(asdict(Script(**script)))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


if __name__ == "__main__":
    alone = ScriptedServer(Script(**json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}")))
    asyncio.run(_main(alone, lambda: print(alone.url, flush=True), asyncio.Event()))
