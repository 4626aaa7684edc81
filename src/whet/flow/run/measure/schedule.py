"""The order of server starts, the trials of each, and the stored report of every start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from whet.core.load_point import LoadPoint
from whet.core.records import Declared, EngineFacts, ResolvedEngine, StartFacts
from whet.core.run import Run
from whet.core.store import RunStore
from whet.flow.run.measure.context import Job, cells_of

_RECORDS: Final[tuple[tuple[str, type[StartFacts | EngineFacts | Declared]], ...]] = (
    ("starts", StartFacts),
    ("facts", EngineFacts),
    ("declared", Declared),
)
StartReport = tuple[EngineFacts, Declared | None]
"""Facts from a start's log and from its endpoints; the latter are None in older runs."""


Cells = tuple[tuple[LoadPoint, int], ...]
"""(load, trial) pairs in the order of measurement."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """Servers that come up one after the other, each with what it measures."""

    servers: tuple[tuple[ResolvedEngine, Cells], ...]


def rounds_of(job: Job) -> tuple[Round, ...]:
    """The rounds of a run.

    Blocks are one round of all trials. Interleaved, each trial is a round, and every second one
    runs backwards (ABBA): over an even number of rounds all servers have the same mean place in
    time, so a linear drift shifts them alike.
    """
    load, run = job.spec.load, Run(job.store)
    points = {item.variant.name: run.points_of(item.variant.name) for item in job.resolved}

    def servers(trials: Sequence[int]) -> tuple[tuple[ResolvedEngine, Cells], ...]:
        return tuple(
            (item, tuple(cells_of(points[item.variant.name], trials))) for item in job.resolved
        )

    if load.order == "blocks":
        return (Round(servers=servers(range(load.trials))),)
    return tuple(_round(servers([trial]), trial) for trial in range(load.trials))


def confirmation_rounds(
    finalists: Sequence[tuple[ResolvedEngine, LoadPoint]], trials: Iterable[int]
) -> tuple[Round, ...]:
    """Rounds that measure each finalist at its load, under these trial numbers."""
    return tuple(
        _round(tuple((item, ((size, trial),)) for item, size in finalists), trial)
        for trial in trials
    )


def _round(servers: tuple[tuple[ResolvedEngine, Cells], ...], number: int) -> Round:
    return Round(servers=servers if number % 2 == 0 else servers[::-1])


def groups_of(job: Job, part: Round) -> tuple[tuple[tuple[ResolvedEngine, Cells], ...], ...]:
    """The servers of a round in the order of their visits: groups that come up together, or one.

    A group stands where its first member would, and its members follow in the round's order.
    """
    together = {name: names for names in job.spec.load.together for name in names}
    groups: dict[tuple[str, ...], list[tuple[ResolvedEngine, Cells]]] = {}
    for item in part.servers:
        name = item[0].variant.name
        groups.setdefault(together.get(name, (name,)), []).append(item)
    return tuple(tuple(members) for members in groups.values())


def store_start(store: RunStore, name: str, start: StartFacts, report: StartReport) -> int:
    """Store a start of a variant's server under the variant's name, as its newest.

    The previous newest start moves to ``<kind>/earlier/<name>/<n>``. Return the start's number:
    the count of earlier starts of this server in the run.
    """
    number = make_room(store, name)
    facts, declared = report
    store.put("starts", name, start)
    store.put("facts", name, facts)
    if declared is not None:
        store.put("declared", name, declared)
    return number


def make_room(store: RunStore, name: str) -> int:
    """Move the newest start of a variant's server to the earlier ones; the next start's number."""
    number = _count_earlier(store, name)
    if store.get("starts", name, StartFacts) is None:
        return 0
    for kind, cls in _RECORDS:
        before = store.get(kind, name, cls)
        if before is not None:
            store.put(kind, _earlier(name, number), before)
    return number + 1


def start_key(store: RunStore, name: str, number: int) -> str:
    """The store's key of a start by its number."""
    newest = _count_earlier(store, name)
    return name if number >= newest else _earlier(name, number)


def _count_earlier(store: RunStore, name: str) -> int:
    return next(n for n in count() if store.status("starts", _earlier(name, n)) is None)


def every_start(store: RunStore, name: str) -> tuple[StartReport, ...]:
    """Return the report of each start of a variant's server, in order."""
    keys = []
    for n in count():
        if store.status("starts", key := _earlier(name, n)) is None:
            break
        keys.append(key)
    reports = (
        (store.get("facts", key, EngineFacts), store.get("declared", key, Declared))
        for key in (*keys, name)
    )
    return tuple((facts, declared) for facts, declared in reports if facts is not None)


def _earlier(name: str, number: int) -> str:
    return f"earlier/{name}/{number}"
