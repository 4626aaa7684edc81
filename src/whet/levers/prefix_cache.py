"""The prefix cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from whet.core.counters import GENERATED, PREFIX_HITS, PREFIX_QUERIES
from whet.core.records.engine import ResolvedEngine, Variant
from whet.core.records.evidence import Claim
from whet.core.records.load import RequestEvent, TrialRecord, WorkloadFacts
from whet.engines import get_profile
from whet.levers.base import Cell, Lever, Outcome, Start, claim_per_cell
from whet.levers.counters import counter_change, idle, unread

HIT_RATE_MARGIN: Final = 0.02
"""Two points either way, for the last block of each prompt and requests cut short."""
_FROM_HIDDEN_STATES: Final = frozenset({"eagle", "eagle3", "dflash", "dspark", "mtp"})


class PrefixCache(Lever):
    """``prefix_cache``: on or off, both are claims."""

    name = "prefix_cache"

    def labels(self, variant: Variant) -> Iterator[str]:
        """``prefix_cache`` where it is on."""
        if variant.prefix_cache:
            yield "prefix_cache"

    def claims(self, resolved: ResolvedEngine) -> Iterator[Claim]:
        """The hit rate that the workload was built to have, or no lookup at all."""
        if not resolved.variant.prefix_cache:
            yield claim_per_cell(
                "prefix_cache",
                "no prefix cache",
                "the tokens looked up in the prefix cache do not rise",
            )
            return
        yield claim_per_cell(
            "prefix_cache",
            "the prefix cache hits as often as the workload was built to let it",
            f"Δhits ÷ Δqueries within {HIT_RATE_MARGIN * 100:g} points of the workload's; "
            "without a warm-up, first uses of a shared prefix in flight together may miss as well",
        )

    def judge_start(self, claim: Claim, start: Start) -> Outcome | None:
        """Counters judge the cache in every cell; a start that contradicts settles it at once."""
        wanted, facts = start.variant.prefix_cache, start.facts
        label = dict(start.declared.cache).get("enable_prefix_caching")
        setting = start.declared.setting("cache_config.enable_prefix_caching")
        sources = {
            f"enable_prefix_caching={facts.prefix_cache_enabled}": facts.prefix_cache_enabled,
            f'{start.profile.pages.cache} enable_prefix_caching="{label}"': None
            if label is None
            else label == "True",
            f"/server_info cache_config.enable_prefix_caching {setting}": None
            if setting is None
            else setting.lower() == "true",
        }
        wrong = tuple(line for line, value in sources.items() if value is (not wanted))
        return ("contradicted", f"the engine started with {wrong[0]}", wrong) if wrong else None

    def judge_cell(self, claim: Claim, cell: Cell) -> Outcome:
        """By the counters of tokens looked up and hit, else by what each response reports."""
        if counter_change(PREFIX_QUERIES, cell.trials).absent and _responses_say(cell.trials):
            return _by_responses(cell)
        return _on(cell) if cell.variant.prefix_cache else _off(cell)


@dataclass(frozen=True, kw_only=True, slots=True)
class HitRateBounds:
    """The hit rate that the workload was built to have, and the range that agrees with it."""

    expected: float
    low: float
    high: float


def hit_rate_bounds(cell: Cell) -> HitRateBounds:
    """Two points either way of the trials' expected rates, weighted by the tokens looked up.

    A trial whose warm-up could not touch every shared prefix may lose more: requests in flight
    together cannot hit what none of them has finished to fill in, so of its n requests up to
    max(concurrency, shared prefixes) may lose their hits: expected × that ÷ n. A log's trial may
    lose down to its least rate, and gain up to its most. A cache that matches token by token may
    hit up to one block more of every request. Each LoRA adapter has blocks of its own, and a
    warm-up that touches every prefix once leaves those of the other adapters cold.
    """
    by_hash = {item.sha256: _reachable(cell.variant, item) for item in cell.workloads}
    first = next(iter(by_hash.values()))
    by_token = get_profile(cell.resolved.engine).counters.caches_tokens
    adapters = max(1, len(cell.variant.loras))
    total = wanted = lost = more = 0.0
    for trial in cell.trials:
        workload = by_hash.get(trial.workload_sha256, first)
        tokens = counter_change(PREFIX_QUERIES, [trial]).delta or _prompt_tokens([trial])
        prefixes = workload.shared_prefixes
        blocks = prefixes * adapters
        total += tokens
        wanted += tokens * workload.expected_hit_rate
        if workload.most_hit_rate is not None:
            more += tokens * (workload.most_hit_rate - workload.expected_hit_rate)
        if by_token:
            more += tokens * workload.block_size / workload.input_tokens_mean
        if workload.least_hit_rate is not None:
            lost += tokens * (workload.expected_hit_rate - workload.least_hit_rate)
        elif trial.excluded_warmup < blocks and trial.requests:
            cold = min(1.0, max(trial.load.value, blocks) / len(trial.requests))
            if trial.excluded_warmup >= prefixes:
                cold *= 1 - 1 / adapters
            lost += tokens * workload.expected_hit_rate * cold
    expected = wanted / total
    return HitRateBounds(
        expected=expected,
        low=max(0.0, expected - HIT_RATE_MARGIN - lost / total),
        high=min(1.0, expected + HIT_RATE_MARGIN + more / total),
    )


def _reachable(variant: Variant, workload: WorkloadFacts) -> WorkloadFacts:
    """The workload with the hit rate that this variant can reach.

    A head that drafts from hidden states needs those of the last block, so vLLM computes it anew:
    every request that hits gets one block less.
    """
    if variant.speculation is None or variant.speculation.method not in _FROM_HIDDEN_STATES:
        return workload
    lost = workload.shared_prefix_share * workload.block_size / workload.input_tokens_mean
    least, most = workload.least_hit_rate, workload.most_hit_rate
    return replace(
        workload,
        expected_hit_rate=max(0.0, workload.expected_hit_rate - lost),
        least_hit_rate=None if least is None else max(0.0, least - lost),
        most_hit_rate=None if most is None else max(0.0, most - lost),
    )


def _off(cell: Cell) -> Outcome:
    all_prompts = get_profile(cell.resolved.engine).counters.counts_every_prompt
    used = counter_change(PREFIX_HITS if all_prompts else PREFIX_QUERIES, cell.trials)
    how = "found in" if all_prompts else "looked up in"
    generated = counter_change(GENERATED, cell.trials)
    if used.delta is None:
        return unread(used)
    if used.delta == 0 and not generated.delta:
        return unread(generated) if generated.delta is None else idle(generated)
    if used.delta > 0:
        observed = f"{used.delta:,.0f} tokens were {how} a prefix cache"
        return "contradicted", observed, (used.source,)
    return "proved", f"no token was {how} a prefix cache", (used.source,)


def _on(cell: Cell) -> Outcome:
    hits = counter_change(PREFIX_HITS, cell.trials)
    queries = counter_change(PREFIX_QUERIES, cell.trials)
    if hits.delta is None or queries.delta is None:
        return unread(hits, queries)
    return _judge_rate(cell, hits.delta, queries.delta, (hits.source, queries.source))


def _judge_rate(cell: Cell, hits: float, queries: float, sources: tuple[str, ...]) -> Outcome:
    """The hit rate against what the workload was built to have."""
    if queries <= 0:
        return "contradicted", "no token was looked up in a prefix cache", sources
    rate, bounds = hits / queries, hit_rate_bounds(cell)
    observed = f"hit rate {rate:.1%}, built for {bounds.expected:.1%}"
    if rate < bounds.low:
        return "contradicted", f"{observed}: under the bound of {bounds.low:.1%}", sources
    if rate > bounds.high:
        why = "an earlier trial's entries were hit"
        return "contradicted", f"{observed}: over the bound of {bounds.high:.1%}, so {why}", sources
    if hits <= 0:
        why = "the workload cannot hit, so a cache that never does looks the same"
        return "unproved", f"{observed}: {why}", sources
    return "proved", f"{observed} (bounds {bounds.low:.1%} to {bounds.high:.1%})", sources


def _by_responses(cell: Cell) -> Outcome:
    """Of a server without such counters: ``cached_tokens`` in the usage of every response."""
    hits = float(sum(each.cached_tokens or 0 for each in _completed(cell.trials)))
    queries = _prompt_tokens(cell.trials)
    source = (f"usage of the responses: {hits:,.0f} of {queries:,.0f} prompt tokens cached",)
    if cell.variant.prefix_cache:
        return _judge_rate(cell, hits, queries, source)
    if hits > 0:
        return "contradicted", f"{hits:,.0f} prompt tokens came from a prefix cache", source
    return "proved", "no prompt token came from a prefix cache", source


def _completed(trials: Sequence[TrialRecord]) -> list[RequestEvent]:
    return [each for trial in trials for each in trial.requests if each.error is None]


def _responses_say(trials: Sequence[TrialRecord]) -> bool:
    """Whether every completed response reports its cached tokens, and there are any."""
    events = _completed(trials)
    return bool(events) and all(None not in (e.cached_tokens, e.prompt_tokens) for e in events)


def _prompt_tokens(trials: Sequence[TrialRecord]) -> float:
    return float(sum(each.prompt_tokens or 0 for each in _completed(trials)))
