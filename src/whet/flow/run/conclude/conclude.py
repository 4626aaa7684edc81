"""From stored records to a decision; nothing here touches a server."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from whet.checkpoint.tokenizer import read_vocabulary
from whet.core.errors import UsageError, WhetError
from whet.core.flags import drop_kv_sizing
from whet.core.format import plural
from whet.core.load import workload_key
from whet.core.protocols import Observer
from whet.core.records.decision import (
    Decision,
    Excluded,
    LeverEffects,
    Spreads,
    SpreadSet,
    StartSpread,
    UnlikeSpread,
)
from whet.core.records.evidence import VerdictSet
from whet.core.records.quality_checks import DegenerateTraffic
from whet.core.run import Run
from whet.core.store import RunStore
from whet.decision import DecisionInputs, TierInputs, decide
from whet.decision.choice import TierChoices
from whet.decision.effects import lever_effects
from whet.decision.eligible import EligibleCell, Unfit, split_eligible
from whet.deploy.render import deployed_line, write_deployment
from whet.flow.run.conclude.comparable import refuse_unlike
from whet.flow.run.conclude.faults import engine_faults, sampled_requests
from whet.flow.run.conclude.results import RunSummary, store_cells, summarize_run
from whet.levers import lever_diff
from whet.metrics.pooled import StartTable
from whet.metrics.significance import looks_at
from whet.metrics.spread import unlike_loads, unlike_variants
from whet.predict.performance.observe import with_bottleneck
from whet.quality import TimedAnswer, examine_traffic

_SPREAD_METRICS: Final = ("tps_mean", "ttft_p95_ms")


def conclude(store: RunStore, observer: Observer) -> Decision:
    """Summaries, verdicts, differences, decision and deployment files, all stored."""
    observer.stage("decide", Run(store).tier)
    for timed in examine_all(Run(store)):
        if timed.verdict == "fail":
            observer.warn(f"{timed.variant}: degenerate text: {timed.reason}")
    run = Run(store)
    invalid = [trial for trial in run.trials if trial.is_invalid]
    if invalid:
        count, first = plural(len(invalid), "trial"), invalid[0]
        observer.warn(
            f"not counted: {count}, such as one of {first.variant} at {first.load.words}: "
            f"{first.health.reason}; measure again with {run.resume_command}"
        )
    summary = summarize_run(run)
    _store_summary(run, summary)
    decision = _with_serve_line(run, with_bottleneck(run, _decide([(run, summary)])))
    store.put("decision", "decision", decision)
    _write_commands(run, decision)
    return decision


def _with_serve_line(run: Run, decision: Decision) -> Decision:
    chosen = decision.recommendation
    if chosen is None or (line := deployed_line(run.engines[chosen.variant], chosen.load)) is None:
        return decision
    return replace(decision, recommendation=replace(chosen, serve_line=line))


def choices_of(run: Run, *, unchecked: bool = False) -> TierChoices:
    """What a run may choose, and what measuring its finalists again has shown so far.

    With ``unchecked`` they may be variants whose answers are still to be checked.
    """
    inputs = _inputs([(run, summarize_run(run))])
    tier = inputs.tiers[0]
    eligible, _ = split_eligible(tier)
    if unchecked:
        eligible = [
            replace(item, unfit=None) if item.unfit and item.unfit[0] == "not checked" else item
            for item in eligible
        ]
    return TierChoices(eligible=eligible, tier=tier, inputs=inputs)


def eligible_cells(run: Run, names: Collection[str]) -> tuple[list[EligibleCell], list[Excluded]]:
    """The cells of some variants that may be recommended by now, and why the others may not."""
    return split_eligible(_tier_inputs(run, summarize_run(run, names)))


def _store_summary(run: Run, summary: RunSummary) -> None:
    store = run.store
    store_cells(store, summary.newest)
    by_variant = defaultdict(list)
    for verdict in summary.verdicts:
        by_variant[verdict.variant].append(verdict)
    for name, verdicts in by_variant.items():
        store.put("verdicts", name, VerdictSet(variant=name, verdicts=tuple(verdicts)))
    store.put("effects", "all", _effects(run, summary))
    store.put("spreads", "all", SpreadSet(spreads=tuple(spreads_of(summary))))


def _write_commands(run: Run, decision: Decision) -> None:
    """Write ``reproduce/`` anew: the command of each variant that was measured."""
    folder = run.store.path("reproduce")
    shutil.rmtree(folder, ignore_errors=True)
    reasons = {item.variant: " ".join(item.reason.split()) for item in decision.excluded}
    for name in {cell.variant for cell in run.cells} & set(run.engines):
        lost = name in reasons and name not in decision.qualified
        note = f"EXCLUDED from recommendation: {reasons[name]}" if lost else "As measured."
        limits = decision.limits_of(name)
        write_deployment(
            folder / name, run.engines[name], note=note, limits=limits, as_measured=True
        )


def decide_over(runs: Sequence[Run]) -> Decision:
    """One decision over the runs of one or several machines, a hardware tier each.

    The first run's objective and baseline hold. ``UsageError`` where two runs have the same tier,
    or are of different models or traffic.
    """
    refuse_unlike(runs)
    return _decide([(run, summarize_run(run)) for run in runs])


def _decide(runs: Sequence[tuple[Run, RunSummary]]) -> Decision:
    tiers = [run.tier for run, _ in runs]
    if len(set(tiers)) != len(tiers):
        raise UsageError(
            f"two of these runs are of the tier {max(tiers, key=tiers.count)!r}",
            fix="decide over one run a machine, or set hardware.tier apart",
        )
    decision = decide(_inputs(runs))
    refused = (item for run, _ in runs for item in _refused(run))
    return replace(decision, excluded=(*decision.excluded, *refused))


def _inputs(runs: Sequence[tuple[Run, RunSummary]]) -> DecisionInputs:
    first = runs[0][0].require_spec()
    return DecisionInputs(
        baseline=first.baseline,
        reference=reference_of(runs[0][0]),
        tiers=[_tier_inputs(run, summary) for run, summary in runs],
        objective=first.objective,
    )


def reference_of(run: Run) -> str:
    """The variant that savings are against: the spec's, the engine's defaults, or the baseline.

    The defaults are the baseline's with the prefix cache on, whatever the size of the KV pool.
    """
    spec = run.require_spec()
    baseline = spec.baseline
    plain = run.engines.get(baseline)
    if spec.reference is not None and spec.reference in run.engines:
        return spec.reference
    if plain is None:
        return baseline
    names = (
        name
        for name, item in run.engines.items()
        if drop_kv_sizing(lever_diff(item.variant, plain.variant)) == {"prefix_cache"}
    )
    return next(names, baseline)


def _effects(run: Run, summary: RunSummary) -> LeverEffects:
    """The effect of each lever in the context of others, over the cells that count."""
    counted, _ = split_eligible(_tier_inputs(run, summary))
    baseline = run.require_spec().baseline
    plain = run.engines[baseline].variant
    return lever_effects(
        list(summary.tables.values()),
        {name: lever_diff(item.variant, plain) for name, item in run.engines.items()},
        baseline=baseline,
        counted={item.place for item in counted},
    )


def _tier_inputs(run: Run, summary: RunSummary) -> TierInputs:
    variants = [item.variant for item in run.engines.values()]
    faults, limits = engine_faults(run)
    return TierInputs(
        tier=run.tier,
        cells=summary.cells,
        quality=run.quality,
        verdicts=summary.verdicts,
        tables=summary.tables,
        price_usd_per_hour=run.require_spec().hardware.price_usd_per_hour,
        demand_rps=_demand(run),
        confirmation=summary.confirmation,
        fresh=summary.fresh,
        looks=len(looks_at(run.require_spec().load.max_starts)),
        degenerate=run.degenerate,
        faults=faults,
        limits=limits,
        speculating={item.name for item in variants if item.speculation is not None},
        sampled=sampled_requests(run),
        dropped=dict(_dropped(run)),
    )


def _dropped(run: Run) -> Iterator[tuple[str, Unfit]]:
    """Yield what a search did not check the answers of, and why it went no further with it."""
    unchecked = "in the search, so its answers were not checked"
    joint = {"worse": "than", "not separated": "from"}
    for name, tried in run.tried.items():
        if tried.standing == "misses":
            yield name, ("misses its limits", f"it missed a limit at each load {unchecked}")
        elif tried.standing in joint:
            why = f"its cost was {tried.standing} {joint[tried.standing]} {tried.base}'s"
            yield name, ("no better than its base", f"{why} {unchecked}")


def _demand(run: Run) -> float | None:
    """Requests a second of the whole deployment: the spec's, or the log's own rate."""
    log_rates = (each.log_rate.rate_rps for each in run.rate_searches.values() if each.log_rate)
    return run.require_spec().load.demand or next(log_rates, None)


def _refused(run: Run) -> Iterator[Excluded]:
    """Variants that preflight left out, and those that meet the objective at no rate."""
    for name, why in run.left_out.items():
        yield Excluded(variant=name, load=None, reason=why, tier=run.tier, kind="cannot run here")
    for name, search in run.rate_searches.items():
        if not search.points:
            lowest = min(search.tried, key=lambda item: item.rate)
            why = f"no rate meets the objective: {lowest.rate} misses {', '.join(lowest.missed)}"
            yield Excluded(variant=name, load=None, reason=why, tier=run.tier, kind="no figures")


def spreads_of(summary: RunSummary) -> Iterator[Spreads]:
    """Yield the spread of throughput and of TTFT p95, over all starts of a run."""
    for metric in _SPREAD_METRICS:
        table = summary.fresh.get(metric) or summary.tables[metric]
        pooled = table.spread.sd
        if pooled is not None:
            yield Spreads(
                metric=metric,
                pooled=pooled,
                cells=tuple(_start_spreads(table)),
                unlike=_unlike_spreads(table),
            )


def _start_spreads(table: StartTable) -> Iterator[StartSpread]:
    places = {(name, block.load): 0 for block in table.pool for name in block.figures}
    for block in table.pool:
        for name, figures in block.figures.items():
            places[name, block.load] += len(figures)
    for (name, load), starts in places.items():
        own = table.own_level((name, load)).sd
        if own is not None:
            yield StartSpread(variant=name, load=load, starts=starts, sd=own)


def _unlike_spreads(table: StartTable) -> tuple[UnlikeSpread, ...]:
    unlike = unlike_variants(table.pool)
    unlike |= {load.words: sds for load, sds in unlike_loads(table.pool).items()}
    return tuple(
        UnlikeSpread(name=name, sd=sd, others=others) for name, (sd, others) in unlike.items()
    )


def examine_all(run: Run) -> tuple[DegenerateTraffic, ...]:
    """Search every timed answer of the run and store a record for each variant that has any.

    All trials count, also interrupted ones. The A/A repeat has no record of its own. Raises
    ``StorageError`` where a record cannot be read or written.
    """
    spec = run.require_spec()
    measured = {trial.variant for trial in run.trials}
    timed = {name: _timed_answers(run, name) for name in run.engines if name in measured}
    records = examine_traffic(timed, spec.baseline, ends=_end_tokens(run))
    if spec.is_private:
        # The counts alone: answers to a user's own prompts are not shown.
        records = tuple(
            replace(each, examples=(), reason=each.reason and each.reason.split(";")[0])
            for each in records
        )
    for record in records:
        run.store.put("degenerate", record.variant, record)
    return records


def _timed_answers(run: Run, name: str) -> Iterator[TimedAnswer]:
    """The answers of a variant; failed requests are left out."""
    for trial in run.trials:
        if trial.variant != name:
            continue
        key = workload_key(trial.load, trial.trial)
        sources = run.workloads[key].sources if key in run.workloads else ()
        for event in trial.requests:
            if event.error is None:
                # Without sources, as in replays of a log, requests of one number are one prompt.
                prompt = sources[event.index] if event.index < len(sources) else event.index
                yield TimedAnswer(prompt=prompt, request=(key, event.index), text=event.text)


def _end_tokens(run: Run) -> tuple[str, ...]:
    """The texts of the tokens that end an answer; empty where the tokenizer is gone."""
    facts = run.models.get("target")
    if facts is None:
        return ()
    try:
        ids = read_vocabulary(Path(facts.path)).ids
    except (WhetError, OSError):
        # Then forced text is judged past its end too, on both sides alike.
        return ()
    return tuple(token for token, at in ids.items() if at in facts.tokenizer.eos_token_ids)
