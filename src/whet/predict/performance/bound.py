"""What most of a step waits for, and the change that would raise it."""

from __future__ import annotations

from typing import Final

from whet.predict.performance.simulator import Limits, Simulated
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
