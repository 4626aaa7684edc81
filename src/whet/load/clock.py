"""Waking at a moment of the monotonic clock, closer than an event loop's own timers."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from time import monotonic_ns
from typing import Any, Final, Self

from whet.core.units import NS_PER_MS, NS_PER_S

_TIMERFD_SPIN_NS: Final = 150_000
"""A kernel timer wakes the loop about 0.1 ms late; this much before, turns take over."""

_TIMER_SPIN_NS: Final = NS_PER_MS
"""Event loops round their own timers to whole milliseconds."""

_CLOCK_MONOTONIC: Final = 1
_TFD_TIMER_ABSTIME: Final = 1
_TFD_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC if sys.platform == "linux" else 0


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("rest_ns", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Alarm:
    """Wakes one sleeper of the running loop at a time that it names. A context manager.

    On Linux a ``timerfd`` wakes the loop, elsewhere its own timer; the rest of the way is passed
    turn by turn, so that sockets are still read.
    """

    def __init__(self) -> None:
        """Nothing is opened yet."""
        self._fd: int | None = None
        self._libc: Any = None
        self._waiting: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        """Open the timer, in the loop that will wait."""
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
            if fd >= 0:
                self._fd = fd
                asyncio.get_running_loop().add_reader(fd, self._wake)
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    async def until(self, due_ns: int) -> None:
        """Return at ``due_ns`` or, on a busy loop, as soon after it as the loop has a turn."""
        if self._fd is None:
            while (left_ns := due_ns - monotonic_ns()) > _TIMER_SPIN_NS:
                await asyncio.sleep((left_ns - _TIMER_SPIN_NS) / NS_PER_S)
        elif due_ns - monotonic_ns() > _TIMERFD_SPIN_NS:
            await self._sleep(due_ns - _TIMERFD_SPIN_NS)
        while monotonic_ns() < due_ns:
            await asyncio.sleep(0)

    async def _sleep(self, until_ns: int) -> None:
        seconds, rest_ns = divmod(until_ns, NS_PER_S)
        when = _Itimerspec(_Timespec(0, 0), _Timespec(seconds, rest_ns))
        self._waiting = asyncio.get_running_loop().create_future()
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(when), None)
        await self._waiting

    def _wake(self) -> None:
        assert self._fd is not None
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
