"""From stored records to a decision; nothing here touches a server."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from whet.core.errors import UsageError
from whet.core.flags import drop_kv_sizing
from whet.core.records import (
    ComparisonSet,
    Decision,
    Excluded,
    FactorialView,
    LeverCosts,
    ResolvedEngine,
    VerdictSet,
)
from whet.core.run import Run
from whet.core.store import write_atomic, write_json
from whet.decision import DecisionInputs, TierInputs, decide
from whet.decision.eligible import split_eligible
from whet.decision.factorial import factorial
from whet.decision.ratios import SignificanceTest
from whet.deploy import write_deployment
from whet.flow.run.context import Job
from whet.flow.run.degenerate import examine_all
from whet.flow.run.results import RunSummary, store_cells, summarize_run
from whet.flow.run.side_effects import lever_costs
from whet.levers import lever_diff
from whet.metrics.latency_anomalies import latency_anomalies


def conclude(job: Job) -> Decision:
    """Summaries, verdicts, comparisons, decision and deployment files, all stored."""
    job.observer.stage("decide", job.tier)
    for timed in examine_all(Run(job.store)):
        if timed.verdict == "fail":
            job.observer.warn(f"{timed.variant}: degenerate text: {timed.reason}")
    run = Run(job.store)
    summary = summarize_run(run)
    _store_summary(run, summary)
    decision = _decide([(run, summary)])
    write_json(job.store.path("decision.json"), decision)
    job.store.note("decision", "decision", status="complete")
    _deploy(run, decision)
    return decision


def _store_summary(run: Run, summary: RunSummary) -> None:
    store = run.store
    store_cells(store, summary.cells)
    by_variant = defaultdict(list)
    for verdict in summary.verdicts:
        by_variant[verdict.variant].append(verdict)
    for name, verdicts in by_variant.items():
        store.put("verdicts", name, VerdictSet(variant=name, verdicts=tuple(verdicts)))
    compared = ComparisonSet(comparisons=summary.comparisons, noise_floor=summary.noise)
    store.put("comparisons", "all", compared)
    store.put("costs", "all", LeverCosts(costs=lever_costs(run, summary.cells)))
    store.put("factorial", "all", _factorial(run, summary))


def _deploy(run: Run, decision: Decision) -> None:
    """Write ``deploy/`` anew: a folder for each variant that qualifies for recommendation."""
    folder = run.store.path("deploy")
    if folder.exists():
        shutil.rmtree(folder)
    for name in decision.qualified:
        write_deployment(folder / name, run.engines[name])
    if not decision.qualified:
        text = "No variant qualifies for recommendation; report.md says why for each.\n"
        write_atomic(folder / "README.txt", text.encode())


def decide_over(runs: Sequence[Run]) -> Decision:
    """One decision over the runs of one or several machines, a hardware tier each.

    The first run's objective and baseline hold. ``UsageError`` where two runs have the same tier.
    """
    return _decide([(run, summarize_run(run)) for run in runs])


def _decide(runs: Sequence[tuple[Run, RunSummary]]) -> Decision:
    tiers = [run.tier for run, _ in runs]
    if len(set(tiers)) != len(tiers):
        raise UsageError(
            f"two of these runs are of the tier {max(tiers, key=tiers.count)!r}; "
            "decide over one run a machine, or set hardware.tier apart"
        )
    first = runs[0][0].require_spec()
    decision = decide(
        DecisionInputs(
            baseline=first.baseline,
            tiers=[_tier_inputs(run, summary) for run, summary in runs],
            objective=first.objective,
            speculation_pairs={
                name: plain
                for run, _ in runs
                for name, plain in speculation_pairs(run.engines).items()
            },
            cached=next((name for run, _ in runs if (name := cached(run))), None),
        )
    )
    refused = (item for run, _ in runs for item in _refused(run))
    return replace(decision, excluded=(*decision.excluded, *refused))


def cached(run: Run) -> str | None:
    """The variant that is the baseline with the prefix cache, whatever its KV pool."""
    plain = run.engines.get(run.require_spec().baseline)
    if plain is None:
        return None
    names = (
        name
        for name, item in run.engines.items()
        if drop_kv_sizing(lever_diff(item.variant, plain.variant)) == {"prefix_cache"}
    )
    return next(names, None)


def speculation_pairs(engines: Mapping[str, ResolvedEngine]) -> dict[str, str]:
    """The variant that differs in speculation alone, by the variant with speculation."""
    pairs = {}
    for name, item in engines.items():
        if item.variant.speculation is None:
            continue
        plain = replace(item.variant, name="", speculation=None)
        for other, candidate in engines.items():
            if replace(candidate.variant, name="") == plain:
                pairs[name] = other
    return pairs


def _factorial(run: Run, summary: RunSummary) -> FactorialView:
    """The effect of each lever alone and with others, over the cells that count."""
    counted, _ = split_eligible(_tier_inputs(run, summary))
    baseline = run.require_spec().baseline
    plain = run.engines[baseline].variant
    return factorial(
        [item.cell for item in counted],
        {name: lever_diff(item.variant, plain) for name, item in run.engines.items()},
        baseline=baseline,
        significance=SignificanceTest(comparisons=summary.comparisons, noise_floor=summary.noise),
    )


def _tier_inputs(run: Run, summary: RunSummary) -> TierInputs:
    variants = [item.variant for item in run.engines.values()]
    disturbed = latency_anomalies(summary.cells, variants)
    return TierInputs(
        tier=run.tier,
        cells=summary.cells,
        quality=run.quality,
        verdicts=summary.verdicts,
        comparisons=summary.comparisons,
        noise_floor=summary.noise,
        degenerate=run.degenerate,
        disturbed={(item.variant, item.batch_size) for item in disturbed},
    )


def _refused(run: Run) -> Iterator[Excluded]:
    """Variants that preflight left out."""
    for name in run.require_spec().variants:
        why = run.store.reason("infeasible", name)
        if why is not None and name not in run.engines:
            yield Excluded(
                variant=name, batch_size=None, reason=why, tier=run.tier, kind="cannot run here"
            )
