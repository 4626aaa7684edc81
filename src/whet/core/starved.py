"""Servers that get no processor time: what holds them up, in words."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

_LEAST_SHARE: Final = 0.25
"""Seconds of processor time per second: imports, loading, compilation and steps take more."""
_BUSY_PERCENT: Final = 75.0
"""Of the machine's cores; below, a server finds a free one."""
_SAMPLE_S: Final = 1.0
_NAMED: Final = 3
_HELD: Final = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)

SERVERS: Final[set[Callable[[], list[psutil.Process]]]] = set()
"""What returns the processes of each server that this process has started."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldUp:
    """Why servers have had little processor time; ``by_others`` for other work, or a stop."""

    reason: str
    by_others: bool


class Look:
    """What the servers of this process had used when it was made."""

    def __init__(self) -> None:
        self._began_s, self._server_s = time.monotonic(), spent_s(_processes())

    def held_up(self) -> HeldUp | None:
        """What has held the servers up since; None if they computed, or without servers.

        Takes a second where they did not.
        """
        tree = _processes()
        if stopped := " ".join(str(each.pid) for each in tree if _state(each) in _HELD):
            words = f"the server is stopped (SIGSTOP); let it go on with kill -CONT {stopped}"
            return HeldUp(reason=words, by_others=True)
        past_s = time.monotonic() - self._began_s
        server_s = max(0.0, spent_s(tree) - self._server_s)
        if not tree or server_s >= _LEAST_SHARE * past_s:
            return None
        busiest = _busiest({each.pid for each in tree})
        why = "processors are idle, so it waits: for requests, the disk, a download or a device"
        if busiest is not None:
            why = f"the machine is busy with {busiest}; {how_to_free(busiest)}"
        words = f"the server gets little CPU ({server_s:.0f} s in {past_s:.0f} s{_nice(tree)})"
        return HeldUp(reason=f"{words}: {why}", by_others=busiest is not None)


def _processes() -> list[psutil.Process]:
    every = (process for processes in list(SERVERS) for process in processes())
    return list({each.pid: each for each in every}.values())


def _nice(tree: Iterable[psutil.Process]) -> str:
    """The nice value that lets others go first: whet's, or a higher one of a timed window."""
    values = [0]
    for each in tree:
        with suppress(psutil.Error, OSError, ValueError, IndexError):
            values.append(each.nice())
            values.append(int(Path(f"/proc/{each.pid}/autogroup").read_text().split()[-1]))
    whose = " while whet measures" if max(values) > psutil.Process().nice() else ""
    return f", at nice {max(values)}{whose}" if max(values) > 0 else ""


def _busiest(own: Container[int]) -> str | None:
    """The processes that use most for a second, those of other containers unseen; None if idle."""
    fields = [
        "cpu_percent",
        "name",
        "memory_info",
    ]  # the share since the process was last looked at
    list(psutil.process_iter(fields))
    if psutil.cpu_percent(_SAMPLE_S) < _BUSY_PERCENT:
        return None
    others = [each for each in psutil.process_iter(fields) if each.pid not in own]
    top = sorted(others, key=lambda each: each.info["cpu_percent"] or 0.0, reverse=True)[:_NAMED]
    named = [
        f"{process_name(each.info)} ({each.pid}, {share:.0f}% of a core)"
        for each in top
        if (share := each.info["cpu_percent"])
    ]
    return ", ".join(named) or "work that is not visible from here"


def process_name(info: Mapping[str, Any]) -> str:
    """The name of a process by psutil's fields; a kernel thread's in brackets, as ``ps`` has it."""
    memory = info["memory_info"]  # a kernel thread has none of its own
    return f"[{info['name']}]" if memory and not memory.vms else str(info["name"])


def how_to_free(busiest: str) -> str:
    """What frees the cores that these processes use, the first of them most."""
    kernel = re.match(r"\[\S+\]", busiest)  # a program may put half of one into its title
    return "wait, or look at what loads the kernel" if kernel else "end them, or wait"


def spent_s(tree: Iterable[psutil.Process]) -> float:
    """Processor seconds of the processes, of their ended children too."""
    total_s = 0.0
    for each in tree:
        with suppress(psutil.Error):
            times = each.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


def _state(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return process.status()
    return psutil.STATUS_DEAD
