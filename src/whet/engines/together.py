"""Servers that come up at the same time, each in a thread of its own, and stop together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread

from whet.core.errors import EngineStartError
from whet.core.protocols import Engine, Observer, Server
from whet.core.records.engine import ResolvedEngine
from whet.engines.starved import LOOK_S, StartWatch


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """A server to start, and where it writes its log."""

    engine: Engine
    resolved: ResolvedEngine
    log: Path


class _ServerThread(Thread):
    """Starts one server, holds it until ``release`` is set, stops it.

    One thread does all three, so that stops overlap too. ``ended`` receives the thread when
    its start has ended, with ``server`` or ``error`` set.
    """

    def __init__(self, start: Start, ended: SimpleQueue[_ServerThread]) -> None:
        # A daemon: a second Ctrl-C must not wait here, and the guardians outlive this process.
        super().__init__(name=f"whet-start-{start.resolved.variant.name}", daemon=True)
        self.server: Server | None = None
        self.error: BaseException | None = None
        self.release = Event()
        self.wanted, self._ended = start, ended

    def run(self) -> None:
        try:
            with self.wanted.engine.serve(
                self.wanted.resolved, log=self.wanted.log, stop=self.release
            ) as server:
                self.server = server
                self._ended.put(self)
                self.release.wait()
        except BaseException as error:  # whatever it is, the main thread raises it
            self.error = error
            self._ended.put(self)

    @property
    def outcome(self) -> Server | EngineStartError:
        if isinstance(self.error, EngineStartError):
            return self.error
        assert self.server is not None
        return self.server


@contextmanager
def serve_together(
    wanted: Sequence[Start], observer: Observer
) -> Iterator[tuple[Server | EngineStartError, ...]]:
    """Yield each server, or why it did not start, once every start has ended; stop all at the end.

    Whatever else goes wrong, with a start or with the caller, stops all servers, also those that
    are still on their way up, and is raised. The observer is called from the calling thread alone.
    """
    ended: SimpleQueue[_ServerThread] = SimpleQueue()
    threads = [_ServerThread(start, ended) for start in wanted]
    watch = StartWatch(observer.warn)
    try:
        for each in threads:
            each.start()
        for number in range(len(threads)):
            observer.progress("starting", number, len(threads))
            error = _next(ended, watch).error
            if error is not None and not isinstance(error, EngineStartError):
                raise error
        yield tuple(each.outcome for each in threads)
    finally:
        _stop(threads)
    for each in threads:
        if each.error is not None and each.server is not None:  # it came up and could not be ended
            raise each.error


def _next(ended: SimpleQueue[_ServerThread], watch: StartWatch) -> _ServerThread:
    """The next start that ends; meanwhile those that are held up are named."""
    while True:
        with suppress(Empty):
            return ended.get(timeout=LOOK_S)
        watch.look()


def _stop(threads: Sequence[_ServerThread]) -> None:
    for each in threads:
        each.release.set()
    for each in threads:
        if each.ident is not None:
            each.join()
