"""Servers give way while a window is open, and have their priority back afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from whet.load.quiet import client_first, may_restore

THREADS = """
import subprocess, sys, threading, time
for _ in range(2):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("up", flush=True)
for line in sys.stdin:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    print("more", flush=True)
"""
AS_USER = """
import os, subprocess, sys, threading
from pathlib import Path
from whet.load.quiet import client_first, may_restore
ordinary, nice = {"user": 65534} if os.getuid() == 0 else {}, sys.argv[1]
server = subprocess.Popen(["sleep", "60"], start_new_session=True, **ordinary)
group = Path(f"/proc/{server.pid}/autogroup")
if ordinary:
    if group.exists() and nice != "0":
        group.write_text(nice)
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
def state():
    nice = os.getpriority(os.PRIO_PROCESS, server.pid)
    return nice, group.read_text().split()[-1] if group.exists() else "none"
before = state()
for _ in range(3):
    with client_first():
        inside = state()
    assert state() == before, (before, state())
server.kill()
print(may_restore(), before[0], inside[0], inside[1])
"""


@pytest.fixture
def server() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", THREADS],
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    yield process
    for each in psutil.Process(process.pid).children():
        each.kill()
    process.kill()
    process.wait()


def nices(process: subprocess.Popen[str]) -> list[int]:
    """The nice value of every thread of a server and its children."""
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
    return [os.getpriority(os.PRIO_PROCESS, t.id) for each in tree for t in each.threads()]


@pytest.mark.skipif(not may_restore(), reason="needs CAP_SYS_NICE")
def test_every_thread_gives_way_and_gets_its_priority_back(server: subprocess.Popen[str]) -> None:
    group, own = Path(f"/proc/{server.pid}/autogroup"), os.getpriority(os.PRIO_PROCESS, 0)
    before = group.read_text() if group.exists() else ""
    with client_first():
        assert nices(server) == [own + 5] * 4
        assert not before or group.read_text().endswith("nice 10\n")
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write("another thread\n")
        server.stdin.flush()
        assert server.stdout.readline() == "more\n"
        assert os.getpriority(os.PRIO_PROCESS, 0) == own
    assert nices(server) == [own] * 5
    assert not before or group.read_text() == before


def test_a_child_of_the_client_keeps_its_priority() -> None:
    with subprocess.Popen(["sleep", "60"]) as worker:
        with client_first():
            assert os.getpriority(os.PRIO_PROCESS, worker.pid) == os.getpriority(0, 0)
        worker.kill()


def test_an_error_inside_gives_the_priority_back(server: subprocess.Popen[str]) -> None:
    before = nices(server)
    with pytest.raises(KeyboardInterrupt), client_first():
        raise KeyboardInterrupt
    assert nices(server) == before


@pytest.mark.parametrize("nice", ["0", "-5", "12"])
def test_an_ordinary_user_lowers_only_what_can_be_undone(nice: str) -> None:
    if nice != "0" and os.getuid() != 0:
        pytest.skip("needs root")
    done = subprocess.run(
        [sys.executable, "-c", AS_USER, nice], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    restores, before, inside, group = done.stdout.split()
    assert inside == (before if restores == "False" else str(int(before) + 5))
    assert group in ({"0": "10"}.get(nice, nice), "none")
