"""What a session reads of a run, and how what it wrote becomes part of it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from whet.core.errors import UsageError
from whet.core.records.engine import StartFacts
from whet.core.records.load import WorkloadFacts
from whet.core.starts import every_start, start_key, store_start
from whet.core.store import RunStore, write_atomic
from whet.flow.run.plan import Inputs, Plan
from whet.flow.run.traffic.logged import TIMES
from whet.flow.run.workers.session import JOURNAL, Files, Job, Outcome

_OF_A_START: Final = frozenset({"starts", "facts", "declared"})
_ALWAYS: Final = ("lengths", "workloads")
_FOR_ANSWERS: Final = ("quality", "plain_answers")
_ANSWER_FOLDERS: Final = ("top_logprobs", "golden", "inputs/golden")


def pickled_job(job: Job) -> bytes:
    """Return the job without what stays here, paths that workers need, and the run's inputs."""
    inputs: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    for each in fields(Inputs):
        path: Path | None = getattr(job.plan.inputs, each.name)
        inputs[each.name] = None
        if path is not None and path.exists():
            inputs[each.name] = Path("inputs", each.name + path.suffix)
            files[str(inputs[each.name])] = path.read_bytes()
    if job.plan.inputs.traffic is not None:
        files[f"inputs/{TIMES}"] = (job.plan.inputs.traffic.parent / TIMES).read_bytes()
    plan = replace(job.plan, inputs=Inputs(**inputs))
    return pickle.dumps((plan, job.engines, list(_paths(job.plan)), files))


def _paths(plan: Plan) -> Iterator[str]:
    """Folders and files that have to be on every node."""
    yield plan.target.path
    for variant in (resolved.variant for resolved in plan.resolved):
        yield variant.model_path
        yield from (path for _, path in variant.loras)
        if variant.speculation is not None and variant.speculation.draft_path is not None:
            yield variant.speculation.draft_path
    if plan.spec.load.trace is not None:
        yield str(plan.spec.load.trace.resolve())


def known_files(store: RunStore, *, answers: bool) -> Files:
    """Return what a session reads of the run; with ``answers`` what it compares answers with."""
    entries = [
        {"kind": kind, "key": key, "status": store.status(kind, key), "reason": None}
        for kind in (*_ALWAYS, *(_FOR_ANSWERS if answers else ()))
        for key in store.keys(kind)
    ]
    paths = [store.path(str(each["kind"]), f"{each['key']}.json") for each in entries]
    for folder in _ANSWER_FOLDERS if answers else ():
        paths += sorted(store.path(folder).glob("*"))
    files = {str(p.relative_to(store.root)): p.read_bytes() for p in paths if p.is_file()}
    journal = b"".join(json.dumps(each).encode() + b"\n" for each in entries)
    return files | {JOURNAL: journal}


def merge(job: Job, outcome: Outcome) -> None:
    """Store what a session wrote, and pass its lines on to the observer.

    A session counts its own starts; here they get their numbers in the run. Raises ``UsageError``
    for traffic that differs from the run's.
    """
    for how, line in outcome.lines:
        getattr(job.recorder.observer, how)(f"{outcome.worker}: {line}")
    kinds = dict.fromkeys(json.loads(line)["kind"] for line in outcome.journal.splitlines())
    with TemporaryDirectory(prefix="whet-merge-") as folder:
        for name, data in {**outcome.files, JOURNAL: outcome.journal}.items():
            path = job.recorder.store.path(name)
            if name.startswith("logs/"):
                before = path.read_bytes() if path.exists() else b""
                write_atomic(path, before + data)
            elif name.startswith(tuple(f"{each}/" for each in _ANSWER_FOLDERS)):
                write_atomic(path, data)
            elif name.split("/")[0] in {*kinds, JOURNAL}:
                write_atomic(Path(folder, name), data)
        part = RunStore.read(Path(folder))
        names = [name for name in part.keys("starts") if "/" not in name]
        first = {
            name: _merge_starts(job.recorder.store, part, name, outcome.worker) for name in names
        }
        places = ((kind, key) for kind in kinds for key in part.keys(kind))
        for place in (each for each in places if each[0] not in _OF_A_START):
            _merge_record(job.recorder.store, part, place, first, outcome.worker)


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
    store: RunStore, part: RunStore, place: tuple[str, str], first: dict[str, int], worker: str
) -> None:
    kind, key = place
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
