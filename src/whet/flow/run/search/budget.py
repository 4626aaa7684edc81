"""``whet run --budget``: predictions choose which variants and loads are measured.

The baseline is measured first, at its predicted best load and next to it: it gives the lengths of
answers, and a first correction. ``predict.search`` then starts one variant after another. What it
leaves out stays in the report as predicted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import numpy as np

from whet.core.errors import EngineLostError, EngineStartError, MeasurementError, UsageError
from whet.core.load import Load, trial_key
from whet.core.records.engine import ResolvedEngine
from whet.core.records.load import TrialRecord
from whet.core.records.predicted import PredictedCell, PredictedVariant
from whet.core.run import Run
from whet.core.units import human_duration
from whet.decision.matrix import recommended_point
from whet.flow.run.conclude.results import cells_of_variant, store_cells
from whet.flow.run.plan import Plan, Recorder
from whet.flow.run.search.grid import LoadMeasurer, Measurer
from whet.flow.run.traffic.workload import trial_plan
from whet.metrics import CellContext, summarise
from whet.metrics.cost import usd_per_1m_tokens
from whet.predict.hardware import known_name, sheet_of
from whet.predict.performance import Calibration, Request, StepModel, calibration_of, simulate
from whet.predict.performance.observe import draft_of, engines_of, limits_of, variant_work
from whet.predict.search import Arm, CannotMeasure, Measured, Outcome, climb, corrections, search
from whet.predict.settings import read_settings

_START_S: Final = 90.0
"""Before a start of the run has been timed."""
_ACCEPTED: Final = 0.7
"""Share of a draft's tokens taken to be accepted, one by one, before it was measured."""

_NEAR: Final = 0.1
"""An invalid trial this much dearer than the cheapest cell, or less, is repeated."""


def measure_within(plan: Plan, recorder: Recorder, measurer: Measurer, budget_s: float) -> None:
    """Measure the baseline, then what the search chooses, and store what it leaves out.

    ``UsageError`` for a load that is not a list of concurrencies.
    """
    load = plan.spec.load
    if load.find is not None or any(point.is_open for point in load.points):
        raise UsageError(
            "--budget searches concurrencies", fix="leave load.find, rates and traces out"
        )
    outcome = Outcome()
    budget = _BudgetSearch(plan, recorder, measurer, budget_s, outcome)
    try:
        budget.measure_baseline()
    except CannotMeasure as error:
        raise MeasurementError(f"the baseline has no figures to search from: {error}") from error
    arms = [budget.arm(item) for item in plan.resolved]
    search(arms, budget.serve, budget_s=budget_s, outcome=outcome)
    budget.close(arms)


