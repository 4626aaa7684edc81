"""A model hub that serves folders: what huggingface_hub asks for to read and download a model.

It counts the bytes of every answer's body and misbehaves as it is told.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

TOKEN = "hf_reader"
_CHUNK = 1 << 16


@dataclass
class Model:
    """One repository; ``access`` is public, gated or private."""

    folder: Path
    access: str = "public"
    commit: str = "0123456789abcdef0123456789abcdef01234567"

    def files(self) -> dict[str, Path]:
        return {path.name: path for path in sorted(self.folder.iterdir()) if path.is_file()}


@dataclass
class ModelHub:
    """What it holds and how it fails.

    ``cut`` maps a file's name to how many bytes an answer has before the connection is closed;
    ``status`` is the answer to every request if it is set.
    """

    url: str = ""
    models: dict[str, Model] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    status: int | None = None
    sent: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def sent_bytes(self) -> int:
        return sum(self.sent.values())


class _Refused(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    hub: ModelHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0].strip("/")
        try:
            if self.hub.status is not None:
                raise _Refused(self.hub.status, "")
            if path.startswith("api/models/"):
                self._describe(*path.removeprefix("api/models/").split("/"))
            elif "/resolve/" in path:
                owner, name, _, revision, file = path.split("/", 4)
                self._file(self._model(f"{owner}/{name}", revision), file)
            else:
                raise _Refused(404, "")
        except _Refused as refused:
            self._send(refused.status, b"{}", {"X-Error-Code": refused.code})

    def _model(self, hub_id: str, revision: str) -> Model:
        model = self.hub.models.get(hub_id)
        allowed = self.headers.get("authorization") == f"Bearer {TOKEN}"
        if model is None or (model.access == "private" and not allowed):
            raise _Refused(401, "RepoNotFound")
        if revision not in ("main", model.commit):
            raise _Refused(404, "RevisionNotFound")
        return model

    def _describe(self, owner: str, name: str, kind: str = "", revision: str = "main") -> None:
        model = self._model(f"{owner}/{name}", revision)
        entries = [_entry(file) for file in model.files().values()]
        if kind == "tree":
            self._send(200, json.dumps(entries).encode())
            return
        siblings = [{"rfilename": each["path"], "size": each["size"]} for each in entries]
        info = {"id": f"{owner}/{name}", "sha": model.commit, "siblings": siblings}
        self._send(200, json.dumps(info).encode())

    def _file(self, model: Model, name: str) -> None:
        if model.access == "gated" and self.headers.get("authorization") != f"Bearer {TOKEN}":
            raise _Refused(403, "GatedRepo")
        file = model.files().get(name)
        if file is None:
            raise _Refused(404, "EntryNotFound")
        size, wanted = file.stat().st_size, self.headers.get("range")
        start, end = 0, size - 1
        if wanted is not None:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or size - 1), size - 1)
        headers = {"ETag": f'"{_etag(file)}"', "X-Repo-Commit": model.commit}
        if wanted is not None:
            headers["Content-Range"] = f"bytes {start}-{end}/{size}"
        with file.open("rb") as handle:
            handle.seek(start)
            self._stream(206 if wanted else 200, handle, end - start + 1, headers, name)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self._head(status, len(body), headers or {})
        if self.command != "HEAD":
            self._write(body, "")

    def _stream(
        self, status: int, handle: Any, size: int, headers: dict[str, str], name: str
    ) -> None:
        self._head(status, size, headers)
        if self.command == "HEAD":
            return
        left = min(size, self.hub.cut.get(name, size))
        while left > 0:
            chunk = handle.read(min(_CHUNK, left))
            self._write(chunk, name)
            left -= len(chunk)
        self.close_connection = name in self.hub.cut

    def _head(self, status: int, size: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def _write(self, data: bytes, name: str) -> None:
        with self.hub.lock:
            self.hub.sent[name] += len(data)
        self.wfile.write(data)


def _entry(file: Path) -> dict[str, Any]:
    size = file.stat().st_size
    entry: dict[str, Any] = {"type": "file", "path": file.name, "size": size, "oid": _etag(file)}
    if file.suffix == ".safetensors":
        entry["lfs"] = {"oid": _etag(file), "size": size, "pointerSize": 134}
    return entry


def _etag(file: Path) -> str:
    """Equal for equal files of one run; a sparse file of many GiB is not read."""
    stat = file.stat()
    return hashlib.sha256(f"{file}{stat.st_size}{stat.st_mtime_ns}".encode()).hexdigest()


@contextmanager
def serve_hub() -> Iterator[ModelHub]:
    """A hub on a free port."""
    hub = ModelHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def model_hub(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[ModelHub]:
    """A hub that this process's huggingface_hub talks to; it caches below ``cache``."""
    with serve_hub() as hub:
        point_to(hub, monkeypatch, cache)
        yield hub


def point_to(hub: ModelHub, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Let this process's huggingface_hub talk to ``hub``."""
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no-token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
