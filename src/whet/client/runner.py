"""An event loop for synchronous callers; uvloop's where it is installed."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end on a loop of its own. Not for callers inside a running loop.

    SIGTERM cancels ``main``; then the handler that the process has for it speaks. Inside the loop
    it could not: uvloop logs what a signal handler raises and goes on.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        return _run(main)
    stopped = asyncio.Event()
    try:
        return _run(_cancelled_by_sigterm(main, stopped))
    finally:
        signal.signal(signal.SIGTERM, handler)
        if stopped.is_set():
            handler(signal.SIGTERM, None)


def _run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


async def _cancelled_by_sigterm(main: Coroutine[Any, Any, T], stopped: asyncio.Event) -> T:
    task = asyncio.ensure_future(main)

    def stop() -> None:
        stopped.set()
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    return await task


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # optional: asyncio's own loop is slower and as right
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
