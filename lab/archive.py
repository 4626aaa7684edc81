"""A run as one small file that can be decided again: every event, no logs, weights or paths.

    python -m lab.archive RUN OUT.tar.xz [--times-us 10] [--no-texts]

Times are rounded, to 10 µs by default: a tenth of the bytes, and far below what any figure shows.
Paths are cut to their last name. ``--no-texts`` leaves out the answers of timed requests, which are
noise where an engine makes up the weights.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.table import without_folders

from whet.core.load import trial_key
from whet.core.records.codec import encode
from whet.core.records.load import RequestEvent, TrialRecord
from whet.core.store import RunStore

_LEFT_OUT: Final = ("checkpoints", "inputs", "logs", "plain_answers", "report.assets", "trials")
_SUFFIXES: Final = (".json", ".jsonl", ".yaml")
_LARGEST: Final = 1_000_000
"""Bytes; larger files are log-probabilities, whose distances are stored with the quality."""


def main() -> None:
    """Write the archive and print its size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--times-us", type=int, default=10)
    parser.add_argument("--no-texts", action="store_true")
    options = parser.parse_args()
    trials = _trials(options.run, options.times_us * 1000, texts=not options.no_texts)
    smallest = 9 | lzma.PRESET_EXTREME
    with (
        lzma.open(options.out, "wb", preset=smallest) as file,
        tarfile.open(fileobj=file, mode="w") as tar,
    ):
        for name, data in (*_files(options.run), *trials):
            entry = tarfile.TarInfo(f"run/{name}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB")


def _files(run: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run)
        wanted = path.suffix in _SUFFIXES and name.parts[0] not in _LEFT_OUT
        if path.is_file() and wanted and path.stat().st_size <= _LARGEST:
            # Weights of a resolved spec may be a folder, which is ./NAME; NAME alone is a recipe.
            before = "./" if path.name == "resolved_spec.json" else ""
            yield str(name), without_folders(path.read_text("utf-8"), before=before).encode()


def _trials(run: Path, step_ns: int, *, texts: bool) -> Iterator[tuple[str, bytes]]:
    for record in RunStore.read(run).all("trials", TrialRecord):
        requests = tuple(_rounded(event, step_ns) for event in record.requests)
        if not texts:
            requests = tuple(replace(event, text="") for event in requests)
        data: Any = encode(replace(record, requests=requests))
        name = f"trials/{trial_key(record.variant, record.load, record.trial)}.json"
        yield name, json.dumps(data, separators=(",", ":")).encode()


def _rounded(event: RequestEvent, step_ns: int) -> RequestEvent:
    def near(time_ns: int) -> int:
        return round(time_ns / step_ns) * step_ns

    return replace(
        event,
        scheduled_ns=near(event.scheduled_ns),
        sent_ns=near(event.sent_ns),
        chunk_ns=tuple(near(each) for each in event.chunk_ns),
        ended_ns=near(event.ended_ns),
    )


if __name__ == "__main__":
    main()
