"""What the driver and a worker's process say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from whet.core.load_point import LoadPoint
from whet.core.records import ResolvedEngine
from whet.flow.run.measure.session import PendingWork
from whet.flow.run.plan import Engines, Plan, Recorder


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What a worker measures, with which engines, and where it is recorded."""

    plan: Plan
    engines: Engines
    recorder: Recorder


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A journal line, with the record's JSON where it has one."""

    kind: str
    key: str
    status: str
    reason: str | None = None
    data: bytes | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """A file of the run directory that no journal line names, or more of a log."""

    path: str
    data: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """The first message: the job without its store; its inputs by field, their files by name."""

    job: Job
    inputs: Mapping[str, str]
    files: Mapping[str, bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class VisitOrder:
    """Make a visit. ``known`` and ``files`` are what the run holds of what it reads."""

    works: list[PendingWork]
    starts_left: dict[str, int]
    place: str
    known: tuple[Entry, ...]
    files: tuple[File, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckOrder:
    """Serve a variant and say ``Ready``; then measure at each ``Window``, until ``Done``."""

    resolved: ResolvedEngine
    point: LoadPoint
    lengths: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Measure the baseline once under this trial number, with so many requests a slot.

    ``known`` is as in ``VisitOrder``.
    """

    trial: int
    per_slot: int
    known: tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """No further window."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """The server of a ``CheckOrder`` is up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Output tokens a second in one window; None where it has no figure, with ``why``."""

    tokens_per_s: float | None
    seconds: float
    why: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line for the observer."""

    how: Literal["stage", "note", "warn"]
    words: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A variant has been measured as far as this visit does."""

    variant: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """The order is carried out, or ``error`` (class name, text) stopped it."""

    starts_left: Mapping[str, int]
    error: tuple[str, str] | None = None


ToWorker = Setup | VisitOrder | CheckOrder | Window | Done
FromWorker = Entry | File | Ready | Speed | Line | Measured | Ended
