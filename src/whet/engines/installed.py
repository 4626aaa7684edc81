"""What is installed of an engine, and which levers of its compatibility table it can run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from whet.engines.compatibility import STOPS, WARNINGS, Row, most_specific
from whet.engines.machine import Machine

Status = Literal["available", "slow", "doubtful", "not available here", "not known here"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """``cpu_build`` is True for a build for CPUs; ``packages`` are others that a lever may need."""

    version: str
    cpu_build: bool
    packages: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LeverStatus:
    """One lever on a machine; ``row`` is None where the table does not cover it."""

    lever: str
    status: Status
    row: Row | None


def is_blocked(row: Row, installed: Installed | None) -> bool:
    """Whether this table row blocks the lever on this installation."""
    if row.outcome == "needs package":
        return installed is None or row.package not in installed.packages
    return row.outcome in STOPS


def lever_statuses(
    rows: Sequence[Row], engine: str, installed: Installed, machine: Machine
) -> tuple[LeverStatus, ...]:
    """The status of every lever of the table, in the table's order."""
    levers = dict.fromkeys(row.lever for row in rows)
    covering = [row for row in rows if row.applies(engine, installed.version, machine)]
    chosen = {
        lever: most_specific(row for row in covering if row.lever == lever) for lever in levers
    }
    return tuple(
        LeverStatus(lever=lever, status=_status(row, installed), row=row)
        for lever, row in chosen.items()
    )


def _status(row: Row | None, installed: Installed) -> Status:
    if row is None:
        return "not known here"
    if is_blocked(row, installed):
        return "not available here"
    if row.outcome in WARNINGS:
        return "slow" if row.outcome == "works, slow" else "doubtful"
    return "available"
