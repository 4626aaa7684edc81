"""Degenerate text among the timed answers of every variant of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from whet.checkpoint.tokenizer import read_vocabulary
from whet.core.errors import WhetError
from whet.core.records import DegenerateTraffic, RequestEvent
from whet.core.run import Run
from whet.quality import examine_traffic

KIND = "degenerate"
"""The store's kind; a variant's name is the key."""


def examine_all(run: Run) -> tuple[DegenerateTraffic, ...]:
    """Search every timed answer of the run and store a record for each variant that has any.

    All trials count, also interrupted ones. The A/A repeat has no record of its own. Raises
    ``StorageError`` where a record cannot be read or written.
    """
    spec = run.require_spec()
    plain = spec.baseline
    ends = _ends(run)
    baseline = examine_traffic(plain, _timed(run, plain), None, ends=ends)
    measured = {trial.variant for trial in run.trials}
    records = []
    for name in run.engines:
        if name not in measured:
            continue
        record = baseline
        if name != plain:
            record = examine_traffic(name, _timed(run, name), baseline, ends=ends)
        records.append(_without_text(record) if spec.is_private else record)
        run.store.put(KIND, name, records[-1])
    return tuple(records)


def _without_text(record: DegenerateTraffic) -> DegenerateTraffic:
    """The counts alone: answers to a user's own prompts are not shown."""
    return replace(record, examples=(), reason=record.reason and record.reason.split(";")[0])


def _timed(run: Run, name: str) -> Iterator[RequestEvent]:
    for trial in run.trials:
        if trial.variant == name:
            yield from trial.requests


def _ends(run: Run) -> tuple[str, ...]:
    """The texts of the tokens that end an answer; empty where the tokenizer is gone."""
    facts = run.models.get("target")
    if facts is None:
        return ()
    try:
        ids = read_vocabulary(Path(facts.path)).ids
    except (WhetError, OSError):
        # Then forced text is judged past its end too, on both sides alike.
        return ()
    return tuple(token for token, at in ids.items() if at in facts.tokenizer.eos_token_ids)
