"""The driver of a run, from a spec file to its stored decision: one for console and Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from whet.core.names import require_name
from whet.core.protocols import Observer
from whet.core.records.decision import Decision
from whet.core.redact import one_line
from whet.core.spec import Spec, redacted_source
from whet.core.store import RunStore, write_atomic
from whet.flow.run.options import RunOptions, SpecOptions
from whet.flow.run.plan import Recorder
from whet.flow.run.progress import ProgressLog

Report = Callable[[RunStore, Decision | None], None]
"""What is done with the store at the end; without a decision the run did not finish."""


def read_run(spec_file: Path, change: SpecOptions, options: RunOptions) -> tuple[Spec, Path, bytes]:
    """Return the checked spec, the run's folder, and the text to store as its spec.yaml.

    Raises ``UsageError`` for a spec or options that are not valid.
    """
    spec = change.read(spec_file)
    root = options.output_dir / require_name(options.name or spec.name, "the run's name")
    notes = "".join(f"# changed by --set {one_line(text)}\n" for text in change.changes)
    return spec, root, redacted_source(spec_file).rstrip(b"\n") + b"\n" + notes.encode()


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
    from whet.flow.run.pipeline import run

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
