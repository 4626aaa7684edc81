"""Servers that come up at the same time, each in a thread of its own, and stop together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread

from whet.core.errors import EngineStartError
from whet.core.protocols import Server
from whet.core.records import ResolvedEngine
from whet.flow.run.context import Job


class _ServerThread(Thread):
    """Starts one server, holds it until ``release`` is set, stops it.

    One thread does all three, so that stops overlap too. ``ended`` receives the thread when
    its start has ended, with ``server`` or ``error`` set.
    """

    def __init__(
        self, job: Job, resolved: ResolvedEngine, ended: SimpleQueue[_ServerThread]
    ) -> None:
        # A daemon: a second Ctrl-C must not wait here, and the guardians outlive this process.
        super().__init__(name=f"whet-start-{resolved.variant.name}", daemon=True)
        self.server: Server | None = None
        self.error: BaseException | None = None
        self.release = Event()
        self.resolved = resolved
        self._job, self._ended = job, ended

    def run(self) -> None:
        try:
            with self._job.engine_for(self.resolved.engine).serve(
                self.resolved, log=log_of(self._job, self.resolved), stop=self.release
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
    job: Job, wanted: Sequence[ResolvedEngine]
) -> Iterator[tuple[Server | EngineStartError, ...]]:
    """Yield each server, or why it did not start, once every start has ended; stop all at the end.

    Whatever else goes wrong, with a start or with the caller, stops all servers, also those that
    are still on their way up, and is raised. The observer is called from the calling thread alone.
    """
    ended: SimpleQueue[_ServerThread] = SimpleQueue()
    threads = [_ServerThread(job, resolved, ended) for resolved in wanted]
    try:
        for each in threads:
            each.start()
        for number in range(len(threads)):
            job.observer.waiting(
                f"starting, {number} of {len(threads)} ready", log_of(job, threads[-1].resolved)
            )
            error = ended.get().error
            if error is not None and not isinstance(error, EngineStartError):
                raise error
        yield tuple(each.outcome for each in threads)
    finally:
        _stop(threads)
    for each in threads:
        if each.error is not None and each.server is not None:  # it came up and could not be ended
            raise each.error


def log_of(job: Job, resolved: ResolvedEngine) -> Path:
    """Where a variant's server writes its log."""
    return job.store.path("logs", f"{resolved.variant.name}.log")


def _stop(threads: Sequence[_ServerThread]) -> None:
    for each in threads:
        each.release.set()
    for each in threads:
        if each.ident is not None:
            each.join()
