"""What most of a step waits for, and the change that would raise it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from whet.core.load import Load
from whet.core.records.decision import Decision
from whet.core.run import Run
from whet.predict.hardware import known_name, sheet_of
from whet.predict.performance.coefficients import calibration_of
from whet.predict.performance.observe import mean_latencies, observation_of
from whet.predict.performance.simulator import Limits, Simulated, simulate
from whet.predict.performance.step import StepModel

CHANGES: Final = {
    "queue": "raise max_num_seqs",
    "KV cache is full": "an 8-bit KV cache, or GPUs with more memory",
    "front end": "a larger api_server_count, or the Rust front end",
    "host": "a faster processor core, or asynchronous scheduling",
    "prompts": "a prefix cache where prompts share a beginning, or 8-bit products",
    "weights": "weights of fewer bits, or more requests in flight",
    "compute": "8-bit products in place of 16-bit ones, fewer proposed tokens, or more GPUs",
    "experts": "weights of fewer bits, or experts on more GPUs",
    "KV cache": "an 8-bit KV cache",
    "layers": "speculation, or more requests in flight",
    "exchange": "fewer GPUs an engine and more engines",
    "sequences": "more engines with fewer requests each",
    "vocabulary": "more engines with fewer requests each",
    "draft": "fewer proposed tokens",
}
"""What helps where a part is the largest."""
_FAR: Final = 0.4
"""Relative error of TPOT from which on the model does not explain the measurement."""


def with_bottleneck(run: Run, decision: Decision) -> Decision:
    """The decision with one more reason, where the model explains what was measured."""
    chosen = decision.recommendation
    if chosen is None or (name := limited_by(run, chosen.variant, chosen.load)) is None:
        return decision
    why = f"limited by {name}, by a model of the step; what would raise it: {CHANGES[name]}"
    return replace(decision, recommendation=replace(chosen, reasons=(*chosen.reasons, why)))


def limited_by(run: Run, variant: str, load: Load) -> str | None:
    """The key of ``CHANGES`` that limits a measured cell.

    None on a CPU, at a rate, and where the prediction is far from the measurement.
    """
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
    return largest_part(result, model, cell.limits, load.concurrency)[0]


def largest_part(
    result: Simulated, model: StepModel, limits: Limits, size: int
) -> tuple[str, float | None]:
    """The key of ``CHANGES`` that limits the rate at ``size`` in flight, and its share of a step.

    A limit that is beside the device's work (memory, queue, front end, host) has no share.
    """
    if size > limits.max_seqs:
        return "queue", None
    if result.preemptions:
        return "KV cache is full", None
    requests = [each.request for each in result.requests]
    context = size * sum(r.prompt + r.output / 2 for r in requests) / len(requests)
    parts = model.parts(size, context)
    step_s = sum(parts.values())
    if size * model.message_s * limits.front_share > step_s:
        return "front end", None
    if model.host_s > step_s:
        return "host", None
    prompt_s = 1 - result.steps * step_s / result.seconds
    parts = {"prompts": prompt_s * step_s, **parts} if prompt_s > 0 else parts
    name = max(parts, key=lambda each: parts[each])
    return name, parts[name] / step_s
