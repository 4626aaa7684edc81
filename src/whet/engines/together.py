"""Servers that come up at the same time, each in a thread of its own, and stop together."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread

from whet.core.errors import EngineStartError
from whet.core.protocols import Engine, Observer, Server
from whet.core.records.engine import ResolvedEngine


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """A server to start, and where it writes its log."""

    engine: Engine
    resolved: ResolvedEngine
    log: Path


class _ServerThread(Thread):
    """Starts one server, holds it until ``release`` is set, stops it.

    One thread does all three, so that stops overlap too. ``ended`` receives the thread when
    its start has ended at ``ended_s``, with ``server`` or ``error`` set.
    """

    def __init__(self, start: Start, ended: SimpleQueue[_ServerThread]) -> None:
        # A daemon: a second Ctrl-C must not wait here, and the guardians outlive this process.
        super().__init__(name=f"whet-start-{start.resolved.variant.name}", daemon=True)
        self.server: Server | None = None
        self.error: BaseException | None = None
        self.ended_s = 0.0
        self.release = Event()
        self.wanted, self._ended = start, ended

    def run(self) -> None:
        try:
            with self.wanted.engine.serve(
                self.wanted.resolved, log=self.wanted.log, stop=self.release
            ) as server:
                self.server = server
                self._end_start()
                self.release.wait()
        except BaseException as error:  # whatever it is, the main thread raises it
            self.error = error
            self._end_start()

    def _end_start(self) -> None:
        self.ended_s = self.ended_s or time.monotonic()
        self._ended.put(self)

    @property
    def outcome(self) -> Server | EngineStartError:
        if isinstance(self.error, EngineStartError):
            return self.error
        assert self.server is not None
        return self.server


class Group:
    """Servers that come up together; each may be ended before the others."""

    def __init__(self, wanted: Sequence[Start]) -> None:
        """Made by ``start_together`` only."""
        self._ended: SimpleQueue[_ServerThread] = SimpleQueue()
        self.threads = [_ServerThread(start, self._ended) for start in wanted]

    def await_all(self, observer: Observer) -> tuple[Server | EngineStartError, ...]:
        """Return each server, or why it did not start, once every start has ended.

        What else a start ended with is raised. The observer is called from this thread alone.
        """
        for number in range(len(self.threads)):
            observer.progress("starting", number, len(self.threads))
            error = self._ended.get().error
            if error is not None and not isinstance(error, EngineStartError):
                raise error
        return tuple(each.outcome for each in self.threads)

    @property
    def ended_s(self) -> float:
        """When the last start ended, on the monotonic clock."""
        return max(each.ended_s for each in self.threads)

    def end(self, numbers: Iterable[int] | None = None) -> None:
        """Stop the servers with these numbers, or all, and wait for that."""
        every = range(len(self.threads)) if numbers is None else numbers
        ending = [self.threads[number] for number in every]
        for each in ending:
            each.release.set()
        for each in ending:
            if each.ident is not None:
                each.join()


@contextmanager
def start_together(wanted: Sequence[Start]) -> Iterator[Group]:
    """Begin every start and yield the group at once; stop what is left of it at the end.

    Whatever goes wrong in between stops all servers, also those that are still on their way up.
    """
    group = Group(wanted)
    try:
        for each in group.threads:
            each.start()
        yield group
    finally:
        group.end()
    for each in group.threads:
        if each.error is not None and each.server is not None:  # it came up and could not be ended
            raise each.error
