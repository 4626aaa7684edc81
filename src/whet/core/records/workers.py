"""What the workers of ``--executor ray`` measured of one server, alone and at the same time."""

from __future__ import annotations

from dataclasses import dataclass

from whet.core.load import Load
from whet.core.records.summary import Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSpeed:
    """Output tokens a second of the baseline on one worker.

    ``together`` in two windows in which all workers measure; ``alone`` between them, while the
    other workers' servers idle, on two of the workers and None on the others.
    """

    worker: str
    together: tuple[float, float]
    alone: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerCheck:
    """The baseline at one load on every worker.

    ``together`` is the speed of a worker beside the others over its speed alone, ``devices`` the
    largest speed over the smallest, and ``noise`` how far a window is from its worker's mean, as a
    share. ``failure`` says why there are no figures.
    """

    variant: str
    load: Load
    workers: tuple[str, ...]
    speeds: tuple[WorkerSpeed, ...] = ()
    together: Estimate | None = None
    devices: float | None = None
    noise: float | None = None
    disturbed: bool = False
    alike: bool = False
    failure: str | None = None
