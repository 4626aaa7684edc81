"""Claims that counters settle, read before and after the timed requests of every trial."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from whet.core.records import Claim, ResolvedEngine, TrialRecord, Verdict, WorkloadFacts
from whet.evidence.claims import HIT_RATE_MARGIN, claims
from whet.evidence.dialect import ACCEPTED, COUNTERS_ALIVE, DRAFT_TOKENS, DRAFTS, HITS, QUERIES

_Outcome = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One counter over the complete trials of a cell.

    ``delta`` is None where a scrape is missing, the name is absent or the counter went backwards;
    ``absent`` is True where the server exports no such name in any scrape.
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
    if claim.kind == "speculation":
        off = resolved.variant.speculation is None
        return _speculation_off(trials) if off else _speculation_on(trials)
    if resolved.variant.prefix_cache:
        return _cache_on(trials, workloads)
    return _cache_off(trials)


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
        # A server may export a counter only once it has something to count; gone again is broken.
        if after is None or after < (before or 0.0):
            broken = True
            continue
        deltas.append(after - (before or 0.0))
    return Change(
        name=name,
        delta=None if broken or not deltas else sum(deltas),
        absent=scraped and not found,
        source=f"{name}: {'; '.join(quotes)}",
    )


def _shown(value: float | None) -> str:
    return "absent" if value is None else f"{value:,.0f}"


def _unread(*changes: Change) -> _Outcome:
    missing = ", ".join(change.name for change in changes if change.delta is None)
    observed = f"no data: {missing} is missing, renamed or went backwards"
    return "unproved", observed, tuple(change.source for change in changes)


def _speculation_on(trials: Sequence[TrialRecord]) -> _Outcome:
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
    length = 1 + accepted.delta / drafts.delta
    observed = f"acceptance length {length:.2f} ({accepted.delta:,.0f} tokens accepted in "
    return "proved", f"{observed}{drafts.delta:,.0f} drafts)", sources


def _speculation_off(trials: Sequence[TrialRecord]) -> _Outcome:
    drafts, alive = change_of(DRAFTS, trials), change_of(COUNTERS_ALIVE, trials)
    if alive.delta is None:
        return _unread(alive)  # without the server's other counters, an absence says nothing
    if drafts.absent:
        return "proved", "the server exports no speculation counters", (drafts.source, alive.source)
    if drafts.delta is None:
        return _unread(drafts)
    if drafts.delta > 0:
        return "contradicted", f"{drafts.delta:,.0f} drafts were made", (drafts.source,)
    return "proved", "no draft was made", (drafts.source,)


def _cache_off(trials: Sequence[TrialRecord]) -> _Outcome:
    queries = change_of(QUERIES, trials)
    if queries.delta is None:
        return _unread(queries)
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
