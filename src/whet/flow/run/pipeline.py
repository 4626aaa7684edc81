"""From a spec to a decision, one stage after the other."""

from __future__ import annotations

from whet.core.records.decision import Decision
from whet.core.spec import Spec
from whet.engines import get_engine
from whet.flow.run.check.check import prepare
from whet.flow.run.check.grow import Grower
from whet.flow.run.check.situation import prepare_search
from whet.flow.run.conclude.conclude import conclude
from whet.flow.run.measure.quantize import quantize_recipes
from whet.flow.run.measure.rounds import Executor, LocalExecutor, Measurer
from whet.flow.run.plan import Engines, Plan, Recorder
from whet.flow.run.search.confirm import check_answers, confirm
from whet.flow.run.search.grid import measure_all
from whet.flow.run.search.search import Search


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
    executor = executor or LocalExecutor()
    plan = prepare(spec, recorder, engines, skip_infeasible=skip_infeasible)
    executor.require(plan, recorder.observer)
    measurer = Measurer(recorder=recorder, engines=engines, executor=executor)
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
