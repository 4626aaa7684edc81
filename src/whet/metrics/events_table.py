"""The raw events as a table, one row a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from whet.core.records.load import RequestEvent, TrialRecord

if TYPE_CHECKING:
    import pandas as pd

_COUNTS = ("batch_size", "prompt_tokens", "output_tokens", "cached_tokens")
_WORDS = ("prefix_id", "finish_reason", "text", "error", "detail")


def events_table(trials: Sequence[TrialRecord]) -> pd.DataFrame:
    """One row a request, in the order of the trials; ``chunk_ns`` is a list in its cell.

    Columns: variant, batch_size, rate_rps, trial, in_window (it ended within the steady window),
    then the fields of ``RequestEvent``. Missing counts are NA.
    """
    import pandas as pd

    names = [field.name for field in fields(RequestEvent)]
    rows = [
        {
            "variant": trial.variant,
            "batch_size": trial.load.concurrency,
            "rate_rps": trial.load.rate_rps,
            "trial": trial.trial,
            "in_window": event.ended_ns <= trial.window_end_ns,
            **{name: getattr(event, name) for name in names},
            "chunk_ns": list(event.chunk_ns),
        }
        for trial in trials
        for event in trial.requests
    ]
    columns = ["variant", "batch_size", "rate_rps", "trial", "in_window", *names]
    types = dict.fromkeys(_COUNTS, "Int64") | dict.fromkeys(_WORDS, "string")
    return pd.DataFrame(rows, columns=columns).astype(types)
