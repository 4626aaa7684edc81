"""What a resume skips, and what it refuses: another spec or other weights.

Checkpoints that are there are skipped by ``measure.quantize``. A filled folder without ``--resume``
is refused by ``core.store``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from whet.core.errors import UsageError
from whet.core.load import Load, trial_key
from whet.core.records.engine import ResolvedEngine
from whet.core.records.load import RateSearch, TrialRecord
from whet.core.records.model import ModelFacts
from whet.core.run import read_spec
from whet.core.spec import Spec, redacted_spec
from whet.core.store import RunStore

_FIXED_ON_RESUME = ("model", "engine", "traffic", "workload", "load", "quality", "baseline")
REPEATS: Final = 2
"""Fresh starts that repeat an invalid trial: a server that was asked before may remember it."""


def missing_trials(
    store: RunStore, resolved: ResolvedEngine, cells: Iterable[tuple[Load, int]]
) -> list[tuple[Load, int]]:
    """Return the (load, trial) pairs that the run does not hold yet; all others are skipped."""
    name = resolved.variant.name
    return [cell for cell in cells if not store.done("trials", trial_key(name, *cell))]


def invalid_trials(
    store: RunStore, resolved: ResolvedEngine, cells: Iterable[tuple[Load, int]]
) -> dict[tuple[Load, int], TrialRecord]:
    """Return the trials that are to be repeated, ``REPEATS`` times at most, by load and number."""
    name = resolved.variant.name
    records = {cell: store.get("trials", trial_key(name, *cell), TrialRecord) for cell in cells}
    return {cell: each for cell, each in records.items() if each is not None and each.is_invalid}


def lacks_quality(store: RunStore, resolved: ResolvedEngine) -> bool:
    """Return whether a variant's answers are still to be checked."""
    return not store.done("quality", resolved.variant.name)


def lacks_rates(store: RunStore, resolved: ResolvedEngine) -> bool:
    """Return whether a variant's highest rate is still to be searched."""
    return not store.done("rates", resolved.variant.name)


def searched_points(store: RunStore, resolved: ResolvedEngine) -> tuple[Load, ...]:
    """Return the rates that a variant's search found, or that its log has."""
    search = store.get("rates", resolved.variant.name, RateSearch)
    return () if search is None else search.points


def refuse_changes(spec: Spec, store: RunStore) -> None:
    """On resume refuse a change of the spec that would mix unlike measurements.

    A folder without a journal holds no measurement. Raises ``UsageError``.
    """
    path = store.path("resolved_spec.json")
    data = redacted_spec(spec.model_dump(mode="json"))
    if path.exists() and store.path("journal.jsonl").exists():
        before = redacted_spec(read_spec(path).model_dump(mode="json"))
        changed = [key for key in _FIXED_ON_RESUME if before.get(key) != data.get(key)]
        changed += [
            f"{section}.{name}"
            for section in ("engines", "recipes", "variants")
            for name, item in before.get(section, {}).items()
            if name in data[section] and data[section][name] != item
        ]
        if changed:
            raise UsageError(
                f"the spec differs from the run's own in {', '.join(changed)}",
                fix="put it back to resume, or start a new run (--name)",
            )


def store_model(role: str, facts: ModelFacts, store: RunStore) -> None:
    """Store a checkpoint's facts; ``UsageError`` where its weights are not the run's."""
    before = store.get("models", role, ModelFacts)
    if before is not None and before.weights_sha256 != facts.weights_sha256:
        raise UsageError(
            f"the {role}'s weights changed since this run began", fix="start a new run (--name)"
        )
    store.put("models", role, facts)
