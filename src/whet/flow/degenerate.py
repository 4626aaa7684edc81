"""Degenerate text among the timed answers of every variant of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from whet.checkpoint.tokenizer import read_vocabulary
from whet.core.errors import WhetError
from whet.core.records import DegenerateTraffic, ModelFacts, RequestEvent
from whet.core.store import RunStore
from whet.flow.findings import Kept, read_kept
from whet.load.pool import read_pool
from whet.quality.traffic_text import examine_traffic, read_baseline

KIND = "degenerate"
"""The store's kind; a variant's name is the key."""


def examine_all(store: RunStore) -> tuple[DegenerateTraffic, ...]:
    """Look at every timed answer of the run and store a record for each variant that has any.

    All trials count, also one cut short: what it heard was said. The A/A repeat has no record of
    its own. An adapter may be there to change the language, so a variant with adapters is not
    judged by the baseline's. Raises ``StorageError`` where a record cannot be read or written.
    """
    kept = read_kept(store)
    ends = _ends(store)
    baseline = kept.spec.baseline
    judge = read_baseline(_timed(kept, baseline), ends=ends, prompts=_prompts(kept))
    made = []
    for name, resolved in kept.resolved.items():
        if not any(variant == name for variant, _ in kept.trials):
            continue
        against = replace(judge, language=None) if resolved.variant.loras else judge
        record = examine_traffic(
            name, _timed(kept, name), None if name == baseline else against, ends=ends
        )
        store.put(KIND, name, record)
        made.append(record)
    return tuple(made)


def _timed(kept: Kept, name: str) -> Iterator[RequestEvent]:
    for (variant, _), trials in kept.trials.items():
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
        # Without them forced text is judged past its end too, on both sides alike.
        return ()
    return tuple(token for token, at in ids.items() if at in facts.tokenizer.eos_token_ids)


def _prompts(kept: Kept) -> Sequence[str]:
    """Every text that the traffic's prompts are made of; none where the file has gone."""
    path = kept.spec.workload.pool or kept.store.path("inputs", "workload.jsonl")
    try:
        pool = read_pool(path)
    except (WhetError, OSError):
        return ()
    return [*pool.system_short, *pool.system_long, *pool.user]
