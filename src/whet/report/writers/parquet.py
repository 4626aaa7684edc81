"""Raw requests as Parquet, one row a request, so that every figure can be computed again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from whet.core.records.load import TrialRecord
from whet.core.store import open_output
from whet.metrics import events_table

_TEXTS: Final = ("variant", "prefix_id", "finish_reason", "text", "error", "detail")


def write_parquet(trials: Sequence[TrialRecord], path: Path, *, texts: bool = True) -> None:
    """Write every request of every trial. Times are monotonic ns since the trial began.

    Without ``texts`` the answers are left out.
    Raises ``StorageError`` where the disk is full.
    """
    # A column of nothing but None keeps its type, so that the files of several runs join.
    table = events_table(trials).astype(dict.fromkeys(_TEXTS, "string"))
    if not texts:
        table["text"] = ""
    with open_output(path) as file:
        table.to_parquet(file, index=False, compression="zstd")
