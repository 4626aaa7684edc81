"""The measured envelope of a run's variant: what alerts and ``whet watch`` compare with."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Final

from whet.core.errors import UsageError
from whet.core.load import Load
from whet.core.records.envelope import Envelope, LengthShares, MeasuredLoad, MeasuredRange
from whet.core.records.evidence import Declared
from whet.core.records.load import TrialRecord
from whet.core.run import Run
from whet.core.units import NS_PER_S
from whet.metrics.measured import steady_figures
from whet.metrics.metric import Metric
from whet.metrics.requests import RequestFigures
from whet.metrics.starts import by_start, pooled_rate
from whet.metrics.table import metrics_in
from whet.metrics.usable import usable_trials
from whet.metrics.window import busy_slots, one_request, output_tokens
from whet.watch.observation import SERIES

MARGIN: Final = 0.2
"""A figure that is worse than the worst measured one by this share is an alert."""
ACCEPTANCE_FLOOR: Final = 0.65
"""The lowest acceptance rate where the spec has no ``objective.min_acceptance_rate``."""

_FLAG_LABELS: Final = ("block_size", "cache_dtype", "enable_prefix_caching")
_LENGTH_EDGES: Final = tuple(m * 10.0**e for e in range(7) for m in (1, 2, 5))


def envelope_of(run: Run, variant: str, point: Load) -> Envelope:
    """The envelope of ``variant`` at ``point``, from the run's stored trials.

    Raises ``UsageError`` where no usable trial of that cell is stored.
    """
    resolved, spec = run.engines[variant], run.require_spec()
    speculation = resolved.variant.speculation
    trials = _trials(run, variant, point)
    if not trials:
        raise UsageError(
            f"{variant} has no usable trial at {point.words}",
            fix="finish the run with --resume",
        )
    ranges = tuple(_ranges(trials))
    rate = next((item for item in ranges if item.metric == "acceptance_rate"), None)
    floor = spec.objective.min_acceptance_rate or ACCEPTANCE_FLOOR
    declared = run.store.get("declared", variant, Declared)
    facts = run.facts.get(variant)
    events = [e for t in trials for e in t.requests if e.error is None and e.output_tokens]
    prompts = [event.prompt_tokens for event in events if event.prompt_tokens]
    outputs = [event.output_tokens for event in events if event.output_tokens]
    return Envelope(
        run=run.name,
        variant=variant,
        load=point.words,
        in_flight=_load(trials).in_flight,
        engine=resolved.engine,
        engine_version=resolved.engine_version,
        model=resolved.served_model_name,
        device=resolved.device,
        max_model_len=None if facts is None else facts.max_model_len,
        num_speculative_tokens=None if speculation is None else speculation.num_tokens,
        prefix_cache=resolved.variant.prefix_cache,
        loras=tuple(name for name, _ in resolved.variant.loras),
        cache=_flag_labels(declared),
        ranges=ranges,
        loads=tuple(_loads(run, variant)),
        ttft_limit_ms=spec.objective.recommend_ttft_ms,
        tpot_limit_ms=spec.objective.tpot_ms,
        e2e_limit_ms=spec.objective.e2e_ms,
        acceptance_floor=floor if rate is not None and rate.low >= floor else None,
        input_tokens_mean=sum(prompts) / max(1, len(prompts)),
        output_tokens_mean=sum(outputs) / max(1, len(outputs)),
        prompt_tokens=_lengths(prompts),
        output_tokens=_lengths(outputs),
        series=_series(trials),
        draft_follows_load=speculation is not None and bool(speculation.by_load),
    )


def _trials(run: Run, variant: str, point: Load) -> list[TrialRecord]:
    both = (run.trials_of(variant, point, confirmation=again) for again in (False, True))
    return usable_trials([trial for trials in both for trial in trials])


def _ranges(trials: Sequence[TrialRecord]) -> Iterable[MeasuredRange]:
    for metric in metrics_in("envelope"):
        starts = (metric.of_start(start) for start in by_start(trials))
        if figures := [value for value in starts if value is not None]:
            yield _range(metric, figures)


def _range(metric: Metric, figures: Sequence[float]) -> MeasuredRange:
    low, high = min(figures), max(figures)
    limit = high * (1 + MARGIN) if metric.better == "lower" else low / (1 + MARGIN)
    return MeasuredRange(
        metric=metric.name,
        low=low,
        high=high,
        starts=len(figures),
        limit=float(f"{limit:.3g}"),
        worse="higher" if metric.better == "lower" else "lower",
    )


def _loads(run: Run, variant: str) -> list[MeasuredLoad]:
    trials = (_trials(run, variant, point) for point in run.points_of(variant))
    return sorted((_load(each) for each in trials if each), key=lambda item: item.in_flight)


def _load(trials: Sequence[TrialRecord]) -> MeasuredLoad:
    figures = steady_figures(trials)
    return MeasuredLoad(
        in_flight=sum(busy_slots(trial) for trial in trials) / len(trials),
        ttft_mean_s=_mean_s(figures, lambda f: f.ttft_ns),
        tpot_mean_s=_mean_s(figures, lambda f: f.tpot_ns),
        tps=pooled_rate(trials, output_tokens),
        rps=pooled_rate(trials, one_request),
    )


def _mean_s(
    figures: Sequence[RequestFigures], of: Callable[[RequestFigures], float | None]
) -> float:
    values = [value for item in figures if (value := of(item)) is not None]
    return sum(values) / len(values) / NS_PER_S if values else 0.0


def _series(trials: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Return the series of ``/metrics`` that every trial had, of those that the watch reads."""
    read = [dict(t.counters_after.values) for t in trials if t.counters_after is not None]
    return tuple(name for name in SERIES if read and all(name in values for values in read))


def _flag_labels(declared: Declared | None) -> tuple[tuple[str, str], ...]:
    labels = dict(declared.cache) if declared is not None else {}
    return tuple((name, labels[name]) for name in _FLAG_LABELS if name in labels)


def _lengths(values: Sequence[int]) -> LengthShares:
    """Shares on the 1-2-5 edges that vLLM's own length histograms have."""
    longest = max(values, default=1)
    edges = tuple(takewhile(lambda edge: edge < longest, _LENGTH_EDGES))
    counts = Counter(bisect_left(edges, value) for value in values)
    total = max(1, len(values))
    return LengthShares(
        edges=edges,
        shares=tuple(counts[at] / total for at in range(len(edges) + 1)),
        requests=len(values),
    )
