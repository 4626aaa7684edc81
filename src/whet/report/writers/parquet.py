"""Raw requests as Parquet, one row a request, so that every figure can be computed again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from whet.core.records import TrialRecord
from whet.core.store import translate_disk_errors
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
    temporary = path.with_name(f".{path.name}.tmp")
    with translate_disk_errors(path):
        try:
            table.to_parquet(temporary, index=False, compression="zstd")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
