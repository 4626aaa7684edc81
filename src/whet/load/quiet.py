"""What is held off while the clock runs, and how a request to stop reaches the loop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from whet.client.runner import STOP_SIGNALS

_SWITCH_INTERVAL_S = 0.0005
"""The memory thread gives the interpreter back within this; the default of 5 ms would be read as
latency."""


@contextmanager
def quiet_interpreter() -> Iterator[None]:
    """No garbage collection and short thread turns inside; as before afterwards.

    What is alive now stays out of later collections: a process that has loaded torch holds so many
    objects that looking through them takes 0.3 s, before every trial.
    """
    was_enabled, interval = gc.isenabled(), sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if was_enabled:
            gc.enable()


@contextmanager
def cancel_on_signals() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP cancel the current task; the handlers before are put back.

    A SIGHUP that is ignored (``nohup``) stays ignored.
    """
    task = asyncio.current_task()
    if task is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *STOP_SIGNALS)}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    for number in before:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


_GROUP_NICE: Final = 10
_NICER: Final = 5
_LAST: Final = 19
_TRIES: Final = 30
_PAUSE_S: Final = 0.05
"""Linux lets an ordinary user change one group in 100 ms."""


@contextmanager
def client_first() -> Iterator[None]:
    """Lower every server that this process started until the end, as far as that can be undone.

    Linux groups processes by session (sched(7), autogroup), and nice values count only within a
    group. Any user may raise a group's nice value and lower it again to 0; below that, and a
    thread's, only who may restore it (``may_restore``): otherwise it is left alone.
    """
    servers = _servers()
    restores = bool(servers) and may_restore()
    with ExitStack() as undo:
        for pid in {session: process.pid for process, session in servers}.values():
            group = Path(f"/proc/{pid}/autogroup")
            with suppress(OSError, ValueError, IndexError):
                before = int(group.read_text().split()[-1])
                if (before >= 0 or restores) and _write(group, max(before, _GROUP_NICE)):
                    undo.callback(_write, group, before)
        if restores:
            for process, _ in servers:
                undo.callback(_lower(process))
        yield


def may_restore() -> bool:
    """Whether this process may lower a nice value: tried on a thread that ends at once."""
    allowed = False

    def attempt() -> None:
        nonlocal allowed
        own = threading.get_native_id()
        nice = os.getpriority(os.PRIO_PROCESS, own)
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, own, min(_LAST, nice + 1))
            os.setpriority(os.PRIO_PROCESS, own, nice)
            allowed = True

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return allowed


def _servers() -> list[tuple[psutil.Process, int]]:
    """Processes below this one in other sessions than its own, with the session: of servers."""
    own, servers = os.getsid(0), []
    for process in psutil.Process().children(recursive=True):
        with suppress(OSError):
            if (session := os.getsid(process.pid)) != own:
                servers.append((process, session))
    return servers


def _lower(process: psutil.Process) -> Callable[[], None]:
    """Make all threads of a process nicer; the returned call puts them back.

    A thread that began in between has inherited the value and gets that of the process.
    """
    before = {thread: os.getpriority(os.PRIO_PROCESS, thread) for thread in _threads(process)}
    for thread, nice in before.items():
        _set_nice(thread, min(_LAST, nice + _NICER))

    def restore() -> None:
        usual = before.get(process.pid, 0)
        for thread in _threads(process):
            _set_nice(thread, before.get(thread, usual))

    return restore


def _threads(process: psutil.Process) -> list[int]:
    with suppress(psutil.Error):
        return [thread.id for thread in process.threads()]
    return []


def _set_nice(thread: int, nice: int) -> None:
    with suppress(OSError):  # it has ended
        os.setpriority(os.PRIO_PROCESS, thread, nice)


def _write(group: Path, nice: int) -> bool:
    """Whether the group's nice value could be set; a group that has ended cannot."""
    for _ in range(_TRIES):
        try:
            group.write_text(str(nice))
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        except OSError:
            return False
        else:
            return True
    return False
