"""A scripted model behind the endpoints that the gate asks, and a small set of questions."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

from tests.flow.stage import FakeEngine
from tests.quality.files import task_row, write_lines, write_tokenizer
from whet.core.protocols import Server
from whet.core.records.engine import ResolvedEngine, StartFacts

Body = dict[str, Any]
DOCUMENTS, TASKS = 60, 12
SMALL: tuple[str, ...] = ("--max-tokens", "64", "--concurrency", "4")


@dataclass
class Model:
    """What a server says: all tokens alike but for ``loss``, and the answers to "question n".

    ``moves`` is how much likelier than the rest one token of the listed is, in nats; ``wrong``
    questions are answered badly; ``greedy`` is the token that it writes for ever. ``accepted`` of
    100 drafted tokens are counted a request; None exports no counters.
    """

    loss: float = 0.0
    moves: float = 0.0
    wrong: int = 0
    greedy: int = 65
    accepted: int | None = None
    scores_prompts: bool = True
    names: tuple[str, ...] = ("m",)
    root: str | None = None
    asked: list[Body] = field(default_factory=list)
    url: str = ""

    def get(self, path: str) -> tuple[int, str]:
        if path == "/v1/models":
            return 200, json.dumps({"data": [{"id": n, "root": self.root} for n in self.names]})
        if path == "/version":
            return 200, '{"version": "0.32.0"}'
        if path == "/metrics" and self.accepted is not None:
            count = len(self.asked)
            return 200, (
                f"vllm:spec_decode_num_draft_tokens_total {100 * count}\n"
                f"vllm:spec_decode_num_accepted_tokens_total {self.accepted * count}\n"
            )
        return 404, '{"error": "not found"}'

    def post(self, path: str, body: Body) -> tuple[int, Body]:
        self.asked.append(body)
        if path != "/v1/completions":
            return 404, {"error": "not found"}
        if "prompt_logprobs" in body and self.scores_prompts:
            return 200, {"choices": [{"text": "x", "prompt_logprobs": self._prompt(body)}]}
        if "prompt_logprobs" in body:
            return 200, {"choices": [{"text": "x"}]}
        if body.get("logprobs") == 5:
            top = {f"token_id:{i}": self._listed(i) for i in range(40, 45)}
            return 200, {"choices": [{"text": "x", "logprobs": {"top_logprobs": [top]}}]}
        if body.get("return_token_ids"):
            return 200, {"choices": [self._written(body) for _ in range(body.get("n", 1))]}
        return 200, {"choices": [{"text": self._answer(body), "finish_reason": "stop"}]}

    def _listed(self, token: int) -> float:
        return -math.log(256) + (self.moves if token == 40 else 0.0)

    def _prompt(self, body: Body) -> list[Any]:
        own = -math.log(256) - self.loss
        entries: list[Any] = [None]
        for token in body["prompt"][1:]:
            named = {str(i): {"logprob": self._listed(i)} for i in range(40, 45)}
            entries.append({**named, str(token): {"logprob": own}})
        return entries

    def _written(self, body: Body) -> Body:
        count = min(body["max_tokens"], 4)
        word, other = f"token_id:{self.greedy}", "token_id:7"
        logprobs = {"tokens": [word] * count, "top_logprobs": [{word: -0.01, other: -5.0}] * count}
        return {"text": "x", "token_ids": [self.greedy] * count, "logprobs": logprobs}

    def _answer(self, body: Body) -> str:
        number = re.search(r"question (\d+)", _spoken(body["prompt"]))
        value = 0 if number is None else int(number[1])
        return "1000" if value < self.wrong else str(value)


@contextmanager
def serve(model: Model) -> Iterator[Model]:
    """The model at ``model.url``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each reply waits 40 ms for a delayed ACK
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            status, text = model.get(self.path)
            self._send(status, text.encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, reply = model.post(self.path, body)
            self._send(status, json.dumps(reply).encode())

        def _send(self, status: int, data: bytes) -> None:
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
    model.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@dataclass
class _Own:
    """A model as a server that an engine started."""

    model: Model
    model_name: str = "m"

    @property
    def base_url(self) -> str:
        return self.model.url

    @property
    def start(self) -> StartFacts:
        return StartFacts(variant="m", ready_s=0.1, canary_text="t", port=1, pid=None, attempts=1)

    def memory_bytes(self) -> int | None:
        return None

    def log_text(self) -> str:
        return ""

    def ensure_alive(self) -> None:
        pass


@dataclass
class ModelEngine(FakeEngine):
    """An engine that serves ``models`` one after the other, whatever the checkpoint."""

    models: list[Model] = field(default_factory=list)
    lines: list[ResolvedEngine] = field(default_factory=list)

    def serve(
        self, resolved: ResolvedEngine, *, log: Path, stop: Event | None = None
    ) -> AbstractContextManager[Server]:
        return self._own(resolved)

    @contextmanager
    def _own(self, resolved: ResolvedEngine) -> Iterator[Server]:
        self.lines.append(resolved)
        with serve(self.models.pop(0)) as model:
            yield _Own(model)


def write_questions(folder: Path) -> tuple[str, ...]:
    """Held-out text, questions and a tokenizer of one token a byte, as flags."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"text": "a" * (10 + i % 10)} for i in range(DOCUMENTS)]
    heldout = write_lines(folder / "heldout.jsonl", rows)
    tasks = write_lines(folder / "tasks.jsonl", [task_row(i) for i in range(TASKS)])
    tokenizer = write_tokenizer(folder / "tokenizer")
    flags = ("--heldout", heldout, "--tasks", tasks, "--tokenizer", tokenizer)
    return (*map(str, flags), *SMALL)


def _spoken(prompt: list[int]) -> str:
    """The prompt as text: one token a byte, in the order of the byte-level alphabet."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = "".join(alphabet[token] if token < len(alphabet) else "|" for token in prompt)
    return plain.replace("\u0120", " ")
