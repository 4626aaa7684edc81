"""What a request log says about the load, and what it does not say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from whet.core.format import percent, plural, significant
from whet.core.units import human_duration, ns_to_s
from whet.flow.run.traffic.logged import BLOCK, TrafficLog, p99_of
from whet.prompts.analyse import PromptLog, analyse
from whet.prompts.options import PromptsOptions
from whet.prompts.records import CAUSES
from whet.requests.sample import LogSample, conversation_of

_WINDOW_S: Final = 300.0
_MOST_REPLAYED: Final = 2_000
_WORTH: Final = 0.05
"""Share of the prompts' tokens that a change of the prompts has to save, to be named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Requests a second of a log: the mean, and that of its busiest five minutes."""

    seconds: float
    mean: float
    busiest: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LogProfile:
    """A log's facts."""

    traffic: TrafficLog
    conversations: int
    models: tuple[str, ...]
    greedy: float
    rates: Rates | None
    natural: bool
    fix: str | None

    def lines(self) -> Iterator[str]:
        """What the log says, a line each."""
        log, sample = self.traffic, self.traffic.sample
        prompts, answers = zip(*log.lengths, strict=True)
        span = "" if self.rates is None else f" in {human_duration(self.rates.seconds)}"
        model = f" for {', '.join(self.models)}" if self.models else ""
        yield f"{log.path.name}: {plural(sample.log_requests, 'request')}{span}{model}"
        count = plural(len(sample.requests), "request")
        used = f"  used: {count} of {plural(self.conversations, 'conversation')}"
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in log.left_out)
        yield f"{used}; left out: {reasons}" if reasons else used
        limit = "at most " if self.natural else ""
        yield f"  tokens: prompts {_spread(prompts)}, answers {limit}{_spread(answers)}"
        yield (
            f"  an ideal prefix cache answers {percent(log.hit_rate)} of the used prompts' tokens "
            f"(blocks of {BLOCK}, answers not cached); {percent(sample.repeats)} of the requests "
            "repeat an earlier one"
        )
        if self.fix is not None:
            yield self.fix
        if self.rates is not None:
            yield (
                f"  arrivals: {significant(self.rates.mean, 3)} a second, "
                f"{significant(self.rates.busiest, 3)} in the busiest five minutes"
            )


def profile_log(log: TrafficLog, tokenizer: Path, *, natural: bool) -> LogProfile:
    """Everything that the spec rests on; the lengths of ``natural`` answers are limits."""
    sample = log.sample
    requests = [each.request for each in sample.requests]
    counts = Counter(each.model for each in requests if each.model is not None)
    models = tuple(name for name, _ in counts.most_common(2))
    return LogProfile(
        traffic=log,
        conversations=len({conversation_of(each) for each in requests}),
        models=models,
        greedy=log.facts.greedy / len(requests),
        rates=_rates(log),
        natural=natural,
        fix=_fix(log.path, tokenizer, models[0] if len(models) > 1 else None),
    )


def _fix(log: Path, tokenizer: Path, model: str | None) -> str | None:
    """What a change of the prompts makes of the hit rate, by the log's first requests."""
    options = PromptsOptions(model=model, max_requests=_MOST_REPLAYED)
    analysis, _ = analyse(PromptLog(log, str(tokenizer), options))
    if analysis.best.rate < analysis.hits.rate + _WORTH:
        return None
    causes = ", ".join(CAUSES[kind] for kind in analysis.fix_kinds)
    return f"  whet prompts would make it {percent(analysis.best.rate)}: {causes} early in prompts"


def answers_known(sample: LogSample) -> bool:
    """Whether most requests have an answer or its length."""
    known = sum(
        each.request.output_tokens is not None or bool(each.request.output)
        for each in sample.requests
    )
    return known > len(sample.requests) / 2


def _rates(log: TrafficLog) -> Rates | None:
    """None for a log with hardly any times."""
    mean = log.rate_rps
    if mean is None:
        return None
    times_ns = np.asarray(log.sample.times_ns, dtype=np.int64)
    seconds = ns_to_s(float(times_ns[-1] - times_ns[0]))
    window_s = min(_WINDOW_S, seconds)
    ends = np.searchsorted(times_ns, times_ns + round(window_s * 1e9), side="right")
    busiest = float((ends - np.arange(len(times_ns))).max()) / window_s
    busiest = max(busiest, mean) if seconds > window_s else mean
    return Rates(seconds=seconds, mean=mean, busiest=busiest)


def _spread(values: Sequence[int]) -> str:
    return f"{median(values):,.0f} (p99 {p99_of(values):,})"
