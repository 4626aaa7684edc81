"""Raw requests as Parquet, one row a request, so that every figure can be computed again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from whet.core.records import TrialRecord
from whet.core.store import translate_disk_errors


def write_parquet(trials: Iterable[TrialRecord], path: Path) -> None:
    """Write every request of every trial. Times are monotonic ns since the trial began.

    Raises ``StorageError`` where the disk is full.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(list(_rows(trials)), schema=_schema())
    temporary = path.with_name(f".{path.name}.tmp")
    with translate_disk_errors(path):
        try:
            pq.write_table(table, temporary, compression="zstd")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _schema() -> Any:
    import pyarrow as pa

    whole, text = pa.int64(), pa.string()
    return pa.schema(
        [
            ("config", text),
            ("batch_size", whole),
            ("trial", whole),
            ("trial_status", text),
            ("workload_sha256", text),
            ("window_start_ns", whole),
            ("window_end_ns", whole),
            ("index", whole),
            ("prefix_id", text),
            ("scheduled_ns", whole),
            ("sent_ns", whole),
            ("first_token_ns", whole),
            ("ended_ns", whole),
            ("chunk_ns", pa.list_(whole)),
            ("prompt_tokens", whole),
            ("output_tokens", whole),
            ("cached_tokens", whole),
            ("finish_reason", text),
            ("error", text),
            ("detail", text),
            ("text", text),
        ]
    )


def _rows(trials: Iterable[TrialRecord]) -> Iterator[dict[str, Any]]:
    for trial in trials:
        own = {
            "config": trial.variant,
            "batch_size": trial.batch_size,
            "trial": trial.trial,
            "trial_status": trial.status,
            "workload_sha256": trial.workload_sha256,
            "window_start_ns": trial.window_start_ns,
            "window_end_ns": trial.window_end_ns,
        }
        for event in trial.requests:
            yield own | {
                "index": event.index,
                "prefix_id": event.prefix_id,
                "scheduled_ns": event.scheduled_ns,
                "sent_ns": event.sent_ns,
                "first_token_ns": event.chunk_ns[0] if event.chunk_ns else None,
                "ended_ns": event.ended_ns,
                "chunk_ns": list(event.chunk_ns),
                "prompt_tokens": event.prompt_tokens,
                "output_tokens": event.output_tokens,
                "cached_tokens": event.cached_tokens,
                "finish_reason": event.finish_reason,
                "error": event.error,
                "detail": event.detail,
                "text": event.text,
            }
