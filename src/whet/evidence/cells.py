"""Claims that counters settle, read before and after the timed requests of every trial."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from whet.core.records import (
    Claim,
    ResolvedEngine,
    Speculation,
    TrialRecord,
    Variant,
    Verdict,
    WorkloadFacts,
)
from whet.evidence.claims import HIT_RATE_MARGIN, claims
from whet.evidence.dialect import (
    ACCEPTED,
    COUNTERS_ALIVE,
    DRAFT_TOKENS,
    DRAFTS,
    HITS,
    LORA_RUNNING,
    PROCESS_STARTED,
    QUERIES,
)

_Outcome = tuple[str, str, tuple[str, ...]]
_FROM_HIDDEN_STATES: Final = frozenset({"eagle", "eagle3", "mtp"})
SYNTHETIC_MARGIN = 0.05
"""A simulated acceptance length may miss the one asked for by this share."""
PAYS_NOTHING = 1.05
"""Below this acceptance length a draft's few hits could as well be chance."""
SEEN_SHARE = 0.75
"""Counters that saw fewer of the client's tokens than this are not, or not only, its server's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One counter over the complete trials of a cell.

    ``delta`` is None where a scrape is missing, the name is absent from one that could have it, the
    counter went backwards or another process answered the second scrape; ``absent`` is True where
    the server exports no such name in any scrape.
    """

    name: str
    delta: float | None
    absent: bool
    source: str


def judge_cell(
    resolved: ResolvedEngine,
    trials: Sequence[TrialRecord],
    workload: WorkloadFacts | Sequence[WorkloadFacts],
) -> tuple[Verdict, ...]:
    """A verdict per ``per_cell`` claim over the complete trials of one batch size.

    ``trials`` are of one variant and one batch size; ``workload`` is what they were made of, one
    for all or one a trial (told apart by hash). A counter that is missing or went backwards leaves
    the claim unproved: missing is never 0.
    """
    workloads = [workload] if isinstance(workload, WorkloadFacts) else list(workload)
    complete = [trial for trial in trials if trial.status == "complete"]
    batch_size = trials[0].batch_size if trials else None
    verdicts = []
    for claim in claims(resolved.variant):
        if claim.per_cell:
            word, observed, sources = _judge(claim, resolved, complete, workloads)
            verdicts.append(
                Verdict(
                    variant=resolved.variant.name,
                    batch_size=batch_size,
                    claim=claim,
                    outcome=word,
                    observed=observed,
                    sources=sources,
                )
            )
    return tuple(verdicts)


def _judge(
    claim: Claim,
    resolved: ResolvedEngine,
    trials: Sequence[TrialRecord],
    workloads: Sequence[WorkloadFacts],
) -> _Outcome:
    if not trials:
        return "unproved", "no trial was completed", ()
    if claim.kind == "batching":
        return _static(trials)
    return _other_server(trials) or _counted(claim, resolved.variant, trials, workloads)


def _counted(
    claim: Claim,
    variant: Variant,
    trials: Sequence[TrialRecord],
    workloads: Sequence[WorkloadFacts],
) -> _Outcome:
    if claim.kind == "speculation":
        found = variant.speculation
        return _speculation_off(trials) if found is None else _speculation_on(trials, found)
    if claim.kind == "lora_requests":
        return _adapters(trials, [name for name, _ in variant.loras])
    if not variant.prefix_cache:
        return _cache_off(trials)
    return _cache_on(trials, [_reachable(variant, workload) for workload in workloads])


def _reachable(variant: Variant, workload: WorkloadFacts) -> WorkloadFacts:
    """The workload with the hit rate that this variant can reach.

    A head that drafts from hidden states needs those of the last block, so vLLM computes it anew:
    every request that hits gets one block less.
    """
    if variant.speculation is None or variant.speculation.method not in _FROM_HIDDEN_STATES:
        return workload
    lost = workload.shared_prefix_share * workload.block_size / workload.input_tokens_mean
    return replace(workload, expected_hit_rate=max(0.0, workload.expected_hit_rate - lost))


def change_of(name: str, trials: Iterable[TrialRecord]) -> Change:
    """The sum over trials of after − before, and a sentence that quotes the readings."""
    deltas: list[float] = []
    quotes: list[str] = []
    scraped = found = broken = False
    for trial in trials:
        if trial.counters_before is None or trial.counters_after is None:
            broken = True
            quotes.append("not scraped")
            continue
        scraped = True
        before, after = trial.counters_before.get(name), trial.counters_after.get(name)
        found = found or before is not None or after is not None
        quotes.append(f"{_shown(before)} → {_shown(after)}")
        # A server may export a counter only once it has something to count, so its absence is 0
        # only before the first request; gone again is broken.
        late = before is None and trial.excluded_warmup > 0
        if late or after is None or after < (before or 0.0) or _restarted(trial):
            broken = True
            continue
        deltas.append(after - (before or 0.0))
    return Change(
        name=name,
        delta=None if broken or not deltas else sum(deltas),
        absent=scraped and not found,
        source=f"{name}: {'; '.join(quotes)}",
    )


