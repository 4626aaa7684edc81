"""A worker's process: visits as on the driver's machine, without Ray in the measuring client.

Run as ``python -m whet.flow.run.workers.process``. It reads orders from stdin and writes what it
measured to stdout. The end of stdin means that its actor is gone: then it stops as on SIGTERM,
which ends the engine too.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory, gettempdir
from types import FrameType
from typing import IO, Any, Final, NoReturn

import psutil

from whet.core import errors
from whet.core.errors import Interrupted, WhetError
from whet.flow.run.measure.session import SessionRunner
from whet.flow.run.plan import Inputs, Recorder
from whet.flow.run.workers.check import serve_check
from whet.flow.run.workers.frames import read_frame, write_message
from whet.flow.run.workers.messages import (
    CheckOrder,
    Ended,
    FromWorker,
    Job,
    Measured,
    Setup,
    ToWorker,
    VisitOrder,
)
from whet.flow.run.workers.mirror import MirrorStore, SendingObserver

_GRACE_S: Final = 30.0
Receive = Callable[[], ToWorker]


def main() -> None:
    """Carry out orders until stdin ends."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to pass on
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep what a library prints out of the messages
    orders: SimpleQueue[ToWorker] = SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, orders), daemon=True).start()

    def send(message: FromWorker) -> None:
        with suppress(BrokenPipeError):  # the actor is gone, and stdin is about to say so
            write_message(out, message)

    with suppress(Interrupted), _folder() as folder:
        try:
            setup = orders.get()
            assert isinstance(setup, Setup)
            job = _job(setup, Path(folder), send)
            while True:
                _carry_out(job, orders.get(), orders.get, send)
        finally:  # the end of stdin asks once more, which must not cut the clean-up short
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _folder() -> TemporaryDirectory[str]:
    """Named after this process; those of killed ones, which hold prompts, are removed first.

    Errors are ignored: a guardian may still write the last lines of a log.
    """
    for old in Path(gettempdir()).glob("whet-worker-*-*"):
        pid = old.name.split("-")[2]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(old, ignore_errors=True)
    return TemporaryDirectory(prefix=f"whet-worker-{os.getpid()}-", ignore_cleanup_errors=True)


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    raise Interrupted(f"stopped by {signal.Signals(number).name}")


def _read(stream: IO[bytes], orders: SimpleQueue[ToWorker]) -> None:
    while (data := read_frame(stream)) is not None:
        orders.put(pickle.loads(data))
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_GRACE_S)
    os._exit(1)  # the guardians end the engines


def _job(setup: Setup, root: Path, send: Callable[[FromWorker], None]) -> Job:
    """The driver's job over a store and inputs of this process."""
    folder = root / "inputs"
    folder.mkdir(parents=True)
    for name, data in setup.files.items():
        (folder / name).write_bytes(data)
    paths: dict[str, Any] = {
        each.name: folder / file if (file := setup.inputs.get(each.name)) else None
        for each in fields(Inputs)
    }
    return Job(
        plan=replace(setup.job.plan, inputs=Inputs(**paths)),
        engines=setup.job.engines,
        recorder=Recorder(store=MirrorStore(root, send), observer=SendingObserver(send)),
    )


def _carry_out(
    job: Job, order: ToWorker, receive: Receive, send: Callable[[FromWorker], None]
) -> None:
    """One order to its ``Ended``, whatever happens in it."""
    store = job.recorder.store
    assert isinstance(store, MirrorStore)
    starts_left: dict[str, int] = {}
    error: BaseException | None = None
    try:
        if isinstance(order, VisitOrder):
            store.seed(order.known, order.files)
            starts_left = order.starts_left
            SessionRunner(
                plan=job.plan,
                recorder=job.recorder,
                engines=job.engines,
                starts_left=starts_left,
                after=lambda name: send(Measured(variant=name)),
            ).run(order.works, order.place)
        elif isinstance(order, CheckOrder):
            serve_check(job, order, receive, send)
    except BaseException as caught:  # the driver raises it
        error = caught
    store.send_files()
    send(Ended(starts_left=starts_left, error=None if error is None else describe(error)))
    if isinstance(error, Interrupted):
        raise error


def describe(error: BaseException) -> tuple[str, str]:
    """The nearest class of the error tree and the text; a traceback of what is not in it."""
    if isinstance(error, WhetError):
        names = (cls.__name__ for cls in type(error).__mro__)
        return next(name for name in names if hasattr(errors, name)), str(error)
    return "RuntimeError", "".join(traceback.format_exception(error))


def as_error(name: str, text: str) -> Exception:
    """The error that ``describe`` described."""
    cls: type[Exception] = getattr(errors, name, RuntimeError)
    return cls(text)


if __name__ == "__main__":
    main()
