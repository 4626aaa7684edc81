"""A start that gets no processor time is named with what holds it up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.engines.conftest import Resolve
from whet.core.errors import EngineStartError
from whet.core.protocols import Engine, Silent
from whet.core.records.engine import ResolvedEngine
from whet.engines.launch import serve_process
from whet.engines.starved import watched
from whet.engines.together import Start, start_together

SPIN = "while True: pass"


class Ear(Silent):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def warn(self, message: str) -> None:
        self.heard.append(message)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.engines.starved._PERIOD_S", 1.0)
    monkeypatch.setattr("whet.engines.launch._GRACE_S", 0.2)
    for module in ("starved", "together"):
        monkeypatch.setattr(f"whet.engines.{module}.LOOK_S", 0.1)


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that use a core each."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in spinning:
            each.kill()
            each.wait()


def sentences(resolved: ResolvedEngine, log: Path) -> list[str]:
    """What is said of a start that is given up in the end."""
    ear = Ear()
    with (
        pytest.raises(EngineStartError),
        watched(serve_process(resolved, log=log), ear.warn),
    ):
        pass
    return ear.heard


def test_a_busy_machine_is_named_with_who_uses_it(resolve: Resolve, tmp_path: Path) -> None:
    with busy(2 * (os.cpu_count() or 1)):
        heard = sentences(resolve("hang", ready_timeout_s=8.0), tmp_path / "log.txt")
    said = r"awq: the server has had \d s of processor time in \d+ s: the machine is busy with "
    assert re.match(said + r".+ \(\d+, \d+ s\); end that, or wait$", heard[0])
    assert len(heard) <= 3, "after 1 s, 2 s more and 4 s more"


def test_a_stopped_server_is_named_with_how_it_goes_on(resolve: Resolve, tmp_path: Path) -> None:
    resolved = resolve("hang", ready_timeout_s=4.0)
    argv = ("bash", "-c", "kill -STOP $$; exec sleep 60")
    heard = sentences(replace(resolved, argv=argv), tmp_path / "log.txt")
    assert "it is stopped (SIGSTOP); let it go on with kill -CONT " in heard[0]
    pid = int(heard[0].split()[-1])
    assert not psutil.pid_exists(pid), "and it is ended with the start"


def test_each_of_several_starts_is_looked_at(resolve: Resolve, tmp_path: Path) -> None:
    class Launching:
        name = "vllm"

        def serve(self, resolved: ResolvedEngine, **given: object) -> object:
            return serve_process(resolved, **given)  # type: ignore[arg-type]

    def wanted(name: str, mode: str) -> Start:
        resolved = resolve(mode, ready_timeout_s=4.0)
        named = replace(resolved, variant=replace(resolved.variant, name=name))
        engine: Engine = Launching()  # type: ignore[assignment]
        return Start(engine=engine, resolved=named, log=tmp_path / f"{name}.log")

    ear = Ear()
    with start_together([wanted("slow", "hang"), wanted("quick", "serve")]) as group:
        assert isinstance(group.await_all(ear)[0], EngineStartError)
    assert any(line.startswith("slow: the server has had ") for line in ear.heard)


def test_a_server_that_is_up_is_not_looked_at(resolve: Resolve, tmp_path: Path) -> None:
    ear = Ear()
    with watched(serve_process(resolve("serve"), log=tmp_path / "log.txt"), ear.warn):
        ear.heard.clear()
        time.sleep(2.5)
        assert ear.heard == []


def test_a_server_that_waits_is_not_blamed_on_others(
    resolve: Resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.engines.starved._BUSY_SHARE", 99.0)
    heard = sentences(resolve("hang", ready_timeout_s=3.0), tmp_path / "log.txt")
    assert "it waits, and processors are idle" in heard[0]
