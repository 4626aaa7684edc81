"""From a spec to a decision, one stage after the other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from whet.core.names import require_name
from whet.core.protocols import Observer
from whet.core.records.decision import Decision
from whet.core.redact import one_line
from whet.core.spec import Spec, redacted_source
from whet.core.store import RunStore, write_atomic
from whet.engines import get_engine
from whet.engines.fork_starts import warm_engines
from whet.flow.run.check.check import Grower, prepare
from whet.flow.run.check.situation import prepare_search
from whet.flow.run.conclude.conclude import conclude
from whet.flow.run.measure.quantize import quantize_recipes
from whet.flow.run.measure.rounds import Executor, Measurer
from whet.flow.run.options import RunOptions, SpecOptions
from whet.flow.run.plan import Engines, Plan, Recorder
from whet.flow.run.progress import ProgressLog
from whet.flow.run.search.grid import check_answers, confirm, measure_all
from whet.flow.run.search.search import Search

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
    check_answers(plan, recorder.store, measurer)
    confirm(plan, recorder, measurer, lambda: search.clock.left_s)
    search.close()


def read_run(spec_file: Path, change: SpecOptions, options: RunOptions) -> tuple[Spec, Path, bytes]:
    """Return the checked spec, the run's folder, and the text to store as its spec.yaml.

    Raises ``UsageError`` for a spec or options that are not valid.
    """
    spec = change.read(spec_file)
    root = options.output_dir / require_name(options.name or spec.name, "the run's name")
    notes = "".join(f"# changed by --set {one_line(text)}\n" for text in change.set)
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
