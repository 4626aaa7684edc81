"""Raw requests as Parquet, one row a request, so that every figure can be computed again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from whet.core.records.load import RequestEvent, TrialRecord
from whet.core.store import open_output

if TYPE_CHECKING:
    import pandas as pd

_COUNTS: Final = ("batch_size", "prompt_tokens", "output_tokens", "cached_tokens")
_TEXTS: Final = ("variant", "prefix_id", "finish_reason", "text", "error", "detail")


def write_parquet(trials: Sequence[TrialRecord], path: Path, *, texts: bool = True) -> None:
    """Write every request of every trial. Times are monotonic ns since the trial began.

    Without ``texts`` the answers are left out.
    Raises ``StorageError`` where the disk is full.
    """
    table = events_table(trials)
    if not texts:
        table["text"] = ""
    with open_output(path) as file:
        table.to_parquet(file, index=False, compression="zstd")


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
    # A column of nothing but None keeps its type, so that the files of several runs join.
    types = dict.fromkeys(_COUNTS, "Int64") | dict.fromkeys(_TEXTS, "string")
    return pd.DataFrame(rows, columns=columns).astype(types)
