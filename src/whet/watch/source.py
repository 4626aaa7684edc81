"""What a deployment is compared with: a run's variant, or the same from a bundle's folder.

The envelope is what the run measured of the variant; alerts and ``whet watch`` compare with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final

from whet.core.errors import UsageError
from whet.core.load import Load
from whet.core.quote import shell_word
from whet.core.records.engine import UNQUANTIZED, ResolvedEngine
from whet.core.records.envelope import Envelope, LengthShares, MeasuredLoad, MeasuredRange
from whet.core.records.evidence import Declared
from whet.core.records.load import TrialRecord
from whet.core.records.quality_checks import GoldenProbes
from whet.core.run import Run
from whet.core.spec import Spec
from whet.core.store import json_text, read_record
from whet.core.units import NS_PER_S
from whet.metrics.measured import steady_figures
from whet.metrics.metric import Metric
from whet.metrics.requests import RequestFigures
from whet.metrics.starts import by_start, pooled_rate
from whet.metrics.table import metrics_in
from whet.metrics.usable import usable_trials
from whet.metrics.window import busy_slots, one_request, output_tokens
from whet.watch.observation import SERIES
from whet.watch.signals import References

MARGIN: Final = 0.2
"""A figure that is worse than the worst measured one by this share is an alert."""
ACCEPTANCE_FLOOR: Final = 0.65
"""The lowest acceptance rate where the spec has no ``objective.min_acceptance_rate``."""

_FLAG_LABELS: Final = ("block_size", "cache_dtype", "enable_prefix_caching")
_LENGTH_EDGES: Final = tuple(m * 10.0**e for e in range(7) for m in (1, 2, 5))

FOLDER: Final = "watch"
"""The folder of a bundle that holds these records."""
_ENVELOPE, _GOLDEN, _PLAIN = "envelope.json", "golden.json", "golden-16bit.json"
_ENGINE, _SPEC = "engine.json", "spec.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchSource(References):
    """The deployed variant: its references, the command that was measured and the run's spec."""

    engine: ResolvedEngine
    spec: Spec

    @property
    def unprobed(self) -> str | None:
        """Why nothing is probed; None where the run stored golden probes."""
        why = "golden/ has none; a new run takes them or says why"
        if not self.spec.quality.golden_probes:
            why = "quality.golden_probes: 0"
        text = f"The run stored no golden probes ({why}): changed answers are not noticed"
        return None if self.golden is not None else text


def source_of_run(run: Run, variant: str, point: Load) -> WatchSource:
    """The references of one measured variant at one load.

    Raises ``UsageError`` where the run has no usable trial of it.
    """
    spec = run.require_spec()
    own = run.engines[variant].variant
    baseline = run.engines.get(spec.baseline)
    quantized = own.scheme not in UNQUANTIZED and (
        baseline is None or baseline.variant.model_path != own.model_path
    )
    return WatchSource(
        envelope=envelope_of(run, variant, point),
        golden=_stored_golden(run, variant),
        plain=_stored_golden(run, spec.baseline) if quantized else None,
        engine=run.engines[variant],
        spec=spec,
    )


def _stored_golden(run: Run, variant: str) -> GoldenProbes | None:
    path = run.store.path("golden", f"{variant}.json")
    golden = read_record(path, GoldenProbes) if path.exists() else None
    return golden if golden is not None and golden.probes else None


def read_source(path: Path) -> WatchSource:
    """The source in ``path``: a bundle of whet deploy, or a run, whose recommendation it takes.

    Raises ``UsageError`` where it is neither, or the run recommends nothing.
    """
    if (path / FOLDER / _ENVELOPE).is_file():
        return _read_folder(path / FOLDER)
    if not (path / "journal.jsonl").is_file():
        raise UsageError(f"{path} is neither a run nor a bundle", fix="write one: whet deploy RUN")
    run = Run.read(path)
    chosen = run.decision.recommendation if run.decision is not None else None
    if chosen is None:
        raise UsageError(
            f"{path} recommends nothing to watch",
            fix=f"deploy a variant of it first: whet deploy {shell_word(str(path))} --variant NAME",
        )
    return source_of_run(run, chosen.variant, chosen.load)


def source_files(source: WatchSource) -> dict[str, str]:
    """The records as JSON by path in a bundle; ``read_source`` reads them."""
    records: dict[str, object] = {
        _ENVELOPE: source.envelope,
        _GOLDEN: source.golden,
        _PLAIN: source.plain,
        _ENGINE: source.engine,
    }
    records[_SPEC] = source.spec.model_dump(mode="json")
    return {f"{FOLDER}/{k}": json_text(x) for k, x in records.items() if x is not None}


def _read_folder(folder: Path) -> WatchSource:
    golden, plain = folder / _GOLDEN, folder / _PLAIN
    read = partial(read_record, fix="write the bundle again: whet deploy RUN")
    return WatchSource(
        envelope=read(folder / _ENVELOPE, Envelope),
        golden=read(golden, GoldenProbes) if golden.exists() else None,
        plain=read(plain, GoldenProbes) if plain.exists() else None,
        engine=read(folder / _ENGINE, ResolvedEngine),
        spec=read(folder / _SPEC, Spec),
    )


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
            fix=f"finish the run with {run.resume_command}",
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
