"""What real engines said: start-up logs and pages, cut to the lines that matter.

``h100_*``: vLLM 0.26.0 on one H100, the bundled pair; ``h100_033_*``: 0.33.0, a testbed with its
head; ``cpu_*``: vLLM 0.32.0 on a CPU that refused FLASH_ATTN. A fault is planted by changing a
line of them.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from whet.client.counters import parse_counters
from whet.client.simple import HttpError
from whet.core.records.evidence import Declared, EngineFacts
from whet.core.records.load import Counters
from whet.engines.vllm.log import read_log
from whet.engines.vllm.server_info import read_declared

_FOLDER = Path(__file__).parent / "recorded"
_PAGES = {
    "/server_info": "cpu_server_info.json",
    "/metrics": "cpu_metrics_after.txt",
    "/v1/models": "cpu_models.json",
}


def text(name: str) -> str:
    """A recorded file as it is."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def log(name: str, *changes: tuple[str, str], more: str = "") -> EngineFacts:
    """The facts of a recorded log after ``changes``, each of which has to change something."""
    return read_log(_changed(text(f"{name}.log"), changes) + more)


def pages(*changes: tuple[str, str], without: tuple[str, ...] = ()) -> Declared:
    """What the CPU server's pages say after ``changes``; those ``without`` answer 404."""

    def answer(_base_url: str, path: str, **_options: object) -> str:
        path = path.partition("?")[0]
        if path in without or path not in _PAGES:
            raise HttpError("not found", status=404)
        found = text(_PAGES[path])
        for old, new in changes:
            found = found.replace(old, new)
        return found

    whole = "".join(text(name) for path, name in _PAGES.items() if path not in without)
    assert all(old in whole for old, _ in changes)
    with patch("whet.engines.probe.get_text", answer):
        return read_declared("http://127.0.0.1:8000")


def scraped(name: str, *changes: tuple[str, str]) -> Counters:
    """The counters of a recorded metrics page after ``changes``."""
    return Counters(taken_ns=0, values=parse_counters(_changed(text(name), changes)))


def _changed(page: str, changes: tuple[tuple[str, str], ...]) -> str:
    for old, new in changes:
        assert old in page, old
        page = page.replace(old, new)
    return page
