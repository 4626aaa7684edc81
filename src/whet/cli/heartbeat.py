"""Silence: a line every 30 s that nothing else is printed."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Final

from whet.core.starved import HeldUp, Look

PERIOD_S: Final = 30.0
LOOK_S: Final = 1.0


class Heartbeat:
    """Calls ``say`` after every 30 s without a sign of progress, from a thread of its own.

    ``say`` gets the seconds since the last sign, and what holds the servers of this process up.
    """

    def __init__(self, say: Callable[[float, HeldUp | None], None]) -> None:
        self._say, self._done = say, Event()
        self._sign_s = time.monotonic()
        self._thread = Thread(target=self._watch, name="whet-heartbeat", daemon=True)

    def sign(self) -> None:
        """Something was printed, or work has advanced on the screen."""
        self._sign_s = time.monotonic()

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Say nothing more."""
        self._done.set()

    def _watch(self) -> None:
        line_s = 0.0
        look: Look | None = None
        while not self._done.wait(LOOK_S):
            sign_s, now_s = self._sign_s, time.monotonic()
            silent_s = now_s - max(sign_s, line_s)
            if silent_s < PERIOD_S / 2:
                look = None
            elif look is None:
                look = Look()
            elif silent_s >= PERIOD_S:
                held, look = look.held_up(), None
                if self._sign_s == sign_s and not self._done.is_set():
                    self._say(now_s - sign_s, held)
                    self._sign_s, line_s = sign_s, now_s  # its own line does not count
