"""An event loop for synchronous callers; uvloop's where it is installed."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

T = TypeVar("T")
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end on a loop of its own; in a thread, where a notebook's is running.

    SIGTERM, SIGHUP or SIGQUIT cancels ``main``; then the process's own handler of it is called.
    Inside the loop it could not raise: uvloop logs what a signal handler raises and goes on.
    """
    if asyncio._get_running_loop() is not None:
        return _run_in_thread(main)
    handlers = {
        number: handler for number in STOP_SIGNALS if callable(handler := signal.getsignal(number))
    }
    if not handlers or threading.current_thread() is not threading.main_thread():
        return _run(main)
    received: list[signal.Signals] = []
    try:
        return _run(_cancelled_by_signals(main, list(handlers), received))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if received:
            handlers[received[0]](received[0], None)


def _run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def _run_in_thread(main: Coroutine[Any, Any, T]) -> T:
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []

    async def cancellable() -> T:
        task = asyncio.ensure_future(main)
        started.append((asyncio.get_running_loop(), task))
        return await task

    with ThreadPoolExecutor(max_workers=1) as pool:
        result = pool.submit(_run, cancellable())
        try:
            return result.result()
        except KeyboardInterrupt:
            for loop, task in started:
                loop.call_soon_threadsafe(task.cancel)
            raise


async def _cancelled_by_signals(
    main: Coroutine[Any, Any, T], numbers: Sequence[signal.Signals], received: list[signal.Signals]
) -> T:
    task = asyncio.ensure_future(main)

    def stop(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    return await task


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # optional: asyncio's own loop is slower and as right
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
