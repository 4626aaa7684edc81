"""From stored records to a decision; nothing here touches a server."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from whet.core.errors import UsageError
from whet.core.flags import drop_kv_sizing
from whet.core.records import (
    ComparisonSet,
    Decision,
    DegenerateTraffic,
    Excluded,
    FactorialView,
    LeverCosts,
    QualityRecord,
    ResolvedEngine,
    VerdictSet,
)
from whet.core.store import RunStore, write_atomic, write_json
from whet.decide import DecisionInputs, TierInputs, decide
from whet.decide.admit import admit
from whet.decide.factorial import factorial
from whet.decide.ratios import Ruler
from whet.deploy import write_deployment
from whet.flow.run.context import Job
from whet.flow.run.degenerate import KIND as DEGENERATE
from whet.flow.run.degenerate import examine_all
from whet.flow.run.results import Findings, Kept, find, keep_cells, read_kept
from whet.flow.run.side_effects import lever_costs
from whet.levers import lever_diff
from whet.metrics.disturbed import disturbed_cells


def conclude(job: Job) -> Decision:
    """Summaries, verdicts, comparisons, decision and deployment files, all stored."""
    job.observer.stage("decide", job.tier)
    for timed in examine_all(job.store):
        if timed.verdict == "fail":
            job.observer.warn(f"{timed.variant}: degenerate text: {timed.reason}")
    kept = read_kept(job.store)
    findings = find(kept)
    for name in kept.resolved:
        keep_cells(kept, name)
    by_variant = defaultdict(list)
    for verdict in findings.verdicts:
        by_variant[verdict.variant].append(verdict)
    for name, verdicts in by_variant.items():
        job.store.put("verdicts", name, VerdictSet(variant=name, verdicts=tuple(verdicts)))
    compared = ComparisonSet(comparisons=findings.comparisons, noise_floor=findings.noise)
    job.store.put("comparisons", "all", compared)
    costs = lever_costs(kept, findings.cells)
    job.store.put("costs", "all", LeverCosts(costs=costs))
    job.store.put("factorial", "all", _factorial(kept, findings))
    decision = _decide([(kept, findings)])
    job.store.put("decision", "decision", decision)
    write_json(job.store.path("decision.json"), decision)
    _deploy(kept, decision)
    return decision


def _deploy(kept: Kept, decision: Decision) -> None:
    """Write ``deploy/`` anew: a folder for each variant that qualifies for recommendation."""
    folder = kept.store.path("deploy")
    if folder.exists():
        shutil.rmtree(folder)
    for name in decision.qualified:
        write_deployment(folder / name, kept.resolved[name])
    if not decision.qualified:
        text = "No variant qualifies for recommendation; report.md says why for each.\n"
        write_atomic(folder / "README.txt", text.encode())


def decide_over(stores: Sequence[RunStore]) -> Decision:
    """One decision over the runs of one or several machines, a hardware tier each.

    The first run's objective and baseline hold. ``UsageError`` where two runs have the same tier.
    """
    kept_runs = [read_kept(store) for store in stores]
    return _decide([(kept, find(kept)) for kept in kept_runs])


def _decide(runs: Sequence[tuple[Kept, Findings]]) -> Decision:
    tiers = [kept.tier for kept, _ in runs]
    if len(set(tiers)) != len(tiers):
        raise UsageError(
            f"two of these runs are of the tier {max(tiers, key=tiers.count)!r}; "
            "decide over one run a machine, or set hardware.tier apart"
        )
    first = runs[0][0].spec
    decision = decide(
        DecisionInputs(
            baseline=first.baseline,
            tiers=[_tier_inputs(kept, findings) for kept, findings in runs],
            objective=first.objective,
            twins={name: twin for kept, _ in runs for name, twin in twins(kept.resolved).items()},
            cached=next((name for kept, _ in runs if (name := cached(kept))), None),
        )
    )
    return replace(
        decision, excluded=(*decision.excluded, *(e for kept, _ in runs for e in _left_out(kept)))
    )


def cached(kept: Kept) -> str | None:
    """The variant that is the baseline with the prefix cache, whatever its KV pool."""
    plain = kept.resolved.get(kept.spec.baseline)
    if plain is None:
        return None
    found = (
        name
        for name, item in kept.resolved.items()
        if drop_kv_sizing(lever_diff(item.variant, plain.variant)) == {"prefix_cache"}
    )
    return next(found, None)


def twins(resolved: dict[str, ResolvedEngine]) -> dict[str, str]:
    """Each variant with speculation beside the one that differs from it in nothing else."""
    found = {}
    for name, item in resolved.items():
        if item.variant.speculation is None:
            continue
        plain = replace(item.variant, name="", speculation=None)
        for other, candidate in resolved.items():
            if replace(candidate.variant, name="") == plain:
                found[name] = other
    return found


def _factorial(kept: Kept, findings: Findings) -> FactorialView:
    """What each lever brings alone and in company, over the cells that count."""
    counted, _ = admit(_tier_inputs(kept, findings))
    plain = kept.resolved[kept.spec.baseline].variant
    return factorial(
        [item.cell for item in counted],
        {name: lever_diff(item.variant, plain) for name, item in kept.resolved.items()},
        baseline=kept.spec.baseline,
        ruler=Ruler(comparisons=findings.comparisons, noise_floor=findings.noise),
    )


def _tier_inputs(kept: Kept, findings: Findings) -> TierInputs:
    variants = [item.variant for item in kept.resolved.values()]
    disturbed = disturbed_cells(findings.cells, variants)
    return TierInputs(
        tier=kept.tier,
        cells=findings.cells,
        quality={item.variant: item for item in kept.store.all("quality", QualityRecord)},
        verdicts=findings.verdicts,
        comparisons=findings.comparisons,
        noise_floor=findings.noise,
        degenerate={item.variant: item for item in kept.store.all(DEGENERATE, DegenerateTraffic)},
        disturbed={(item.variant, item.batch_size) for item in disturbed},
    )


def _left_out(kept: Kept) -> Iterable[Excluded]:
    for name in kept.spec.variants:
        why = kept.store.reason("infeasible", name)
        if why is not None and name not in kept.resolved:
            yield Excluded(
                variant=name, batch_size=None, reason=why, tier=kept.tier, kind="cannot run here"
            )
