"""What workers send becomes part of the run: the driver alone writes the run directory."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from whet.core.errors import UsageError
from whet.core.records import WorkloadFacts
from whet.core.starts import make_room, start_key
from whet.core.store import RunStore, write_atomic
from whet.flow.run.measure.rounds import summarize_cells
from whet.flow.run.workers.messages import Entry, File, FromWorker, Job, Line, Measured
from whet.flow.run.workers.mirror import FOLDERS

_OF_A_START: Final = ("facts", "declared")
_ALWAYS: Final = ("lengths", "workloads")
_FOR_ANSWERS: Final = ("quality", "plain_answers")


class Keeper:
    """Stores the messages of one worker's visit.

    A worker counts its own starts; here a start gets its number in the run, which its facts and
    trials then carry.
    """

    def __init__(self, job: Job, worker: str) -> None:
        self._job, self._worker = job, worker
        self._starts: dict[str, int] = {}
        self._logs: dict[str, list[bytes]] = defaultdict(list)

    def keep(self, message: FromWorker) -> None:
        """Store what there is to store, and say what there is to say."""
        if isinstance(message, Entry):
            self._keep_entry(message)
        elif isinstance(message, File):
            self._keep_file(message)
        elif isinstance(message, Measured):
            summarize_cells(self._job.plan, self._job.recorder.store, message.variant)
        elif isinstance(message, Line):
            first, *rest = message.words
            words = (first, f"{self._worker}: {rest[0]}") if rest else (f"{self._worker}: {first}",)
            getattr(self._job.recorder.observer, message.how)(*words)

    def close(self) -> None:
        """Append the logs of the visit, each in one piece."""
        for name, parts in self._logs.items():
            path = self._job.recorder.store.path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(b"".join(parts))
        self._logs.clear()

    def _keep_entry(self, entry: Entry) -> None:
        store = self._job.recorder.store
        if entry.key.startswith("earlier/"):
            return  # ``make_room`` has moved the run's own
        if entry.data is None:
            store.note(entry.kind, entry.key, status=entry.status, reason=entry.reason)
            return
        record: dict[str, Any] = json.loads(entry.data)
        key = entry.key
        if entry.kind == "starts":
            self._starts[key] = make_room(store, key)
            record["worker"] = self._worker
        elif entry.kind in _OF_A_START and key in self._starts:
            key = start_key(store, key, self._starts[key])
        elif entry.kind == "trials":
            record["start"] = self._starts[record["variant"]]
        elif entry.kind == "workloads":
            self._require_same(key, record["sha256"])
        store.put(entry.kind, key, record, status=entry.status)

    def _require_same(self, key: str, sha256: str) -> None:
        earlier = self._job.recorder.store.get("workloads", key, WorkloadFacts)
        if earlier is not None and earlier.sha256 != sha256:
            raise UsageError(
                f"{self._worker} made other traffic of {key} than the run began with; install the "
                "same packages on every node, or start a new run with --name"
            )

    def _keep_file(self, file: File) -> None:
        if file.path.endswith(".log"):
            self._logs[file.path].append(file.data)
        else:
            write_atomic(self._job.recorder.store.path(file.path), file.data)


def known_entries(store: RunStore, *, answers: bool) -> tuple[Entry, ...]:
    """What a visit reads of the run; with ``answers`` what it holds answers against, too."""
    kinds = (*_ALWAYS, *_FOR_ANSWERS) if answers else _ALWAYS
    return tuple(_entries(store, kinds))


def _entries(store: RunStore, kinds: tuple[str, ...]) -> Iterator[Entry]:
    for kind in kinds:
        for key in store.keys(kind):
            path = store.path(kind, f"{key}.json")
            yield Entry(
                kind=kind,
                key=key,
                status=store.status(kind, key) or "",
                reason=store.reason(kind, key),
                data=path.read_bytes() if path.exists() else None,
            )


def known_files(store: RunStore) -> tuple[File, ...]:
    """Files that answers are held against."""
    paths = (path for folder in FOLDERS for path in sorted(store.path(folder).glob("*")))
    return tuple(
        File(path=str(path.relative_to(store.root)), data=path.read_bytes())
        for path in paths
        if path.is_file() and path.suffix != ".log"
    )
