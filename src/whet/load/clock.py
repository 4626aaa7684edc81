"""Waking at a moment of the monotonic clock, closer than an event loop's own timers."""

from __future__ import annotations

import asyncio
import ctypes
import os
from time import monotonic_ns
from typing import Final, Self

from whet.core.units import NS_PER_S

_SPIN_NS: Final = 150_000
"""A kernel timer wakes the loop about 0.1 ms late; this much before, turns take over."""

_CLOCK_MONOTONIC: Final = 1
_TFD_TIMER_ABSTIME: Final = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("rest_ns", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Alarm:
    """Wakes one sleeper of the running loop at a time that it names. A context manager.

    A ``timerfd`` wakes the loop; the rest of the way is passed turn by turn, so that sockets are
    still read.
    """

    def __init__(self) -> None:
        """Nothing is opened yet."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        self._waiting: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        """Open the timer, in the loop that will wait; ``OSError`` without a free descriptor."""
        self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "no timer could be opened")
        asyncio.get_running_loop().add_reader(self._fd, self._wake)
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    async def until(self, due_ns: int) -> None:
        """Return at ``due_ns`` or, on a busy loop, as soon after it as the loop has a turn."""
        if due_ns - monotonic_ns() > _SPIN_NS:
            await self._sleep(due_ns - _SPIN_NS)
        while monotonic_ns() < due_ns:
            await asyncio.sleep(0)

    async def _sleep(self, until_ns: int) -> None:
        seconds, rest_ns = divmod(until_ns, NS_PER_S)
        when = _Itimerspec(_Timespec(0, 0), _Timespec(seconds, rest_ns))
        self._waiting = asyncio.get_running_loop().create_future()
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(when), None)
        await self._waiting

    def _wake(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
