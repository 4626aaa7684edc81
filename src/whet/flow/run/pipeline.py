"""From a spec to a decision, one chapter after the other."""

from __future__ import annotations

from whet.core.protocols import Observer
from whet.core.records import Decision
from whet.core.spec import Spec
from whet.core.store import RunStore
from whet.flow.run.check.preflight import prepare
from whet.flow.run.conclude.conclude import conclude
from whet.flow.run.measure.confirm import check_answers, confirm
from whet.flow.run.measure.quantize import quantize_recipes
from whet.flow.run.measure.rounds import Executor, LocalExecutor, measure_all
from whet.flow.run.search.race import measure_within


def run(
    spec: Spec,
    store: RunStore,
    observer: Observer,
    *,
    skip_infeasible: bool = False,
    budget_s: float | None = None,
    executor: Executor | None = None,
) -> Decision:
    """The main job. What ``store`` already holds is not done again.

    With ``budget_s`` predictions choose what is measured before the finalists are confirmed.
    Without ``executor`` everything is measured in this process.

    Raises any branch of ``WhetError``; whatever was finished before stays in ``store``.
    """
    executor = executor or LocalExecutor()
    job = prepare(spec, store, observer, skip_infeasible=skip_infeasible)
    executor.require(job)
    job = quantize_recipes(job)
    if budget_s is None:
        measure_all(job, executor)
    else:
        measure_within(job, budget_s)
    check_answers(job, executor)
    confirm(job, executor)
    return conclude(store, observer)
