"""The search without a budget: every variant at every load."""

from __future__ import annotations

from whet.core.run import Run
from whet.flow.run.plan import RATE_SEARCH, Plan, Recorder, Round
from whet.flow.run.search.measurer import Measurer
from whet.flow.run.search.schedule import rounds_of
from whet.flow.run.traffic.traced import store_points


def measure_all(plan: Plan, recorder: Recorder, measurer: Measurer) -> None:
    """Measure each variant in rounds of starts; with ``load.find`` its rates are searched before.

    A variant whose server does not start or keeps dying is journalled as failed and left; the
    others go on.
    """
    store_points(plan, recorder)
    if plan.spec.load.find is not None:
        servers = tuple((item, ()) for item in plan.resolved)
        measurer.measure(plan, [Round(servers=servers)], quality=False, title=RATE_SEARCH)
    measurer.measure(plan, rounds_of(plan, Run(recorder.store)), quality=True)
