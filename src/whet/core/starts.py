"""The stored report of every start of a variant's server."""

from __future__ import annotations

from itertools import count
from typing import Final

from whet.core.records.engine import StartFacts
from whet.core.records.evidence import Declared, EngineFacts
from whet.core.store import RunStore
from whet.core.units import human_duration

_RECORDS: Final[tuple[tuple[str, type[StartFacts | EngineFacts | Declared]], ...]] = (
    ("starts", StartFacts),
    ("facts", EngineFacts),
    ("declared", Declared),
)
StartReport = tuple[EngineFacts, Declared | None]
"""Facts from a start's log and from its endpoints; None for a server without them."""


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
    earlier = (_earlier(name, number) for number in range(_count_earlier(store, name)))
    reports = (
        (store.get("facts", key, EngineFacts), store.get("declared", key, Declared))
        for key in (*earlier, name)
    )
    return tuple((facts, declared) for facts, declared in reports if facts is not None)


def _earlier(name: str, number: int) -> str:
    return f"earlier/{name}/{number}"


def start_parts(start: StartFacts, facts: EngineFacts | None) -> dict[str, float | None]:
    """Seconds of each part of a start; None where the log does not say.

    ``imports`` has the spawning of processes and the reading of the configuration with it;
    ``rest`` is what the other parts do not explain, None where none is known.
    """
    facts = facts or EngineFacts()
    parts: dict[str, float | None] = {
        "imports": _minus(start.health_s, facts.core_s),
        "weights": facts.load_s,
        "compile": facts.compile_s,
        "graphs": facts.graphs_s,
        "warm-up": _minus(facts.init_s, (facts.compile_s or 0) + (facts.graphs_s or 0)),
    }
    known = [seconds for seconds in parts.values() if seconds is not None]
    return parts | {"rest": _minus(start.ready_s, sum(known)) if known else None}


def start_text(start: StartFacts, facts: EngineFacts | None) -> str:
    """``26.3 s, forked: imports 18, weights 1, warm-up 5, rest 2``."""
    parts = start_parts(start, facts).items()
    words = [f"{name} {seconds:.0f}" for name, seconds in parts if seconds is not None]
    ready = f"{human_duration(start.ready_s)}{', forked' if start.forked else ''}"
    return f"{ready}: {', '.join(words)}" if words else ready


def _minus(whole: float | None, part: float | None) -> float | None:
    return None if whole is None or part is None else max(0.0, whole - part)
