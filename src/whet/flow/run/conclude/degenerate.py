"""Degenerate text among the timed answers of every variant of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from whet.checkpoint.tokenizer import read_vocabulary
from whet.core.errors import WhetError
from whet.core.load import workload_key
from whet.core.records.quality_checks import DegenerateTraffic
from whet.core.run import Run
from whet.quality import TimedAnswer, examine_traffic

KIND = "degenerate"
"""The store's kind; a variant's name is the key."""


def examine_all(run: Run) -> tuple[DegenerateTraffic, ...]:
    """Search every timed answer of the run and store a record for each variant that has any.

    All trials count, also interrupted ones. The A/A repeat has no record of its own. Raises
    ``StorageError`` where a record cannot be read or written.
    """
    spec = run.require_spec()
    measured = {trial.variant for trial in run.trials}
    timed = {name: _timed(run, name) for name in run.engines if name in measured}
    records = examine_traffic(timed, spec.baseline, ends=_ends(run))
    if spec.is_private:
        records = tuple(map(_without_text, records))
    for record in records:
        run.store.put(KIND, record.variant, record)
    return records


def _without_text(record: DegenerateTraffic) -> DegenerateTraffic:
    """The counts alone: answers to a user's own prompts are not shown."""
    return replace(record, examples=(), reason=record.reason and record.reason.split(";")[0])


def _timed(run: Run, name: str) -> Iterator[TimedAnswer]:
    """The answers of a variant; failed requests are left out."""
    for trial in run.trials:
        if trial.variant != name:
            continue
        key = workload_key(trial.load, trial.trial)
        sources = run.workloads[key].sources if key in run.workloads else ()
        for event in trial.requests:
            if event.error is None:
                # Without sources, as in replays of a log, requests of one number are one prompt.
                prompt = sources[event.index] if event.index < len(sources) else event.index
                yield TimedAnswer(prompt=prompt, request=(key, event.index), text=event.text)


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
