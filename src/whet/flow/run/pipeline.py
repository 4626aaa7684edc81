"""One run, stage by stage, and its events as they come."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from whet._version import __version__
from whet.core.errors import StorageError
from whet.core.names import require_name
from whet.core.protocols import Observer
from whet.core.records.codec import encode
from whet.core.records.decision import Decision
from whet.core.records.summary import CellSummary
from whet.core.redact import message_line, one_line
from whet.core.spec import Spec, redacted_source
from whet.core.store import RunStore, append_line, write_atomic
from whet.engines import get_engine
from whet.engines.fork_starts import warm_engines
from whet.flow.run.check.check import Grower, prepare
from whet.flow.run.check.situation import prepare_search
from whet.flow.run.conclude.conclude import conclude
from whet.flow.run.measure.quantize import quantize_recipes
from whet.flow.run.measure.rounds import Executor, Measurer
from whet.flow.run.options import RunOptions, SpecOptions, resume_note
from whet.flow.run.plan import Engines, Plan, Recorder
from whet.flow.run.search.grid import check_answers, confirm, measure_all
from whet.flow.run.search.search import Search

FILE: Final = "progress.jsonl"
_STORED: Final = {
    "starts": "server ready",
    "tried": "search step",
    "finalists": "confirmation",
    "search": "search ended",
}
"""Kinds of records that are events as well, and their names."""


class ProgressLog:
    """Writes the events of one call to ``progress.jsonl`` and hands them on to ``observer``.

    A line has ``at`` (UTC), ``s`` (seconds since the run, or its resumption, began), ``event`` and
    what belongs to it. Lines are only ever appended. No request or answer is in them.
    """

    def __init__(self, store: RunStore, observer: Observer, spec: Spec) -> None:
        self._path = store.path(FILE)
        self._observer = observer
        self._began = time.monotonic()
        search = spec.search
        self._write(
            "run",
            name=spec.name,
            version=__version__,
            resumed=bool(store.keys("variants")),
            time_s=None if search is None else search.time,
            variants=list(spec.variants),
        )
        store.listener = self._stored

    def stage(self, name: str, detail: str = "") -> None:
        """A stage begins."""
        self._write("stage", name=name, detail=message_line(detail))
        self._observer.stage(name, detail)

    def note(self, message: str) -> None:
        """Something worth a line."""
        self._write("note", text=message_line(message))
        self._observer.note(message)

    def warn(self, message: str) -> None:
        """Something that a person should know before trusting the result."""
        self._write("warning", text=message_line(message))
        self._observer.warn(message)

    def progress(self, label: str, done: int, total: int) -> None:
        """Work inside the stage advances, which is not an event."""
        self._observer.progress(label, done, total)

    def cell(self, cell: CellSummary, standing: str) -> None:
        """A cell was measured."""
        self._write("cell", standing=standing, cell=encode(cell))
        self._observer.cell(cell, standing)

    def end(self, decision: Decision | None, error: BaseException | None = None) -> None:
        """Say how it ended; a full disk ended it, too, and is said elsewhere."""
        chosen = None if decision is None else decision.recommendation
        with suppress(StorageError):
            self._write(
                "end",
                recommended=None if chosen is None else chosen.variant,
                load=None if chosen is None else encode(chosen.load),
                stopped=None if error is None else type(error).__name__,
                reason=None if error is None else message_line(str(error)),
            )

    def _stored(self, kind: str, key: str, record: object) -> None:
        """A record was stored; those of earlier starts are below other keys."""
        if kind in _STORED and "/" not in key:
            values = encode(record)
            values.pop("canary_text", None)
            values.pop("cell", None)  # an event of its own
            self._write(_STORED[kind], **values)

    def _write(self, event: str, **values: Any) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        seconds = round(time.monotonic() - self._began, 3)
        append_line(self._path, {"at": at, "s": seconds, "event": event, **values})


Report = Callable[[RunStore, Decision | None], None]
"""What is done with the store at the end; without a decision the run did not finish."""


def run(
    spec: Spec,
    recorder: Recorder,
    *,
    skip_infeasible: bool = False,
    executor: Executor | None = None,
    engines: Engines = get_engine,
) -> Decision:
    """The main job. What the run directory already holds is not done again.

    Without ``executor`` everything is measured in this process.

    Raises any branch of ``WhetError``; whatever was finished before stays in the run directory.
    """
    executor = executor or Executor()
    plan = prepare(spec, recorder, engines, skip_infeasible=skip_infeasible)
    executor.require(plan, recorder.observer)
    warm = warm_engines(engines, plan.resolved, log=recorder.store.path("logs", "fork-parent.log"))
    with warm if executor.is_local else nullcontext(engines) as up:
        measurer = Measurer(recorder=recorder, engines=up, executor=executor)
        if spec.search is None:
            plan = quantize_recipes(plan, recorder)
            measure_all(plan, recorder, measurer)
            check_answers(plan, recorder.store, measurer)
            confirm(plan, recorder, measurer)
        else:
            search_and_confirm(plan, recorder, measurer)
    return conclude(recorder.store, recorder.observer)


def search_and_confirm(plan: Plan, recorder: Recorder, measurer: Measurer) -> None:
    """Let the search choose what is measured, and confirm what it found, within one clock."""
    facts, situation = prepare_search(plan, recorder)
    grower = Grower(
        facts=facts, recipes=situation.recipes, recorder=recorder, engines=measurer.engines
    )
    search = Search(
        plan=plan, situation=situation, recorder=recorder, measurer=measurer, grower=grower
    )
    plan = search.run()
    with search.timed("answers"):
        check_answers(plan, recorder.store, measurer)
    with search.timed("confirmation"):
        confirm(plan, recorder, measurer, lambda: search.left_s)
    search.close()


def read_run(spec_file: Path, change: SpecOptions, options: RunOptions) -> tuple[Spec, Path, bytes]:
    """Return the checked spec, the run's folder, and the text to store as its spec.yaml.

    Raises ``UsageError`` for a spec or options that are not valid.
    """
    spec = change.read(spec_file)
    root = options.output_dir / require_name(options.name or spec.name, "the run's name")
    notes = "".join(f"# changed by --set {one_line(text)}\n" for text in change.set)
    source = redacted_source(spec_file).rstrip(b"\n") + b"\n" + notes.encode()
    return spec, root, source + resume_note(["whet", "run", str(spec_file)], change, options)


def execute(
    spec: Spec,
    root: Path,
    *,
    source: bytes,
    options: RunOptions,
    observer: Observer,
    report: Report = lambda _store, _decision: None,
) -> None:
    """Run a checked spec in ``root``, and call ``report`` however it ends."""
    with RunStore.open(root, resume=options.resume) as store:
        write_atomic(root / "spec.yaml", source)
        log = ProgressLog(store, observer, spec)
        try:
            with options.open_executor() as executor:
                decision = run(
                    spec,
                    Recorder(store=store, observer=log),
                    skip_infeasible=options.skip_infeasible,
                    executor=executor,
                )
        except BaseException as error:
            log.end(None, error)
            report(store, None)
            raise
        log.end(decision)
        report(store, decision)
