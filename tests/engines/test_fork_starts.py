"""Servers forked from a process that has the imports: as plain ones, and never left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.engines.conftest import FAKE, MARK, Resolve
from tests.engines.test_launch import wait_until
from whet.core.errors import EngineLostError, EngineStartError
from whet.core.records.codec import encode
from whet.core.records.engine import ResolvedEngine
from whet.engines import get_engine
from whet.engines.fork_starts import ForkParent, fork_parent, warm_engine
from whet.engines.launch import environment, serve_process

HEAVY = "print('heavy imports', flush=True)\n"
THREADS = "import threading, time\nthreading.Thread(target=time.sleep, args=(9,)).start()\n"
CUDA = """
import sys
from types import SimpleNamespace
sys.modules["torch"] = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True))
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, seconds in (("_CANARY_S", 3.0), ("_GRACE_S", 0.5), ("_RETRY_PAUSE_S", 0.0)):
        monkeypatch.setattr(f"whet.engines.launch.{name}", seconds)
    (tmp_path / "heavy.py").write_text(HEAVY)
    monkeypatch.setenv("PYTHONPATH", f"{FAKE.parent}{os.pathsep}{tmp_path}")
    monkeypatch.setenv("FAKE_MARK", MARK)


def running() -> list[psutil.Process]:
    """What was started from here and still runs, wherever it hangs in the tree."""
    return [
        process
        for process in psutil.process_iter(["environ", "status"])
        if (process.info["environ"] or {}).get("FAKE_MARK") == MARK
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert wait_until(lambda: not running()), [each.cmdline() for each in running()]


def module(resolved: ResolvedEngine) -> ResolvedEngine:
    """The scripted engine as a module, as vLLM is started."""
    python, _, *words = resolved.argv
    return replace(resolved, argv=(python, "-m", "fake_engine", *words))


@contextmanager
def parent(resolved: ResolvedEngine, folder: Path) -> Iterator[ForkParent]:
    with fork_parent(
        ["fake_engine", "heavy", "of_another_version"],
        python=resolved.argv[0],
        env=environment(resolved),
        own={},
        late=["FAKE_TOKEN"],
        log=folder / "parent.log",
    ) as up:
        yield up


def test_a_forked_server_is_as_a_plain_one(resolve: Resolve, tmp_path: Path) -> None:
    resolved, log = module(resolve("family")), tmp_path / "engine.log"
    with (
        parent(resolved, tmp_path) as up,
        serve_process(resolved, log=log, fork=up.fork) as server,
    ):
        assert (server.start.forked, server.start.attempts) == (True, 1)
        assert server.start.canary_text == " fine"
        assert server.start.nice == psutil.Process().nice()
        assert server.start.pid is not None
        assert len(psutil.Process(server.start.pid).children()) == 2
        assert (server.memory_bytes() or 0) > 1_000_000
        assert server.log_text() == "INFO 01-01 00:00:00 [main.py:1] serving with None\n"
        server.ensure_alive()
    assert (tmp_path / "parent.log").read_text() == "heavy imports\n"


def test_two_servers_come_from_one_import(resolve: Resolve, tmp_path: Path) -> None:
    """One ends while the other serves on; what is read late may differ, and is its own."""
    first = module(resolve("serve"))
    second = replace(first, env=(("FAKE_TOKEN", "7"),))
    with (
        parent(first, tmp_path) as up,
        serve_process(first, log=tmp_path / "1.log", fork=up.fork) as one,
    ):
        with serve_process(second, log=tmp_path / "2.log", fork=up.fork) as two:
            assert (one.start.forked, two.start.forked) == (True, True)
            assert "serving with 7" in two.log_text()
        one.ensure_alive()
        with pytest.raises(EngineLostError):
            two.ensure_alive()
    assert (tmp_path / "parent.log").read_text().count("heavy imports") == 1


def test_another_environment_is_started_plainly(resolve: Resolve, tmp_path: Path) -> None:
    resolved = module(resolve("serve"))
    other = replace(resolved, env=(("VLLM_READ_BY_IMPORTS", "1"),))
    with (
        parent(resolved, tmp_path) as up,
        serve_process(other, log=tmp_path / "other.log", fork=up.fork) as server,
    ):
        assert not server.start.forked
    assert (
        "other is started plainly: imports may read VLLM_READ_BY_IMPORTS, which differs\n"
        in (tmp_path / "parent.log").read_text()
    )


def test_a_program_that_is_no_module_is_started_plainly(resolve: Resolve, tmp_path: Path) -> None:
    resolved = resolve("serve")
    with (
        parent(resolved, tmp_path) as up,
        serve_process(resolved, log=tmp_path / "engine.log", fork=up.fork) as server,
    ):
        assert not server.start.forked


@pytest.mark.parametrize("imports", [THREADS, CUDA, "1 / 0"], ids=["threads", "cuda", "error"])
def test_imports_that_forbid_a_fork_are_started_plainly(
    resolve: Resolve, tmp_path: Path, imports: str
) -> None:
    (tmp_path / "heavy.py").write_text(imports)
    resolved = module(resolve("serve"))
    with (
        parent(resolved, tmp_path) as up,
        serve_process(resolved, log=tmp_path / "engine.log", fork=up.fork) as server,
    ):
        assert not server.start.forked
    assert "engine is started plainly" in (tmp_path / "parent.log").read_text()


@pytest.mark.parametrize(
    ("mode", "reason", "starts"),
    [("oom", "ran out of memory", 1), ("silent", "last words were 'starting'", 2)],
)
def test_a_forked_start_whose_failure_is_unexplained_is_tried_plainly(
    resolve: Resolve, tmp_path: Path, mode: str, reason: str, starts: int
) -> None:
    resolved, log = module(resolve(mode)), tmp_path / "engine.log"
    with (
        parent(resolved, tmp_path) as up,
        pytest.raises(EngineStartError, match=reason),
        serve_process(resolved, log=log, fork=up.fork),
    ):
        pass
    assert log.read_text().count("starting\n") == starts


@pytest.mark.parametrize("victim", ["engine", "guardian", "parent"])
def test_a_death_is_noticed(resolve: Resolve, tmp_path: Path, victim: str) -> None:
    resolved = module(resolve("serve"))
    with (
        parent(resolved, tmp_path) as up,
        serve_process(resolved, log=tmp_path / "engine.log", fork=up.fork) as server,
    ):
        engine = psutil.Process(server.start.pid)
        line = [engine, *engine.parents()]
        line[("engine", "guardian", "parent").index(victim)].kill()

        def lost() -> bool:
            try:
                server.ensure_alive()
            except EngineLostError:
                return not engine.is_running()
            return False

        assert wait_until(lost)


OWNER = """
import json, sys, time
from pathlib import Path
from tests.engines.test_fork_starts import parent
from whet.core.records.codec import decode
from whet.core.records.engine import ResolvedEngine
from whet.engines.launch import serve_process
resolved, folder = decode(ResolvedEngine, json.loads(sys.argv[1])), Path(sys.argv[2])
with parent(resolved, folder) as up:
    with serve_process(resolved, log=folder / "engine.log", fork=up.fork):
        print("ready", flush=True)
        time.sleep(600)
"""


@pytest.mark.parametrize("mode", ["family", "stubborn"])
def test_nothing_outlives_a_killed_owner(
    resolve: Resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((os.environ["PYTHONPATH"], *sys.path)))
    words = [sys.executable, "-c", OWNER, json.dumps(encode(module(resolve(mode)))), str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"ready\n"
            assert len(running()) > 4
        finally:
            owner.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not running())


def test_an_engine_that_cannot_fork_is_used_as_it_is(resolve: Resolve, tmp_path: Path) -> None:
    engine = get_engine("openai")
    with warm_engine(engine, resolve("serve"), log=tmp_path / "parent.log") as same:
        assert same is engine
    assert not (tmp_path / "parent.log").exists()