def _restarted(trial: TrialRecord) -> bool:
    """Whether the two scrapes of a trial were answered by two processes."""
    if trial.counters_before is None or trial.counters_after is None:
        return False
    before = trial.counters_before.get(PROCESS_STARTED)
    after = trial.counters_after.get(PROCESS_STARTED)
    return before is not None and after is not None and before != after


def _other_server(trials: Sequence[TrialRecord]) -> _Outcome | None:
    """Unproved where the counters missed much of what the client got; None where they agree.

    A proxy may spread requests over several servers and hand on the metrics of one.
    """
    alive = change_of(COUNTERS_ALIVE, trials)
    got = sum(event.output_tokens or 0 for trial in trials for event in trial.requests)
    if alive.delta is None or alive.delta >= SEEN_SHARE * got:
        return None
    observed = f"the metrics tell of {alive.delta:,.0f} generated tokens and the client got {got:,}"
    return "unproved", f"{observed}: another server answered as well", (alive.source,)


def _shown(value: float | None) -> str:
    return "absent" if value is None else f"{value:,.0f}"


def _unread(*changes: Change) -> _Outcome:
    missing = ", ".join(change.name for change in changes if change.delta is None)
    observed = f"no data: {missing} is missing, renamed, went backwards or is another process's"
    return "unproved", observed, tuple(change.source for change in changes)


def _speculation_on(trials: Sequence[TrialRecord], asked: Speculation) -> _Outcome:
    drafts, accepted = change_of(DRAFTS, trials), change_of(ACCEPTED, trials)
    drafted = change_of(DRAFT_TOKENS, trials)
    sources = (drafts.source, drafted.source, accepted.source)
    if drafts.delta is None or accepted.delta is None:
        return _unread(drafts, accepted)
    if drafts.delta <= 0:
        return "contradicted", "nothing was drafted in the timed window", sources
    if accepted.delta <= 0:
        observed = (
            f"{drafts.delta:,.0f} drafts and not one token accepted: is the draft's vocabulary "
        )
        return "contradicted", observed + "the target's, id by id?", sources
    word, observed = _accepted(drafts.delta, drafted.delta, accepted.delta, asked)
    return word, observed, sources


def _accepted(
    drafts: float, drafted: float | None, accepted: float, asked: Speculation
) -> tuple[str, str]:
    length = 1 + accepted / drafts
    observed = f"acceptance length {length:.2f} ({accepted:,.0f} tokens accepted in "
    observed += f"{drafts:,.0f} drafts)"
    wanted = dict(asked.options).get("synthetic_acceptance_length")
    if wanted is not None and abs(length / float(wanted) - 1) > SYNTHETIC_MARGIN:
        return "contradicted", f"{observed}, where {wanted} was to be simulated"
    proposed = max(drafted or 0.0, accepted)
    if proposed > drafts * asked.num_tokens:
        said = f"{proposed:,.0f} tokens in {drafts:,.0f} drafts"
        return "contradicted", f"{said} are more than K={asked.num_tokens} allows"
    simulated = any(key.startswith("synthetic_acceptance") for key, _ in asked.options)
    if length >= PAYS_NOTHING or simulated:
        return "proved", observed
    if asked.draft_path is None:  # without a draft model there is no vocabulary to get wrong
        return "proved", f"{observed}: it pays nothing"
    why = "it pays nothing, and a draft with another vocabulary would look the same"
    return "unproved", f"{observed}: {why}"


def _speculation_off(trials: Sequence[TrialRecord]) -> _Outcome:
    drafts, alive = change_of(DRAFTS, trials), change_of(COUNTERS_ALIVE, trials)
    if not alive.delta:  # without the server's other counters, an absence says nothing
        return _unread(alive) if alive.delta is None else _idle(alive)
    if drafts.absent:
        return "proved", "the server exports no speculation counters", (drafts.source, alive.source)
    if drafts.delta is None:
        return _unread(drafts)
    if drafts.delta > 0:
        return "contradicted", f"{drafts.delta:,.0f} drafts were made", (drafts.source,)
    return "proved", "no draft was made", (drafts.source,)


def _idle(alive: Change) -> _Outcome:
    return "unproved", "the metrics tell of no token generated in the timed window", (alive.source,)


