"""The matrix: kind of fault × point of the run × state of the engine."""

from __future__ import annotations

import errno
import signal
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from whet.core.errors import Interrupted, StorageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What goes wrong, and how the command ends: None where the records decide that.

    ``script`` is what the server does from then on, until it is started again; where it ``breaks``
    requests, each of them is an error.
    """

    script: dict[str, Any] = field(default_factory=dict)
    breaks: bool = False
    dies: bool = False
    refuses: bool = False
    forgets: bool = False
    signal: int = 0
    disk: int = 0
    code: int | None = None

    @property
    def is_of_server(self) -> bool:
        return not self.signal and not self.disk


def _wire(fault: str) -> Kind:
    return Kind(script={"fault": fault}, breaks=True)


def _signal(number: signal.Signals) -> Kind:
    code = -number if number == signal.SIGKILL else Interrupted.exit_code
    return Kind(signal=number, code=code)


KINDS: Final = {
    **{
        fault: _wire(fault)
        for fault in (
            *("reset", "reset_before", "eof", "hang", "flood", "sse_error", "bad_chunk"),
            *("bad_http", "empty", "wrong_content_type"),
        )
    },
    "invalid_utf8": Kind(script={"fault": "invalid_utf8"}),
    **{
        f"http_{status}": Kind(script={"status": status}, breaks=True) for status in (401, 429, 500)
    },
    "counters_500": Kind(script={"metrics_status": 500}),
    "counters_gone": Kind(script={"metrics": False}),
    "counters_zero": Kind(forgets=True),
    "no_usage": Kind(script={"usage": False}),
    "dies": Kind(script={"fault": "reset"}, dies=True, breaks=True),
    "refuses": Kind(refuses=True),
    **{
        errno.errorcode[number]: Kind(disk=number, code=StorageError.exit_code)
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
    },
    **{
        number.name: _signal(number)
        for number in (
            *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL),
        )
    },
}
POINTS: Final = {
    "first_record": ("models", 1),
    "checked": ("variants", 2),
    "started": ("starts", 1),
    "in_a_trial": ("window", 2),
    "between_trials": ("trials", 1),
    "answers": ("trials", 2),
    "second_start": ("serve", 2),
    "second_trial": ("trials", 3),
    "concluding": ("effects", 1),
}
"""The n-th record of a kind, start of a server (``serve``) or timed request (``window``)."""
STATES: Final = ("first", "restarted")
"""``restarted``: the first server has died under load before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One fault at one point in one state."""

    kind: str
    point: str
    state: str

    def __str__(self) -> str:
        return f"{self.kind}-{self.point}-{self.state}"

    @property
    def fault(self) -> Kind:
        return KINDS[self.kind]

    @property
    def at(self) -> tuple[str, int]:
        """What is counted, and the count at which the fault comes."""
        what, count = POINTS[self.point]
        return what, count + (what in ("starts", "serve") and self.state == "restarted")


def cells() -> list[Cell]:
    """Every cell whose fault can reach the run."""
    every = (Cell(kind=kind, point=p, state=s) for kind, p, s in product(KINDS, POINTS, STATES))
    outside, last = ("first_record", "concluding"), ("answers", "second_trial")
    return [
        cell
        for cell in every
        if not (cell.fault.is_of_server and cell.point in outside)
        and not (cell.fault.refuses and cell.point in last)
    ]
