"""Servers on their way up that get no processor time: what holds them up, in words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Final

import psutil

from whet.core.protocols import Server
from whet.engines.process import EngineProcess

LOOK_S: Final = 1.0
"""Seconds between two looks at a start."""
_PERIOD_S: Final = 30.0
_LEAST_SHARE: Final = 0.25
"""Seconds of processor time per second: imports, loading and compilation take a core and more."""
_BUSY_SHARE: Final = 0.75
"""Of the machine's cores; below, a server finds a free one."""
_NAMED: Final = 3
_HELD: Final = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)

_starting: Final[dict[EngineProcess, str]] = {}


@contextmanager
def on_its_way_up(process: EngineProcess, name: str) -> Iterator[None]:
    """Let a ``StartWatch`` look at the process until it is ready or given up."""
    _starting[process] = name
    try:
        yield
    finally:
        del _starting[process]


@dataclass(kw_only=True, slots=True)
class _Period:
    """What had been used when a period of a start began, in seconds by process."""

    began_s: float
    used_s: float
    server_s: float
    others_s: dict[tuple[int, float, str], float]
    length_s: float


class StartWatch:
    """Says which servers had next to no processor time in 30 s, then in 60 s, 120 s, …"""

    def __init__(self, say: Callable[[str], None]) -> None:
        """``say`` gets each sentence, from the thread that calls ``look``."""
        self._say = say
        self._periods: dict[EngineProcess, _Period] = {}

    def look(self) -> None:
        """Look at every server on its way up; to be called every ``LOOK_S``."""
        for process, name in list(_starting.items()):
            tree = process.descendants()
            period = self._periods.get(process)
            if period is None:
                self._periods[process] = _begin(tree, _PERIOD_S)
                continue
            past_s, used_s = time.monotonic() - period.began_s, _used_s() - period.used_s
            if past_s < period.length_s:
                continue
            server_s = max(0.0, _spent_s(tree) - period.server_s)
            starved = server_s < _LEAST_SHARE * past_s
            if starved:
                is_busy = used_s >= _BUSY_SHARE * past_s * (psutil.cpu_count() or 1)
                why = _held(tree) or _why(tree, period, is_busy=is_busy)
                self._say(
                    f"{name}: the server has had {server_s:.0f} s of processor time in "
                    f"{past_s:.0f} s: {why}"
                )
            self._periods[process] = _begin(tree, period.length_s * (2 if starved else 1))


@contextmanager
def watched(
    serving: AbstractContextManager[Server], say: Callable[[str], None]
) -> Iterator[Server]:
    """Start a server; meanwhile another thread looks at it, as this one waits."""
    watch, done = StartWatch(say), Event()

    def look() -> None:
        while not done.wait(LOOK_S):
            watch.look()

    thread = Thread(target=look, name="whet-start-watch", daemon=True)
    with ExitStack() as stack:
        thread.start()
        try:
            server = stack.enter_context(serving)
        finally:
            done.set()
            thread.join()
        yield server


def _begin(tree: Iterable[psutil.Process], length_s: float) -> _Period:
    return _Period(
        began_s=time.monotonic(),
        used_s=_used_s(),
        server_s=_spent_s(tree),
        others_s=_all_spent_s(),
        length_s=length_s,
    )


def _held(tree: Iterable[psutil.Process]) -> str | None:
    """That a process of the server is stopped, and how it goes on."""
    stopped = " ".join(str(each.pid) for each in tree if _state(each) in _HELD)
    return f"it is stopped (SIGSTOP); let it go on with kill -CONT {stopped}" if stopped else None


def _why(tree: Iterable[psutil.Process], period: _Period, *, is_busy: bool) -> str:
    if is_busy:
        return f"the machine is busy with {_busiest(tree, period)}; end that, or wait"
    return "it waits, and processors are idle: the disk, a download or a device may hold it up"


def _busiest(tree: Iterable[psutil.Process], period: _Period) -> str:
    """The processes that used most since the period began; those of other containers are unseen."""
    own = {each.pid for each in tree}
    spent = {
        key: now_s - period.others_s.get(key, 0.0)
        for key, now_s in _all_spent_s().items()
        if key[0] not in own
    }
    top = sorted(spent, key=lambda key: -spent[key])[:_NAMED]
    named = [f"{key[2]} ({key[0]}, {spent[key]:.0f} s)" for key in top if spent[key] > 0]
    return ", ".join(named) or "work that is not visible from here"


def _all_spent_s() -> dict[tuple[int, float, str], float]:
    """Processor seconds of each process, by id, start time and name."""
    spent = {}
    for each in psutil.process_iter(["create_time", "name", "cpu_times"]):
        if (times := each.info["cpu_times"]) is not None:
            key = (each.pid, each.info["create_time"], each.info["name"])
            spent[key] = times.user + times.system
    return spent


def _spent_s(tree: Iterable[psutil.Process]) -> float:
    """Processor seconds of the processes, of their ended children too."""
    total_s = 0.0
    for each in tree:
        with suppress(psutil.Error):
            times = each.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


def _used_s() -> float:
    """Processor seconds that the machine has worked, on all cores."""
    times = psutil.cpu_times()
    idle_s: float = times.idle + getattr(times, "iowait", 0.0)
    return sum(times) - idle_s


def _state(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return process.status()
    return psutil.STATUS_DEAD
