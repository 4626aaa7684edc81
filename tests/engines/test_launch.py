"""Every way in which a server process can disappoint."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.engines.conftest import MARK, Resolve
from whet.core.errors import EngineLostError, EngineStartError, Interrupted
from whet.core.records.codec import encode
from whet.engines.launch import serve_process
from whet.engines.process import free_port


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_CANARY_S", 3.0), ("_GRACE_S", 0.5), ("_RETRY_PAUSE_S", 0.0)):
        monkeypatch.setattr(f"whet.engines.launch.{name}", seconds)


def wait_until(holds: Callable[[], bool], *, timeout_s: float = 15.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.05)
    return holds()


def fakes() -> list[psutil.Process]:
    """Scripted engines and their children that still run, wherever they hang in the tree."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if (
            words[-1:] == [MARK]
            and "supervise.py" not in " ".join(words)
            and process.info["status"] != psutil.STATUS_ZOMBIE
        ):
            found.append(process)
    return found


@pytest.fixture(autouse=True)
def nothing_left() -> object:
    yield
    assert wait_until(lambda: not fakes()), [p.cmdline() for p in fakes()]


def test_a_served_engine_has_generated(resolve: Resolve, tmp_path: Path) -> None:
    with serve_process(resolve("serve"), log=tmp_path / "engine.log") as server:
        assert server.start.canary_text == " fine"
        assert server.start.attempts == 1
        assert server.start.pid in {process.pid for process in fakes()}
        assert server.base_url.endswith(str(server.start.port))
        assert (server.memory_bytes() or 0) > 1_000_000
        assert "serving with" in server.log_text()
        server.ensure_alive()


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_start_has_the_priority_of_a_deployment(
    resolve: Resolve, tmp_path: Path, device: str
) -> None:
    resolved = replace(resolve("serve"), device=device)
    with serve_process(resolved, log=tmp_path / "engine.log") as server:
        assert server.start.nice == psutil.Process().nice()
        assert server.start.pid is not None
        group = Path(f"/proc/{server.start.pid}/autogroup")
        assert not group.exists() or group.read_text().endswith("nice 0\n")


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("oom", "ran out of memory; lower max_model_len"),
        ("kv", "max_model_len to 2048 or less"),
        ("arch", "FooForCausalLM"),
        ("no_gpu", "nvidia-smi"),
        ("killed", r"killed \(signal 9\)"),
        ("silent", "last words were 'starting'"),
    ],
)
def test_a_death_at_start_is_told_with_its_mend(
    resolve: Resolve, tmp_path: Path, mode: str, said: str
) -> None:
    started = serve_process(resolve(mode), log=tmp_path / "engine.log")
    with pytest.raises(EngineStartError, match=said), started:
        pass


def test_a_port_taken_every_time_is_given_up_after_one_retry(
    resolve: Resolve, tmp_path: Path
) -> None:
    log = tmp_path / "engine.log"
    with (
        pytest.raises(EngineStartError, match="port was taken"),
        serve_process(resolve("port"), log=log),
    ):
        pass
    assert log.read_text().count("Address already in use") == 2


def test_a_fault_of_the_surroundings_is_tried_again(resolve: Resolve, tmp_path: Path) -> None:
    with serve_process(resolve(f"flaky:port:{tmp_path}"), log=tmp_path / "engine.log") as server:
        assert server.start.attempts == 2
        assert "in use" not in server.log_text()  # the first attempt's words are not this one's


