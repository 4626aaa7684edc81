"""The watch's memory on disk: a state that survives restarts, and a journal of what happened."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from whet.core.errors import StorageError
from whet.core.records.codec import decode, encode
from whet.core.redact import redact_json
from whet.core.store import read_json, translate_disk_errors, write_json
from whet.watch.state import WatchState

_STATE: Final = "state.json"
_JOURNAL: Final = "journal.jsonl"


class Journal:
    """A folder with ``state.json`` and ``journal.jsonl``.

    A full disk never stops the watch: what cannot be written is counted in ``dropped``, and
    ``problem`` has the reason until that file is written again.
    """

    def __init__(self, folder: Path) -> None:
        """The folder is made where it is missing; ``StorageError`` where that fails."""
        with translate_disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.dropped = 0
        self._problems: dict[str, str] = {}

    @property
    def problem(self) -> str | None:
        """Why a file could not be written at its last attempt; None where both could."""
        return next(iter(self._problems.values()), None)

    def read_state(self, run: str, variant: str) -> WatchState:
        """The stored state of this deployment; a new one for another, or where it is damaged.

        ``problem`` says that it is damaged.
        """
        fresh, path = WatchState(run=run, variant=variant), self.folder / _STATE
        try:
            state = decode(WatchState, read_json(path, infinite=True))  # edges
        except FileNotFoundError:
            return fresh
        except (OSError, ValueError, StorageError) as error:
            self._problems[_STATE] = f"{path} cannot be read, so the watch begins anew ({error})"
            return fresh
        return state if (state.run, state.variant) == (run, variant) else fresh

    def write_state(self, state: WatchState) -> None:
        """Store the state, whole or not at all."""
        self._attempt(_STATE, lambda: write_json(self.folder / _STATE, encode(state)))

    def add(self, kind: str, at: str, entry: Mapping[str, Any]) -> None:
        """Append one line. The file is opened anew each time, so that it may be rotated."""
        line = redact_json(json.dumps({"at": at, "kind": kind, **entry}, ensure_ascii=False))
        path = self.folder / _JOURNAL

        def append() -> None:
            with translate_disk_errors(path):
                if path.is_fifo():  # it would wait for a reader
                    raise OSError("it is a FIFO")
                with path.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")

        self._attempt(_JOURNAL, append)

    def _attempt(self, name: str, write: Callable[[], None]) -> None:
        try:
            write()
        except StorageError as error:
            self.dropped += 1
            self._problems[name] = str(error)
        else:
            self._problems.pop(name, None)