class _BudgetSearch:
    def __init__(
        self,
        plan: Plan,
        recorder: Recorder,
        measurer: Measurer,
        budget_s: float,
        outcome: Outcome,
    ) -> None:
        self.plan, self.measurer, self.outcome = plan, measurer, outcome
        self.store, self.observer = recorder.store, recorder.observer
        self.budget_s = budget_s
        self.sizes = sorted(point.slots for point in plan.spec.load.points)
        self.resolved = {item.variant.name: item for item in plan.resolved}
        self.calibration: Calibration = calibration_of(known_name(plan.device) or plan.device.name)
        self.sessions: list[LoadMeasurer] = []
        self.began = time.monotonic()

    def measure_baseline(self) -> None:
        """The baseline's answers, without which no request is known, then its best load."""
        baseline = self.plan.baseline()
        blind = Arm(
            name=baseline.variant.name,
            features=frozenset(),
            costs=dict.fromkeys(self.sizes, 1.0),
            start_s=_START_S,
        )
        with self.serve(blind) as measure:
            measure(self.sizes[len(self.sizes) // 2])
            climb(self.arm(baseline), measure, self.outcome, budget_s=self.budget_s)

    def arm(self, resolved: ResolvedEngine) -> Arm:
        """The predictions of a variant, stored once, as the search takes them."""
        name = resolved.variant.name
        record = self.store.get("predicted", name, PredictedVariant)
        if record is None or not record.cells:
            cells = tuple(self._predict(resolved, size) for size in self.sizes)
            measured = () if record is None else record.measured
            record = PredictedVariant(
                variant=name,
                cells=cells,
                errors=tuple(self.calibration.errors.items()),
                source=self.calibration.text,
                measured=measured,
            )
            self.store.put("predicted", name, record)
        limit_ms = self.plan.spec.objective.recommend_ttft_ms
        costs = {cell.load.slots: cell.cost_per_1m_tokens for cell in record.cells}
        met = {
            cell.load.slots: cell.cost_per_1m_tokens
            for cell in record.cells
            if cell.ttft_ms <= limit_ms
        }
        ready_s = [each for session in self.sessions for each in session.ready_s]
        start_s = float(np.median(ready_s)) if ready_s else _START_S
        features = _features(resolved)
        return Arm(name=name, features=features, costs=met or costs, start_s=start_s)

    def _predict(self, resolved: ResolvedEngine, size: int) -> PredictedCell:
        """One cell, for the very requests that it would be sent; several engines share them."""
        plan, run, variant = self.plan, Run(self.store), resolved.variant
        settings = read_settings(variant, target=plan.target, device=plan.device)
        work = variant_work(run, variant, plan.target, settings)
        speculation = variant.speculation
        k = 0 if speculation is None else speculation.num_tokens
        length = (1 - _ACCEPTED ** (k + 1)) / (1 - _ACCEPTED)
        draft = draft_of(run, variant, plan.target, settings, size, length=length)
        sheet, coefficients = sheet_of(plan.device), self.calibration.coefficients
        model = StepModel(work, sheet, coefficients, draft=draft)
        sent = trial_plan(plan, self.store, resolved, Load.at(size), 0, warmup=0)
        requests = [
            Request(
                prompt=len(each.prompt_token_ids),
                output=each.max_tokens,
                shared=min(each.shared_tokens, len(each.prompt_token_ids) - 1)
                if variant.prefix_cache
                else 0,
                prefix=hash(each.prefix_id),
            )
            for each in sent.workload.requests
        ]
        limits = limits_of(variant, settings, None, plan.device)
        engines = engines_of(variant, settings)
        mine, in_flight = requests[::engines], math.ceil(size / engines)
        result = simulate(mine, model, limits, in_flight=in_flight)
        tokens_per_s = size / in_flight * sum(each.output for each in mine) / result.seconds
        timed = result.requests[min(in_flight, len(mine) // 2) :]
        tpot = [each.tpot_s for each in timed if each.request.output > 1]
        return PredictedCell(
            load=Load.at(size),
            cost_per_1m_tokens=usd_per_1m_tokens(
                tokens_per_s, plan.spec.hardware.price_usd_per_hour
            ),
            ttft_ms=1e3 * float(np.mean([each.ttft_s for each in timed])),
            tpot_ms=1e3 * float(np.mean(tpot)) if tpot else 0.0,
        )

    @contextmanager
    def serve(self, arm: Arm) -> Iterator[Callable[[int], Measured]]:
        """A variant's server, started when a load is not stored; its answers are checked too."""
        opened = self.measurer.open_on_demand(
            self.plan, self.resolved[arm.name], label=self._time_used()
        )
        try:
            with opened as session:
                self.sessions.append(session)

                def measure(concurrency: int) -> Measured:
                    began, load = time.monotonic(), Load.at(concurrency)
                    session.measure(load, self._is_worth_repeating)
                    self._note_load(arm.name, load)
                    return self._measured(arm.name, load, time.monotonic() - began)

                yield measure
        except EngineStartError as error:
            self._note_load(arm.name, Load.at(arm.best_load))
            self._fail(arm.name, str(error))
        except EngineLostError as error:
            self._fail(arm.name, str(error))
        finally:
            store_cells(self.store, cells_of_variant(Run(self.store), arm.name))
            # Checking answers takes time as well.
            self.outcome.seconds = max(self.outcome.seconds, time.monotonic() - self.began)

    def _is_worth_repeating(self, trial: TrialRecord) -> bool:
        """Return whether the cell of an invalid trial may still be the cheapest, by its figures."""
        valid = replace(trial, health=replace(trial.health, valid=True))
        price = self.plan.spec.hardware.price_usd_per_hour
        context = CellContext(price_usd_per_hour=price, memory_kind="device")
        cost, best = summarise([valid], cell=context).cost_per_1m_tokens, self.outcome.best
        return best is None or cost is None or cost.value <= (1 + _NEAR) * best[2].cost

    def _time_used(self) -> str:
        used = human_duration(time.monotonic() - self.began)
        return f"{used} of {human_duration(self.budget_s)}"

    def _fail(self, name: str, reason: str) -> None:
        self.observer.warn(f"{name}: {reason}")
        raise CannotMeasure(reason)

    def _note_load(self, name: str, load: Load) -> None:
        """The load is one of the run's now."""
        record = self.store.get("predicted", name, PredictedVariant)
        if record is None:  # the baseline, before anything can be predicted
            errors = tuple(self.calibration.errors.items())
            source = self.calibration.text
            record = PredictedVariant(variant=name, cells=(), errors=errors, source=source)
        if load not in record.measured:
            measured = tuple(sorted((*record.measured, load)))
            self.store.put("predicted", name, replace(record, measured=measured))
        store_cells(self.store, cells_of_variant(Run(self.store), name))

    def _measured(self, name: str, load: Load, seconds: float) -> Measured:
        """The cell against the objective; one without figures costs infinitely much."""
        cell = Run(self.store).cell(name, load)
        trial = self.store.get("trials", trial_key(name, load, 0), TrialRecord)
        if cell is None or cell.cost_per_1m_tokens is None or trial is None:
            return Measured(cost=math.inf, met=False, seconds=seconds)
        missed = recommended_point(self.plan.tier, self.plan.spec.objective).missed_by(cell)
        return Measured(cost=cell.cost_per_1m_tokens.value, met=not missed, seconds=seconds)

    def close(self, arms: Sequence[Arm]) -> None:
        """Store why the others were not measured, and what was measured says of all loads."""
        outcome, known = self.outcome, Run(self.store).predicted
        left = [arm for arm in arms if not known[arm.name].measured]
        if any(math.isfinite(cell.cost) for *_, cell in outcome.cells):
            means, deviations = corrections(arms, arms, outcome)
            for arm, mean, deviation in zip(arms, means, deviations, strict=True):
                record = replace(
                    known[arm.name],
                    reason=outcome.stopped if arm in left else None,
                    factor=math.exp(mean),
                    spread=math.expm1(deviation),
                )
                self.store.put("predicted", arm.name, record)
        best = outcome.best
        named = "nothing that meets the objective" if best is None else f"{best[0]} at {best[1]}"
        self.observer.note(
            f"{outcome.stopped}: {named} is the cheapest so far, {len(left)} variants were left out"
        )


def _features(resolved: ResolvedEngine) -> frozenset[str]:
    """What a variant may have in common with others."""
    variant = resolved.variant
    own = {f"weights {variant.scheme}", f"prefix cache {variant.prefix_cache}"}
    own |= {f"{name}={value}" for name, value in variant.engine_args if name in variant.own_args}
    own |= {f"{name}={value}" for name, value in variant.env}
    if variant.speculation is not None:
        own.add(f"speculation {variant.speculation.method}")
        own.add(f"K={variant.speculation.num_tokens}")
    return frozenset(own)
