"""``whet`` in a process of its own, with a scripted engine in vLLM's place.

``python -m tests.cli.stub [--hang-at VARIANT] [--slow] WORDS…`` is ``whet WORDS…``. ``--hang-at``
stops for good where that variant's server starts, ``--slow`` makes every answer take minutes; each
prints a line on stdout that a test can wait for.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.flow.stage import FakeEngine, FakeServer, install
from tests.scripted_server import ScriptedServer, scripted_server
from whet.cli.main import main
from whet.core.protocols import Server
from whet.core.records.engine import ResolvedEngine


@dataclass
class _Stub(FakeEngine):
    """A fake engine that can be slow enough to be stopped in the middle."""

    hang_at: str = ""
    slow: bool = False

    @contextmanager
    def _serve(self, resolved: ResolvedEngine, log: Path) -> Iterator[Server]:
        name = resolved.variant.name
        print(f"serving {name}", flush=True)
        if name == self.hang_at:
            time.sleep(600)
        if not self.slow:
            with super()._serve(resolved, log) as server:
                yield server
            return
        with scripted_server(gap_s=60.0) as scripted:
            threading.Thread(target=_tell, args=(scripted,), daemon=True).start()
            yield FakeServer(scripted, name, dead=False)


def _tell(scripted: ScriptedServer) -> None:
    while not scripted.requests:
        time.sleep(0.01)
    print("answering", flush=True)


def _take(words: list[str], flag: str) -> bool:
    found = flag in words
    if found:
        words.remove(flag)
    return found


def _stub() -> None:
    words = sys.argv[1:]
    engine = _Stub(slow=_take(words, "--slow"))
    if _take(words, "--hang-at"):
        engine.hang_at = words.pop(0)
    sys.argv[1:] = words
    with pytest.MonkeyPatch.context() as patch:
        install(engine, patch)
        main()


if __name__ == "__main__":
    # Tests started in the background hand Ctrl-C down as ignored, and under nohup SIGHUP.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    _stub()
