"""What the stored figures say of each configuration that was tried."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from whet.core.load import Load
from whet.core.run import Run
from whet.core.spec import Spec
from whet.decision.eligible import EligibleCell, quality_verdict
from whet.decision.matrix import SloPoint, recommended_point, unmet_load
from whet.flow.run.conclude.conclude import eligible_cells
from whet.flow.run.search.changes import Value
from whet.flow.run.search.explore import Candidate
from whet.flow.run.search.outcomes import Outcome
from whet.predict.performance.observe import limited_by


def outcome_of(run: Run, name: str, value: Value, move: str | None, base: str | None) -> Outcome:
    """Return the outcome of a variant from what the run holds of it.

    Its figures are those of single starts, held to the limits as they are: a search orders, and the
    confirmation decides.
    """
    outcome = Outcome(name=name, value=value, move=move, base=base)
    reason = run.store.reason("starts", name)
    if name not in run.engines or reason is not None:
        return replace(outcome, failed=run.left_out.get(name) or reason or "it was not measured")
    spec = run.require_spec()
    point = recommended_point(run.tier, spec.objective)
    eligible, excluded = eligible_cells(run, [name])
    if not eligible:
        why = (each.reason for each in excluded)
        return replace(outcome, failed=next(why, "it has no figures"))
    good = [item for item in eligible if not unmet_load(item, point)]
    best = min(good, key=_cost, default=None)
    lowest = min(eligible, key=_cost)
    cell = None if best is None else best.cell
    return replace(
        outcome,
        usd=None if best is None else _usd(best),
        lowest_usd=_usd(lowest),
        missed=frozenset(title.split()[0] for title in point.missed_by(lowest.cell)),
        load=None if cell is None else cell.load,
        in_flight=1.0 if cell is None else _in_flight(cell.load, best),
        limit=None if cell is None else limited_by(run, name, cell.load),
        accepted=None if cell is None else cell.acceptance_rate,
        answers=_answers(eligible[0], point),
    )


def _cost(item: EligibleCell) -> tuple[float, float]:
    return item.usd, item.cost.value


def _usd(item: EligibleCell) -> float:
    """Dollars for a request a second: a whole number of servers would hide small gains."""
    if item.fleet is None:
        return item.cost.value
    assert item.cell.load.rate_rps is not None
    return item.fleet.usd_per_month / item.fleet.servers / item.cell.load.rate_rps


def _in_flight(load: Load, item: EligibleCell | None) -> float:
    """Requests in flight at a load; at a rate by Little's law."""
    if load.concurrency is not None:
        return float(load.concurrency)
    latency = None if item is None else item.cell.estimate("e2e_p50_ms")
    seconds = 1.0 if latency is None else latency.value / 1000
    return max(1.0, load.value * seconds)


def _answers(item: EligibleCell, point: SloPoint) -> Literal["pass", "fail"] | None:
    """What the gate says by now: ``unknown`` does not end a family of moves."""
    if item.unfit is not None and item.unfit[0] == "known fault":
        return "fail"
    verdict = quality_verdict(item.quality, point.tolerance)
    return verdict if verdict in ("pass", "fail") else None


def value_of(spec: Spec, name: str) -> Value:
    """Return a variant of the spec as a configuration of the search."""
    item = spec.variants[name]
    value: dict[str, Any] = item.model_dump(mode="json", exclude_defaults=True)
    if item.speculation is not None:
        own = item.speculation
        value["speculation"] = {
            "method": own.method,
            "num_tokens": own.num_tokens,
            **value.get("speculation", {}),
        }
    return value


def stored_waves(run: Run) -> Mapping[int, tuple[Candidate, ...]]:
    """Return what a search of this run tried before it was interrupted, by wave."""
    waves: dict[int, tuple[Candidate, ...]] = {}
    for tried in run.tried.values():
        if tried.move is not None:
            candidate = Candidate(
                name=tried.variant,
                value=json.loads(tried.value),
                move=tried.move,
                base=tried.base or "",
                why=tried.why,
                promise=1.0,
            )
            waves[tried.wave] = (*waves.get(tried.wave, ()), candidate)
    return waves