def _adapters(trials: Sequence[TrialRecord], names: Sequence[str]) -> _Outcome:
    """Every adapter ran in every trial: its gauge holds the time when it last did."""
    seen: set[str] = set()
    together, missing, told = 0, set[str](), False
    for trial in trials:
        if trial.counters_before is None or trial.counters_after is None:
            return "unproved", "the metrics were not scraped", ()
        before = dict(trial.counters_before.values)
        ran = {
            name.removeprefix(LORA_RUNNING).removesuffix('"}')
            for name, value in trial.counters_after.values
            if name.startswith(LORA_RUNNING) and value > before.get(name, 0.0)
        }
        told = told or bool(ran)
        now = {one for group in ran for one in group.split(",") if one}
        together = max(together, *(len(group.split(",")) for group in ran), 0)
        missing |= set(names) - now
        seen |= now
    quotes = (
        f"vllm:lora_requests_info running_lora_adapters: {', '.join(sorted(seen)) or 'none'}",
    )
    if not told:
        return "unproved", "no data: vllm:lora_requests_info tells of no adapter", quotes
    if missing:
        return "contradicted", f"no request ran with {', '.join(sorted(missing))}", quotes
    return "proved", f"{len(names)} adapters ran, up to {together} together", quotes


def _static(trials: Sequence[TrialRecord]) -> _Outcome:
    """The client's own events: what it says of its loop must be what it did."""
    loops = {trial.loop for trial in trials}
    said = f"the client: {', '.join(sorted(loops))}"
    if loops != {"static"}:
        observed = f"the requests were sent in a loop that is {', '.join(sorted(loops))}"
        return "contradicted", observed, (said,)
    early = sum(_sent_early(trial) for trial in trials)
    if early:
        observed = f"{early} requests were sent before the batch before theirs had ended"
        return "contradicted", observed, (said,)
    return "proved", "each batch was sent when the one before had ended", (said,)


def _sent_early(trial: TrialRecord) -> int:
    """Requests that left before the last of the batch before theirs had ended."""
    events = sorted(trial.requests, key=lambda event: event.sent_ns)
    size = max(1, trial.batch_size)
    batches = [events[at : at + size] for at in range(0, len(events), size)]
    return sum(
        event.sent_ns < max(earlier.ended_ns for earlier in before)
        for before, after in pairwise(batches)
        for event in after
    )


def _cache_off(trials: Sequence[TrialRecord]) -> _Outcome:
    queries, alive = change_of(QUERIES, trials), change_of(COUNTERS_ALIVE, trials)
    if queries.delta is None:
        return _unread(queries)
    if queries.delta == 0 and not alive.delta:
        return _unread(alive) if alive.delta is None else _idle(alive)
    if queries.delta > 0:
        observed = f"{queries.delta:,.0f} tokens were looked up in a prefix cache"
        return "contradicted", observed, (queries.source,)
    return "proved", "no token was looked up in a prefix cache", (queries.source,)


def _cache_on(trials: Sequence[TrialRecord], workloads: Sequence[WorkloadFacts]) -> _Outcome:
    hits, queries = change_of(HITS, trials), change_of(QUERIES, trials)
    if hits.delta is None or queries.delta is None:
        return _unread(hits, queries)
    sources = (hits.source, queries.source)
    if queries.delta <= 0:
        return "contradicted", "no token was looked up in a prefix cache", sources
    rate = hits.delta / queries.delta
    bounds = hit_rate_bounds(trials, workloads)
    observed = f"hit rate {rate:.1%}, built for {bounds.expected:.1%}"
    if rate < bounds.low:
        return "contradicted", f"{observed}: under the bound of {bounds.low:.1%}", sources
    if rate > bounds.high:
        why = "an earlier trial's entries were hit"
        return "contradicted", f"{observed}: over the bound of {bounds.high:.1%}, so {why}", sources
    if hits.delta <= 0:
        why = "the workload cannot hit, so a cache that never does looks the same"
        return "unproved", f"{observed}: {why}", sources
    return "proved", f"{observed} (bounds {bounds.low:.1%} to {bounds.high:.1%})", sources


@dataclass(frozen=True, kw_only=True, slots=True)
class HitRateBounds:
    """The hit rate that the workload was built to have, and the range that agrees with it."""

    expected: float
    low: float
    high: float


def hit_rate_bounds(
    trials: Sequence[TrialRecord], workloads: Sequence[WorkloadFacts]
) -> HitRateBounds:
    """Two points either way of the trials' expected rates, weighted by the tokens looked up.

    A trial whose warm-up could not touch every shared prefix may lose more: requests in flight
    together cannot hit what none of them has finished to fill in, so of its n requests up to
    max(batch size, shared prefixes) may lose their hits: expected × that ÷ n.
    """
    by_hash = {workload.sha256: workload for workload in workloads}
    whole = wanted = lost = 0.0
    for trial in trials:
        workload = by_hash.get(trial.workload_sha256, workloads[0])
        tokens = change_of(QUERIES, [trial]).delta or 0.0
        whole += tokens
        wanted += tokens * workload.expected_hit_rate
        if trial.excluded_warmup < workload.shared_prefixes and trial.requests:
            cold = max(trial.batch_size, workload.shared_prefixes) / len(trial.requests)
            lost += tokens * workload.expected_hit_rate * min(1.0, cold)
    expected = wanted / whole
    return HitRateBounds(
        expected=expected,
        low=max(0.0, expected - HIT_RATE_MARGIN - lost / whole),
        high=min(1.0, expected + HIT_RATE_MARGIN),
    )
