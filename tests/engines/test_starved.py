"""A server that gets no processor time is named with what holds it up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import psutil
import pytest

from tests.engines.conftest import Resolve
from whet.core.errors import EngineStartError, Interrupted
from whet.core.records.engine import ResolvedEngine
from whet.core.starved import SERVERS, HeldUp, Look, how_to_free, process_name
from whet.engines.launch import serve_process
from whet.load.quiet import client_first

SPIN = "while True: pass"
WAIT_S = 2.0


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.engines.launch._GRACE_S", 0.2)


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


@contextmanager
def starting(resolved: ResolvedEngine, log: Path) -> Iterator[None]:
    """A server on its way up, in a thread of its own, until this is left."""
    stop = Event()

    def start() -> None:
        with suppress(EngineStartError, Interrupted), serve_process(resolved, log=log, stop=stop):
            stop.wait()

    thread = Thread(target=start)
    thread.start()
    try:
        while not any(tree() for tree in list(SERVERS)):
            time.sleep(0.05)
        yield
    finally:
        stop.set()
        thread.join()


def after_a_while() -> HeldUp | None:
    look = Look()
    time.sleep(WAIT_S)
    return look.held_up()


def test_a_busy_machine_is_named_with_who_uses_it(resolve: Resolve, tmp_path: Path) -> None:
    with starting(resolve("hang"), tmp_path / "log.txt"):
        time.sleep(1.0)  # the imports of the scripted server
        with busy(2 * (os.cpu_count() or 1)):
            held = after_a_while()
    assert held is not None
    assert held.by_others
    said = r"the server gets little CPU \(\d s in \d s\): the machine is busy with "
    assert re.match(said + r".+ \(\d+, \d+% of a core\).*; end them, or wait$", held.reason)


def test_a_stopped_server_is_named_with_how_it_goes_on(resolve: Resolve, tmp_path: Path) -> None:
    argv = ("bash", "-c", "kill -STOP $$; exec sleep 60")
    with starting(replace(resolve("hang"), argv=argv), tmp_path / "log.txt"):
        held = after_a_while()
    assert held is not None
    assert held.by_others
    assert held.reason.startswith("the server is stopped (SIGSTOP); let it go on with kill -CONT ")
    assert not psutil.pid_exists(int(held.reason.split()[-1])), "and it is ended with the start"


def test_a_server_that_waits_is_not_blamed_on_others(
    resolve: Resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.core.starved._BUSY_PERCENT", 9900.0)
    with starting(resolve("hang"), tmp_path / "log.txt"):
        time.sleep(1.0)
        held = after_a_while()
    assert held is not None
    assert not held.by_others
    assert held.reason.endswith(
        "processors are idle, so it waits: for requests, the disk, a download or a device"
    )


def test_a_server_that_computes_is_not_held_up(
    resolve: Resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.core.starved._LEAST_SHARE", 0.02)  # beside other tests
    argv = (sys.executable, "-c", SPIN)
    with starting(replace(resolve("hang"), argv=argv), tmp_path / "log.txt"):
        assert after_a_while() is None


def test_a_server_is_looked_at_while_it_is_up_and_forgotten_after(
    resolve: Resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.core.starved._BUSY_PERCENT", 9900.0)
    with ExitStack() as stack:
        stack.enter_context(serve_process(resolve("serve"), log=tmp_path / "log.txt"))
        assert after_a_while() is not None, "measured or waited for, it must not stand still"
    assert not SERVERS
    assert after_a_while() is None


def test_threads_of_the_kernel_are_named_as_such() -> None:
    """``ps`` writes their names in brackets; they have no memory of their own."""
    info = {"name": "kworker/0:1", "memory_info": SimpleNamespace(vms=0)}
    assert process_name(info) == "[kworker/0:1]"
    assert process_name(info | {"memory_info": None}) == "kworker/0:1", "not readable"
    own = psutil.Process().as_dict(["name", "memory_info"])
    assert process_name(own) == own["name"]
    assert how_to_free("backup (9, 80% of a core)") == "end them, or wait"
    assert how_to_free("[pytest-xdist r (7, 26% of a core), [kworker/0:1]") == "end them, or wait"
    assert how_to_free("[kworker/0:1]") == "wait, or look at what loads the kernel"


def test_a_nice_value_of_whet_is_not_the_users(resolve: Resolve, tmp_path: Path) -> None:
    argv = ("sleep", "60")
    with starting(replace(resolve("hang"), argv=argv), tmp_path / "log.txt"):
        with client_first():
            held = after_a_while()
        after = after_a_while()
    assert held is not None
    assert after is not None
    assert "while whet measures" not in after.reason
    if os.geteuid() == 0 or Path("/proc/self/autogroup").exists():
        assert re.search(r", at nice \d+ while whet measures\): ", held.reason)


def test_the_nice_value_that_lets_others_go_first_is_said(
    resolve: Resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine inherits that of whet."""
    monkeypatch.setattr(psutil.Process, "nice", lambda _: 7)
    argv = ("sleep", "60")
    with starting(replace(resolve("hang"), argv=argv), tmp_path / "log.txt"):
        held = after_a_while()
    assert held is not None
    assert re.match(r"the server gets little CPU \(0 s in \d s, at nice 7\): ", held.reason)
