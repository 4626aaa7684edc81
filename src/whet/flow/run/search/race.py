"""``whet run --budget``: predictions choose which variants and loads are measured.

The baseline is measured first, at its predicted best load and beside it: it gives the lengths of
answers, and a first correction. ``predict.search`` then starts one variant after another. What it
leaves out stays in the report as predicted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final

import numpy as np

from whet.core.errors import EngineLostError, EngineStartError, MeasurementError, UsageError
from whet.core.load_point import Rate
from whet.core.protocols import Server
from whet.core.records import PredictedCell, PredictedVariant, ResolvedEngine, TrialRecord
from whet.core.run import Run
from whet.core.units import human_duration
from whet.flow.run.conclude.results import cells_of_variant, store_cells
from whet.flow.run.measure.context import Job, trial_key
from whet.flow.run.measure.resume import REPEATS, invalid_trials, lacks_quality, missing_trials
from whet.flow.run.measure.session import (
    PendingWork,
    measure_cells,
    measure_rest,
    serve_one,
    store_facts,
)
from whet.flow.run.traffic.lengths import measure_lengths
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


def measure_within(job: Job, budget_s: float) -> None:
    """Measure the baseline, then what the search chooses, and store what it leaves out.

    ``UsageError`` for a load that is not a list of batch sizes.
    """
    load = job.spec.load
    if load.find is not None or any(isinstance(point, Rate) for point in load.points):
        raise UsageError("--budget searches batch sizes; leave load.find, rates and traces out")
    outcome = Outcome()
    race = _Race(job, budget_s, outcome)
    try:
        race.measure_baseline()
    except CannotMeasure as error:
        raise MeasurementError(f"the baseline has no figures to search from: {error}") from error
    arms = [race.arm(item) for item in job.resolved]
    search(arms, race.visit, budget_s=budget_s, outcome=outcome)
    race.close(arms)


class _Race:
    def __init__(self, job: Job, budget_s: float, outcome: Outcome) -> None:
        self.job, self.budget_s, self.outcome = job, budget_s, outcome
        self.sizes = sorted(int(point) for point in job.spec.load.points)
        self.resolved = {item.variant.name: item for item in job.resolved}
        self.calibration: Calibration = calibration_of(known_name(job.device) or job.device.name)
        self.start_s: list[float] = []
        self.began = time.monotonic()

    def measure_baseline(self) -> None:
        """The baseline's answers, without which no request is known, then its best load."""
        baseline = self.job.baseline()
        blind = Arm(
            name=baseline.variant.name,
            features=frozenset(),
            costs=dict.fromkeys(self.sizes, 1.0),
            start_s=_START_S,
        )
        with self.visit(blind) as measure:
            measure(self.sizes[len(self.sizes) // 2])
            climb(self.arm(baseline), measure, self.outcome, budget_s=self.budget_s)

    def arm(self, resolved: ResolvedEngine) -> Arm:
        """The predictions of a variant, stored once, as the search takes them."""
        name = resolved.variant.name
        record = self.job.store.get("predicted", name, PredictedVariant)
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
            self.job.store.put("predicted", name, record)
        limit_ms = self.job.spec.objective.recommend_ttft_ms
        costs = {int(cell.batch_size): cell.cost_per_1m_tokens for cell in record.cells}
        met = {
            int(cell.batch_size): cell.cost_per_1m_tokens
            for cell in record.cells
            if cell.ttft_ms <= limit_ms
        }
        start_s = float(np.median(self.start_s)) if self.start_s else _START_S
        features = _features(resolved)
        return Arm(name=name, features=features, costs=met or costs, start_s=start_s)

    def _predict(self, resolved: ResolvedEngine, size: int) -> PredictedCell:
        """One cell, for the very requests that it would be sent; several engines share them."""
        job, run = self.job, Run(self.job.store)
        variant = resolved.variant
        settings = read_settings(variant, target=job.target, device=job.device)
        work = variant_work(run, variant, job.target, settings)
        speculation = variant.speculation
        k = 0 if speculation is None else speculation.num_tokens
        length = (1 - _ACCEPTED ** (k + 1)) / (1 - _ACCEPTED)
        draft = draft_of(run, variant, job.target, settings, size, length=length)
        coefficients = self.calibration.coefficients
        model = StepModel(work, sheet_of(job.device), coefficients, draft=draft)
        plan = trial_plan(job, resolved, size, 0, warm=False, first=True)
        requests = [
            Request(
                prompt=len(each.prompt_token_ids),
                output=each.max_tokens,
                shared=min(each.shared_tokens, len(each.prompt_token_ids) - 1)
                if variant.prefix_cache
                else 0,
                prefix=hash(each.prefix_id),
            )
            for each in plan.workload.requests
        ]
        limits = replace(
            limits_of(variant, settings, None, job.device),
            request_s=coefficients.request_s,
            message_s=coefficients.message_s,
            turns=coefficients.turns,
        )
        engines = engines_of(variant, settings)
        mine, in_flight = requests[::engines], math.ceil(size / engines)
        result = simulate(mine, model, limits, in_flight=in_flight)
        tokens_per_s = size / in_flight * sum(each.output for each in mine) / result.seconds
        timed = result.requests[min(in_flight, len(mine) // 2) :]
        tpot = [each.tpot_s for each in timed if each.request.output > 1]
        return PredictedCell(
            batch_size=size,
            cost_per_1m_tokens=usd_per_1m_tokens(
                tokens_per_s, job.spec.hardware.price_usd_per_hour
            ),
            ttft_ms=1e3 * float(np.mean([each.ttft_s for each in timed])),
            tpot_ms=1e3 * float(np.mean(tpot)) if tpot else 0.0,
        )

    @contextmanager
    def visit(self, arm: Arm) -> Iterator[Callable[[int], Measured]]:
        """A variant's server, started when a load is not stored; its answers are checked too."""
        job, resolved = self.job, self.resolved[arm.name]
        pending = PendingWork(
            resolved=resolved,
            trials=[],
            quality=lacks_quality(job, resolved),
            of=len(arm.costs),
        )
        with ExitStack() as stack:
            server: list[Server] = []

            def measure(load: int) -> Measured:
                began = time.monotonic()
                for again in range(1 + REPEATS):
                    wanted = self._is_worth_repeating if again else self._is_missing
                    if not wanted(resolved, load):
                        break
                    if again:
                        stack.close()  # one server at a time, and a fresh one does not remember
                        server.clear()
                    if not server:
                        server.append(self._start(stack, pending))
                    pending.trials.append((load, 0))
                    measure_cells(job, server[0], pending)
                self._note_load(arm.name, load)
                return self._measured(arm.name, load, time.monotonic() - began)

            try:
                yield measure
                if pending.quality and not server:  # stopped before its answers were checked
                    server.append(self._start(stack, pending))
                if server:
                    measure_rest(job, server[0], pending)
                    store_facts(job, server[0], pending)
            except EngineStartError as error:
                job.store.note("starts", arm.name, status="failed", reason=str(error))
                self._note_load(arm.name, arm.best_load)
                self._fail(arm.name, str(error))
            except EngineLostError as error:
                self._fail(arm.name, str(error))
            finally:
                store_cells(job.store, cells_of_variant(Run(job.store), arm.name))
                # Checking answers takes time as well.
                self.outcome.seconds = max(self.outcome.seconds, time.monotonic() - self.began)

    def _is_missing(self, resolved: ResolvedEngine, load: int) -> bool:
        return bool(missing_trials(self.job, resolved, [(load, 0)]))

    def _is_worth_repeating(self, resolved: ResolvedEngine, load: int) -> bool:
        """Whether the trial is invalid and its cell may still be the cheapest, by its figures."""
        if not invalid_trials(self.job, resolved, [(load, 0)]):
            return False
        trial = self.job.store.get("trials", trial_key(resolved.variant.name, load, 0), TrialRecord)
        assert trial is not None
        valid = replace(trial, health=replace(trial.health, valid=True))
        price = self.job.spec.hardware.price_usd_per_hour
        context = CellContext(price_usd_per_hour=price, memory_kind="device")
        cost, best = summarise([valid], cell=context).cost_per_1m_tokens, self.outcome.best
        return best is None or cost is None or cost.value <= (1 + _NEAR) * best[2].cost

    def _start(self, stack: ExitStack, pending: PendingWork) -> Server:
        pending.warmed.clear()
        used = human_duration(time.monotonic() - self.began)
        place = f"{used} of {human_duration(self.budget_s)}"
        self.job.observer.stage("serve", f"{pending.name} ({place})")
        server = stack.enter_context(serve_one(self.job, pending))
        self.start_s.append(server.start.ready_s)
        measure_lengths(self.job, server, pending.resolved)
        return server

    def _fail(self, name: str, reason: str) -> None:
        self.job.observer.warn(f"{name}: {reason}")
        raise CannotMeasure(reason)

    def _note_load(self, name: str, load: int) -> None:
        """The load is one of the run's now."""
        record = self.job.store.get("predicted", name, PredictedVariant)
        if record is None:  # the baseline, before anything can be predicted
            errors = tuple(self.calibration.errors.items())
            source = self.calibration.text
            record = PredictedVariant(variant=name, cells=(), errors=errors, source=source)
        if load not in record.measured:
            measured = tuple(sorted((*record.measured, load)))
            self.job.store.put("predicted", name, replace(record, measured=measured))
        store_cells(self.job.store, cells_of_variant(Run(self.job.store), name))

    def _measured(self, name: str, load: int, seconds: float) -> Measured:
        """The cell against the objective; one without figures costs infinitely much."""
        cell, objective = Run(self.job.store).cell(name, load), self.job.spec.objective
        trial = self.job.store.get("trials", trial_key(name, load, 0), TrialRecord)
        if cell is None or cell.cost_per_1m_tokens is None or trial is None:
            return Measured(cost=math.inf, met=False, seconds=seconds)
        limits = (
            (cell.ttft_p95_ms, objective.recommend_ttft_ms),
            (cell.estimate("tpot_p95_ms"), objective.tpot_ms),
            (cell.estimate("e2e_p95_ms"), objective.e2e_ms),
        )
        met = all(
            limit is None or (figure is not None and figure.value <= limit)
            for figure, limit in limits
        )
        return Measured(cost=cell.cost_per_1m_tokens.value, met=met, seconds=seconds)

    def close(self, arms: Sequence[Arm]) -> None:
        """Store why the others were not measured, and what was measured says of all loads."""
        outcome, known = self.outcome, Run(self.job.store).predicted
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
                self.job.store.put("predicted", arm.name, record)
        best = outcome.best
        named = "nothing that meets the objective" if best is None else f"{best[0]} at {best[1]}"
        self.job.observer.note(
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
