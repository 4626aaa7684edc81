"""What a session reads of a run, and how what it wrote becomes part of it."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from whet.core.errors import UsageError
from whet.core.records.engine import StartFacts
from whet.core.records.load import WorkloadFacts
from whet.core.starts import every_start, start_key, store_start
from whet.core.store import RunStore, write_atomic
from whet.flow.run.plan import Engines, Inputs, Plan, Recorder
from whet.flow.run.traffic.logged import TIMES
from whet.flow.run.workers.session import JOURNAL, Files, Outcome

_OF_A_START: Final = frozenset({"starts", "facts", "declared"})
_ANSWER_FOLDERS: Final = ("top_logprobs", "golden", "inputs/golden")


def pickled_plan(plan: Plan, engines: Engines) -> bytes:
    """Return the plan, its engines, and its inputs: paths below a run directory, and files."""
    inputs: dict[str, Path | None] = {}
    files: dict[str, bytes] = {}
    for each in fields(Inputs):
        path: Path | None = getattr(plan.inputs, each.name)
        inputs[each.name] = path and Path("inputs", each.name + path.suffix)
        if path is not None and path.exists():
            files[str(inputs[each.name])] = path.read_bytes()
    if plan.inputs.traffic is not None:
        files[f"inputs/{TIMES}"] = (plan.inputs.traffic.parent / TIMES).read_bytes()
    return pickle.dumps((plan, engines, inputs, files))


def known_files(store: RunStore, *, answers: bool) -> Files:
    """Return what a session reads of the run; with ``answers`` what it compares answers with."""
    kinds = ("lengths", "workloads", *(("quality", "plain_answers") if answers else ()))
    entries = [
        {"kind": kind, "key": key, "status": store.status(kind, key), "reason": None}
        for kind in kinds
        for key in store.keys(kind)
    ]
    paths = [store.path(str(each["kind"]), f"{each['key']}.json") for each in entries]
    for folder in _ANSWER_FOLDERS if answers else ():
        paths += sorted(store.path(folder).glob("*"))
    files = {str(p.relative_to(store.root)): p.read_bytes() for p in paths if p.is_file()}
    journal = b"".join(json.dumps(each).encode() + b"\n" for each in entries)
    return files | {JOURNAL: journal}


def merge(recorder: Recorder, outcome: Outcome) -> None:
    """Store what a session wrote, and pass its lines on to the observer.

    A session counts its own starts; here they get their numbers in the run. Raises ``UsageError``
    for traffic that differs from the run's.
    """
    store = recorder.store
    for how, line in outcome.lines:
        getattr(recorder.observer, how)(f"{outcome.worker}: {line}")
    kinds = dict.fromkeys(json.loads(line)["kind"] for line in outcome.files[JOURNAL].splitlines())
    with TemporaryDirectory(prefix="whet-merge-") as folder:
        for name, data in outcome.files.items():
            if name.split("/")[0] in {JOURNAL, *kinds}:
                write_atomic(Path(folder, name), data)
                continue
            path = store.path(name)
            before = path.read_bytes() if name.startswith("logs/") and path.exists() else b""
            write_atomic(path, before + data)
        part = RunStore.read(Path(folder))
        names = (name for name in part.keys("starts") if "/" not in name)
        first = {name: _merge_starts(store, part, name, outcome.worker) for name in names}
        for kind in (each for each in kinds if each not in _OF_A_START):
            for key in part.keys(kind):
                _merge_record(store, part, kind, key, first, outcome.worker)


def _merge_starts(store: RunStore, part: RunStore, name: str, worker: str) -> int:
    """Store the starts of one server; return the number in the run of the first."""
    numbers = []
    for at, report in enumerate(every_start(part, name)):
        start = part.get("starts", start_key(part, name, at), StartFacts)
        assert start is not None
        numbers.append(store_start(store, name, replace(start, worker=worker), report))
    if part.status("starts", name) == "failed":
        store.note("starts", name, status="failed", reason=part.reason("starts", name))
    return min(numbers, default=0)


def _merge_record(
    store: RunStore, part: RunStore, kind: str, key: str, first: dict[str, int], worker: str
) -> None:
    """Store one record, a trial under its start's number in the run."""
    status, path = part.status(kind, key) or "", part.path(kind, f"{key}.json")
    if not path.exists():
        store.note(kind, key, status=status, reason=part.reason(kind, key))
        return
    record = json.loads(path.read_bytes())
    if kind == "trials":
        record["start"] += first[record["variant"]]
    elif kind == "workloads":
        earlier = store.get(kind, key, WorkloadFacts)
        if earlier is not None and earlier.sha256 != record["sha256"]:
            raise UsageError(
                f"{worker} made other traffic of {key} than the run began with",
                fix="install the same packages on every node, or start a new run with --name",
            )
    store.put(kind, key, record, status=status)
