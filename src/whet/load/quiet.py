"""What is held off while the clock runs, and how a request to stop reaches the loop."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

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
