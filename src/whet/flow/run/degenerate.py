"""Degenerate text among the timed answers of every variant of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from whet.checkpoint.tokenizer import read_vocabulary
from whet.core.errors import WhetError
from whet.core.records import DegenerateTraffic, ModelFacts, RequestEvent
from whet.core.store import RunStore
from whet.flow.run.results import Kept, read_kept
from whet.quality import examine_traffic

KIND = "degenerate"
"""The store's kind; a variant's name is the key."""


def examine_all(store: RunStore) -> tuple[DegenerateTraffic, ...]:
    """Search every timed answer of the run and store a record for each variant that has any.

    All trials count, also interrupted ones. The A/A repeat has no record of its own. Raises
    ``StorageError`` where a record cannot be read or written.
    """
    run = read_kept(store)
    ends = _ends(store)
    baseline = examine_traffic(run.spec.baseline, _timed(run, run.spec.baseline), None, ends=ends)
    records = []
    for name in run.resolved:
        if not any(variant == name for variant, _ in run.trials):
            continue
        record = baseline
        if name != run.spec.baseline:
            record = examine_traffic(name, _timed(run, name), baseline, ends=ends)
        store.put(KIND, name, record)
        records.append(record)
    return tuple(records)


def _timed(run: Kept, name: str) -> Iterator[RequestEvent]:
    for (variant, _), trials in run.trials.items():
        if variant == name:
            for trial in trials:
                yield from trial.requests


def _ends(store: RunStore) -> tuple[str, ...]:
    """The texts of the tokens that end an answer; none where the tokenizer is no longer there."""
    facts = store.get("models", "target", ModelFacts)
    if facts is None:
        return ()
    try:
        ids = read_vocabulary(Path(facts.path)).ids
    except (WhetError, OSError):
        # Then forced text is judged past its end too, on both sides alike.
        return ()
    return tuple(token for token, at in ids.items() if at in facts.tokenizer.eos_token_ids)
