"""A measured load under the names that ``vllm bench serve --save-result`` uses.

The names are vLLM 0.29's, so that what reads its files reads this one. Latencies count from the
schedule, where vLLM's count from the send and leave the wait of ``--max-concurrency`` out; the
figures from the send have names with ``…_from_send_ms``. Statistics of latencies are those of
the steady part, without the first wave of a closed loop, which has its own
``…_burst_ttft_ms``; counts, rates and the lists have every timed request, as vLLM's do. A figure
without data is null, which vLLM writes as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from whet._version import __version__
from whet.core.records.load import RequestEvent, TrialRecord
from whet.core.records.objective import Bound
from whet.core.units import NS_PER_MS, NS_PER_S, ns_to_ms, ns_to_s
from whet.metrics import request_figures
from whet.metrics.counted import acceptance_length, prefix_hit_rate
from whet.metrics.measured import steady_figures
from whet.metrics.objective import attainment
from whet.metrics.request_groups import RequestGroups
from whet.metrics.requests import RequestFigures
from whet.metrics.usable import trial_problem
from whet.metrics.window import first_wave, steady_requests

SCHEMA_VERSION: Final = 1

VALUES: Final[dict[str, Callable[[RequestFigures], Sequence[float | None]]]] = {
    "ttft": lambda f: [f.ttft_ns],
    "ttft_from_send": lambda f: [f.ttft_from_send_ns],
    "tpot": lambda f: [f.tpot_ns],
    "itl": lambda f: f.itl_ns,
    "e2el": lambda f: [f.e2e_ns],
}
"""The values of one request in ns; None is not known."""


def vllm_result(
    trial: TrialRecord,
    percentiles: Sequence[float],
    *,
    bounds: Sequence[Bound] | None = None,
    detailed: bool = True,
) -> dict[str, Any]:
    """The summary keys and, if ``detailed``, a list entry per request, failed ones included.

    Latencies get mean, median, deviation and ``percentiles`` (0 to 100). ``duration`` is from the
    first scheduled send to the end of the last request, as vLLM counts it, so rates hold its ramp
    and its tail. ``bounds`` are what a request must keep to count for goodput.
    """
    events = trial.requests
    figures = steady_figures([trial])
    start_ns = min((event.scheduled_ns for event in events), default=0)
    seconds = ns_to_s(max((event.ended_ns for event in events), default=0) - start_ns)
    done = [event for event in events if event.error is None]
    inputs = sum(event.prompt_tokens or 0 for event in done)
    outputs = sum(event.output_tokens or 0 for event in done)

    def rate(count: float) -> float | None:
        return count / seconds if seconds > 0 else None

    result: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "duration": seconds,
        "completed": len(done),
        "failed": len(events) - len(done),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": rate(len(done)),
        "request_goodput": None if bounds is None else rate(_within_bounds(events, bounds)),
        "output_throughput": rate(outputs),
        "total_token_throughput": rate(inputs + outputs),
        "max_concurrent_requests": most_in_flight(events),
    }
    for name, of in VALUES.items():
        values = [value for item in figures for value in of(item) if value is not None]
        result |= _statistics(name, np.asarray(values) / NS_PER_MS, percentiles)
    burst = [item.ttft_ns for e in first_wave(trial) if (item := request_figures(e)) is not None]
    if burst:
        result |= _statistics("burst_ttft", np.asarray(burst) / NS_PER_MS, (95.0,))
    length = acceptance_length([trial])
    if length is not None:
        result["spec_decode_acceptance_length"] = length
    return result | _each(events, start_ns) if detailed else result


def run_info(trial: TrialRecord, model: str, tokenizer: str) -> dict[str, Any]:
    """Describe the measurement: model, time, load, and whether the client kept up."""
    health, problem = trial.health, trial_problem(trial)
    return {
        "date": trial.started_at,
        "backend": "openai",
        "endpoint_type": "openai",
        "model_id": model,
        "tokenizer_id": tokenizer,
        "num_prompts": len(trial.requests),
        "max_concurrency": trial.load.slots or None,
        "run_info": {
            "client": f"whet {__version__}",
            "latency_from": "schedule",
            "status": trial.status,
            "failure": trial.failure,
            "loop": trial.loop,
            "workload_sha256": trial.workload_sha256,
            "warmup_requests": trial.excluded_warmup,
            "timed_requests_before_steady": len(trial.requests) - len(steady_requests(trial)),
            "valid": problem is None,
            "invalid_because": problem,
            "dispatch_delay_p99_ms": ns_to_ms(health.dispatch_delay_p99_ns),
            "loop_lag_p99_ms": ns_to_ms(health.loop_lag_p99_ns),
            "client_cpu_share": health.cpu_share,
            "client_workers": health.workers,
            "retried_requests": sum(event.retried for event in trial.requests),
            "asked_request_rate": health.asked_rps,
            "achieved_request_rate": health.achieved_rps,
            "prefix_hit_rate": prefix_hit_rate([trial]),
        },
    }


def _within_bounds(events: Sequence[RequestEvent], bounds: Sequence[Bound]) -> int:
    share = attainment(RequestGroups(events=tuple(events)), bounds)
    return 0 if share is None else round(share.value * len(events))


def _each(events: Sequence[RequestEvent], start_ns: int) -> dict[str, Any]:
    figures = [request_figures(event) for event in events]

    def seconds(values: Sequence[float]) -> list[float]:
        return [value / NS_PER_S for value in values]

    return {
        "input_lens": [event.prompt_tokens for event in events],
        "output_lens": [event.output_tokens for event in events],
        "ttfts": [None if item is None else ns_to_s(item.ttft_ns) for item in figures],
        "itls": [[] if item is None else seconds(item.itl_ns) for item in figures],
        "latencies": [None if item is None else ns_to_s(item.e2e_ns) for item in figures],
        "start_times": seconds([event.scheduled_ns - start_ns for event in events]),
        "queue_times": seconds([event.sent_ns - event.scheduled_ns for event in events]),
        "generated_texts": [event.text for event in events],
        "errors": [
            "" if event.error is None else f"{event.error}: {event.detail or ''}"
            for event in events
        ],
    }


def _statistics(
    name: str, values: np.ndarray[Any, np.dtype[np.float64]], percentiles: Sequence[float]
) -> dict[str, float | None]:
    wanted: dict[str, Callable[[Any], Any]] = {"mean": np.mean, "median": np.median, "std": np.std}
    result = {
        f"{word}_{name}_ms": float(of(values)) if len(values) else None
        for word, of in wanted.items()
    }
    for p in percentiles:
        word = f"p{p:g}"
        result[f"{word}_{name}_ms"] = float(np.percentile(values, p)) if len(values) else None
    return result


def most_in_flight(events: Sequence[RequestEvent]) -> int:
    """The most requests that were sent and not ended at one moment."""
    edges = sorted(
        [(event.sent_ns, 1) for event in events] + [(event.ended_ns, -1) for event in events]
    )  # at one moment an end comes before a start
    return int(max(np.cumsum([step for _, step in edges]), default=0))