def test_a_stranger_that_answers_on_the_port_is_not_taken_for_the_engine(
    resolve: Resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_process(resolve("serve"), log=tmp_path / "first.log") as first:
        monkeypatch.setattr("whet.engines.launch.free_port", lambda: first.start.port)
        monkeypatch.setattr("whet.engines.launch._POLL_S", 0.01)
        with (
            pytest.raises(EngineStartError, match="port was taken"),
            serve_process(resolve("serve"), log=tmp_path / "second.log"),
        ):
            pass


def test_a_server_may_be_entered_in_one_thread_and_left_in_another(
    resolve: Resolve, tmp_path: Path
) -> None:
    contexts = [
        serve_process(resolve("family"), log=tmp_path / f"{number}.log") for number in range(2)
    ]
    ports: list[int] = []
    starts = [
        threading.Thread(target=lambda each=each: ports.append(each.__enter__().start.port))
        for each in contexts
    ]
    with ExitStack() as stack:
        for start, context in zip(starts, contexts, strict=True):
            start.start()
            stack.push(context.__exit__)
        for start in starts:
            start.join()
        assert len(set(ports)) == 2
        assert len(fakes()) == 6
    assert fakes() == []


def test_a_start_that_is_told_to_stop_is_given_up_at_once(resolve: Resolve, tmp_path: Path) -> None:
    log, stop, caught = tmp_path / "engine.log", threading.Event(), []

    def start() -> None:
        try:
            with serve_process(resolve("hang"), log=log, stop=stop):
                pass
        except Interrupted as error:
            caught.append(str(error))

    thread = threading.Thread(target=start)
    thread.start()
    assert wait_until(lambda: log.exists() and "loading" in log.read_text())
    stop.set()
    thread.join(15.0)
    assert caught == ["vllm 9.9 for variant 'awq' was stopped before it was ready"]
    assert fakes() == []


def test_a_port_is_not_handed_out_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may offer the same one twice before the first server listens on it."""
    offers = iter([1, 1, 2])

    class Probe:
        def __enter__(self) -> Probe:
            return self

        def __exit__(self, *_: object) -> None: ...

        def bind(self, _address: object) -> None: ...

        def getsockname(self) -> tuple[str, int]:
            return "127.0.0.1", next(offers)

    monkeypatch.setattr("whet.engines.process.socket.socket", Probe)
    assert [free_port(), free_port()] == [1, 2]


def test_a_hang_is_cut_off_and_its_last_words_quoted(resolve: Resolve, tmp_path: Path) -> None:
    hung = resolve("hang", ready_timeout_s=3.0)
    with (
        pytest.raises(EngineStartError, match=r"loading the weights.*ready_timeout_s"),
        serve_process(hung, log=tmp_path / "engine.log"),
    ):
        pass


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("sick", "cannot generate: it reported: RuntimeError: synthetic sampler exploded"),
        ("empty", "without a single token"),
        ("mute", "no answer in time"),
    ],
)
def test_health_is_not_enough(resolve: Resolve, tmp_path: Path, mode: str, said: str) -> None:
    with (
        pytest.raises(EngineStartError, match=said),
        serve_process(resolve(mode), log=tmp_path / "engine.log"),
    ):
        pass


def test_a_death_in_the_middle_is_noticed(resolve: Resolve, tmp_path: Path) -> None:
    with serve_process(resolve("serve"), log=tmp_path / "engine.log") as server:
        assert server.start.pid is not None
        psutil.Process(server.start.pid).kill()

        def lost() -> bool:
            try:
                server.ensure_alive()
            except EngineLostError as error:
                return "stopped while serving" in str(error)
            return False

        assert wait_until(lost)


@pytest.mark.parametrize("mode", ["family", "stubborn"])
def test_children_that_left_the_group_or_ignore_sigterm_go_too(
    resolve: Resolve, tmp_path: Path, mode: str
) -> None:
    with serve_process(resolve(mode), log=tmp_path / "engine.log"):
        assert len(fakes()) == 3
    assert fakes() == []


def test_an_error_of_the_caller_reaps_as_well(resolve: Resolve, tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        serve_process(resolve("family"), log=tmp_path / "engine.log"),
    ):
        raise KeyboardInterrupt
    assert fakes() == []


OWNER = """
import sys, time
from pathlib import Path
from whet.core.records.codec import decode
from whet.core.records.engine import ResolvedEngine
from whet.engines.launch import serve_process
import json
resolved = decode(ResolvedEngine, json.loads(sys.argv[1]))
with serve_process(resolved, log=Path(sys.argv[2])):
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_server_outlives_a_killed_owner(
    resolve: Resolve, tmp_path: Path, number: signal.Signals
) -> None:
    import json

    from whet.core.records.codec import encode

    words = [sys.executable, "-c", OWNER, json.dumps(encode(resolve("family")))]
    owner = subprocess.Popen([*words, str(tmp_path / "engine.log")], stdout=subprocess.PIPE)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        assert len(fakes()) == 3
        owner.send_signal(number)
        assert wait_until(lambda: not fakes())
    finally:
        owner.kill()
        owner.wait()
        assert owner.stdout is not None
        owner.stdout.close()


def test_a_killed_guardian_leaves_no_engine(resolve: Resolve, tmp_path: Path) -> None:
    with serve_process(resolve("family"), log=tmp_path / "engine.log") as server:
        assert server.start.pid is not None
        guardian = psutil.Process(server.start.pid).parent()
        assert guardian is not None
        children = psutil.Process(server.start.pid).children()
        guardian.kill()
        assert wait_until(lambda: server.start.pid not in {p.pid for p in fakes()})
        for (
            child
        ) in children:  # without a guardian they are orphans; a later test must not see them
            child.kill()


def test_secrets_reach_neither_the_log_file_nor_the_error(
    resolve: Resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_TOKEN", "correct-horse-battery")
    log = tmp_path / "engine.log"
    with (
        pytest.raises(EngineStartError) as caught,
        serve_process(resolve("secret"), log=log),
    ):
        pass
    assert "[redacted]" in log.read_text()
    assert "correct-horse" not in log.read_text() + str(caught.value)


def test_a_secret_of_the_spec_reaches_the_engine_and_no_log(
    resolve: Resolve, tmp_path: Path
) -> None:
    resolved, log = resolve("secret"), tmp_path / "engine.log"
    secret = (("FAKE_TOKEN", "correct-horse-battery"),)
    resolved = replace(resolved, variant=replace(resolved.variant, secret_env=secret))
    with (
        pytest.raises(EngineStartError) as caught,
        serve_process(resolved, log=log),
    ):
        pass
    assert "bad token [redacted] in" in log.read_text()  # the engine did get it
    assert "correct-horse" not in log.read_text() + str(caught.value)
    assert "correct-horse" not in repr(resolved) + json.dumps(encode(resolved))


def test_the_port_is_freed_for_the_next(resolve: Resolve, tmp_path: Path) -> None:
    with serve_process(resolve("serve"), log=tmp_path / "engine.log") as server:
        port = server.start.port
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
