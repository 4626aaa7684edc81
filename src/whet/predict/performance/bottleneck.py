"""What limits the recommended configuration, from the model of a step."""

from __future__ import annotations

from dataclasses import replace

from whet.core.load import Load
from whet.core.records.decision import Decision
from whet.core.run import Run
from whet.predict.hardware import known_name, sheet_of
from whet.predict.performance import StepModel, calibration_of, simulate
from whet.predict.performance.bound import CHANGES, largest_part
from whet.predict.performance.fit import mean_latencies
from whet.predict.performance.observe import observation_of

_FAR = 0.4
"""Relative error of TPOT from which on the model does not explain the measurement."""


def with_bottleneck(run: Run, decision: Decision) -> Decision:
    """The decision with one more reason, where the model explains what was measured."""
    chosen = decision.recommendation
    if chosen is None or (sentence := _sentence(run, chosen.variant, chosen.load)) is None:
        return decision
    return replace(decision, recommendation=replace(chosen, reasons=(*chosen.reasons, sentence)))


def _sentence(run: Run, variant: str, load: Load) -> str | None:
    """None on a CPU, at a rate, and where the prediction is far from the measurement."""
    device = run.require_environment().device
    if device.kind != "cuda" or load.concurrency is None:
        return None
    trials = (each for each in run.trials if (each.variant, each.load) == (variant, load))
    cells = (cell for each in trials for cell in observation_of(run, each, device))
    if (cell := next(cells, None)) is None:
        return None
    coefficients = calibration_of(known_name(device) or device.name).coefficients
    model = StepModel(cell.work, sheet_of(device), coefficients, draft=cell.draft)
    result = simulate(cell.requests, model, cell.limits, in_flight=load.concurrency)
    predicted, measured = mean_latencies(result, load.concurrency).tpot, cell.measured.tpot
    if not measured or abs(predicted / measured - 1) > _FAR:
        return None
    name, share = largest_part(result, model, cell.limits, load.concurrency)
    part = name if share is None else f"{name}, {share:.0%} of a step"
    return (
        f"limited by {part}, by a model of the step (TPOT {1e3 * predicted:.3g} ms, measured "
        f"{1e3 * measured:.3g} ms); what would raise it: {CHANGES[name]}"
    )
