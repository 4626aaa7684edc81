"""What a run proved or failed to start, as rows of the compatibility table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whet.core.errors import StorageError
from whet.core.provenance import Environment, find_device
from whet.core.records import ResolvedEngine, StartFacts, VerdictSet, decode
from whet.core.store import RunStore
from whet.engines.compatibility import STOPS, Row, add_own, known_of, levers_of, version_of
from whet.engines.failures import diagnose
from whet.engines.machine import Machine, find_machine
from whet.engines.vllm.failures import FAILURES

_BLAMED: Final = frozenset({"no_kernel", "missing_module", "flag", "other"})
"""Failures of a lever. A lack of memory or a taken port says nothing of what is supported."""
_NAMES_OF: Final = {
    "weights": ("weights_scheme", "quantization"),
    "kv_cache": ("kv_cache_dtype",),
    "attention": ("attention_backend",),
    "execution": ("enforce_eager", "optimization_level"),
    "parallelism": ("enable_expert_parallel",),
}
"""Claims whose levers are named otherwise than they.

``settings`` is none of them: that a setting was taken over does not prove that it does something.
"""
_PLAIN: Final = re.compile(r"[\w.]+(=[A-Za-z][\w.+-]*)?")
"""A lever whose value is a word: what a number means differs from one model to the next."""
_UNQUANTIZED: Final = ("weights_scheme=16bit", "weights_scheme=32bit")
_SHOWN: Final = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """What a run directory says: variants, which of them came up, verdicts, the machine."""

    store: RunStore
    variants: dict[str, ResolvedEngine]
    machine: Machine
    here: bool

    @property
    def started(self) -> list[ResolvedEngine]:
        """Those whose last start succeeded."""
        return [
            item
            for name, item in self.variants.items()
            if self.store.get("starts", name, StartFacts) is not None
            and self.store.reason("starts", name) is None
        ]


def learn(store: RunStore) -> tuple[Row, ...]:
    """The rows that a run directory proves, one a lever.

    A lever works where every verdict on its claim says *proved*; it fails where a server did not
    start that differs by this one lever from one that did. Rows hold for the minor version that
    was seen. Of a run made on another machine only what works is taken, for its whole kind of
    device. Raises ``StorageError`` where the folder holds no run that can be read.
    """
    run = _read(store)
    rows = [*_proved(run), *(_failed(run) if run.here else ())]
    # A lever may be proved by one variant and blamed in another: then it is not the lever.
    works = {row.lever for row in rows if row.outcome not in STOPS}
    told = (row for row in rows if row.outcome not in STOPS or row.lever not in works)
    return tuple({(row.machine, row.since, row.lever): row for row in told}.values())


def learn_into_own(folder: Path) -> tuple[Row, ...]:
    """Learn from a run directory into one's own table; gives the rows that were written."""
    rows = learn(RunStore.read(folder))
    return add_own(rows) if rows else ()


def _read(store: RunStore) -> _Run:
    path = store.path("environment.json")
    try:
        environment = decode(Environment, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{path} is missing or damaged, so nothing can be learned of the machine; give a run "
            "that got past its preflight"
        ) from error
    device = environment.device
    here = (device.kind, _model(device.name)) == (find_device().kind, _model(find_device().name))
    return _Run(
        store=store,
        variants={item.variant.name: item for item in store.all("variants", ResolvedEngine)},
        machine=find_machine(device.kind) if here else Machine(kind=device.kind),
        here=here,
    )


def _model(name: str) -> str:
    """A CPU's name without how many of its cores the process was given."""
    return name.split(" × ", maxsplit=1)[0]


def _proved(run: _Run) -> Iterator[Row]:
    for kept in run.store.all("verdicts", VerdictSet):
        item = run.variants.get(kept.variant)
        if item is None:
            continue
        outcomes: dict[str, set[str]] = {}
        for verdict in kept.verdicts:
            outcomes.setdefault(verdict.claim.kind, set()).add(verdict.outcome)
        proved = [kind for kind, found in outcomes.items() if found == {"proved"}]
        for lever in _levers(item, proved):
            yield _works(run, item, lever)


def _works(run: _Run, item: ResolvedEngine, lever: str) -> Row:
    """That it runs does not make it fast: what is known of a lever that runs is kept."""
    known = known_of(lever, engine=item.engine, version=item.engine_version, machine=run.machine)
    if known is None or known.outcome in STOPS:
        return _row(run, item, lever, "works", "its evidence was proved in a run")
    return _row(run, item, lever, known.outcome, known.says)


def _levers(item: ResolvedEngine, kinds: Iterable[str]) -> Iterator[str]:
    names = {name for kind in kinds for name in (kind, *_NAMES_OF.get(kind, ()))}
    for lever in sorted(levers_of(item.variant)):
        plain = _PLAIN.fullmatch(lever) is not None and lever not in _UNQUANTIZED
        if plain and lever.split("=")[0].split(".")[0] in names:
            yield lever


def _failed(run: _Run) -> Iterator[Row]:
    started = [_set_by(item) for item in run.started]
    for name, item in run.variants.items():
        reason = run.store.reason("starts", name)
        if reason is None or not _is_the_levers_fault(run.store, name):
            continue
        fewest = min((_set_by(item) - theirs for theirs in started), key=len, default=frozenset())
        if len(fewest) == 1 and _PLAIN.fullmatch(lever := next(iter(fewest))):
            says = f"its server did not start: {reason[:_SHOWN]}; delete this row once it does"
            yield _row(run, item, lever, "fails", says)


def _set_by(item: ResolvedEngine) -> frozenset[str]:
    """The levers that a person set: the model is none."""
    found = levers_of(item.variant)
    return frozenset(lever for lever in found if not lever.startswith("model="))


def _is_the_levers_fault(store: RunStore, name: str) -> bool:
    """By the log's own words: without a log, or without a cause in it, nothing is blamed."""
    try:
        log = store.path("logs", f"{name}.log").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    failure = diagnose(log, FAILURES)
    return failure is not None and failure.kind in _BLAMED


def _row(run: _Run, item: ResolvedEngine, lever: str, outcome: str, says: str) -> Row:
    major, minor, _ = version_of(item.engine_version)
    machine = run.machine.word
    return Row(
        engine=item.engine,
        since=f"{major}.{minor}",
        until=f"{major}.{minor + 1}",
        machine=machine,
        lever=lever,
        outcome=outcome,
        says=" ".join(says.split()),
        basis=f"seen {item.engine_version} {machine}",
        own=True,
    )
