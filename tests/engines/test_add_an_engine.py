"""The how-to's example is an engine: resolved, started, read and ended through the registry."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.records import variant
from whet import engines
from whet.client import scrape
from whet.core.spec import EngineSpec
from whet.engines import ENGINES, get_engine, get_profile

PAGE = Path(__file__).parents[2] / "docs" / "add-an-engine.md"
SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer("echo_tokens_total 3\\n" if self.path == "/metrics" else "{}")
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(json.dumps({"choices": [{"text": "hi"}], "usage": {"completion_tokens": 1}}))
    def answer(self, text):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())
print("echo 1.0", flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


@pytest.fixture
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the page, with its line in the registry."""
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    module: Any = ModuleType("echo_engine")
    exec(found[1], module.__dict__)
    monkeypatch.setitem(sys.modules, "echo_engine", module)
    monkeypatch.setitem(engines.ENGINES, "echo", "echo_engine")


@pytest.mark.usefixtures("_registered")
def test_one_folder_adds_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "echo_server.py").write_text(SERVER, encoding="utf-8")
    assert "echo" in ENGINES
    engine, profile = get_engine("echo"), get_profile("echo")
    resolved = engine.resolve(variant(), EngineSpec(name="echo"))
    assert engine.unsupported(resolved) is None
    with engine.serve(resolved, log=tmp_path / "log.txt") as server:
        counters = scrape(server.base_url, names=profile.counters.names)
        assert counters.get("vllm:generation_tokens_total") == 3.0
        assert profile.read_log(server.log_text()).version == "1.0"
