"""The break-even map of speculation: for each batch size and K, the acceptance length that pays.

The map is a run like any other, of variants made here: one without speculation, and for each K the
draft as it is and servers whose acceptance is set: synthetically on a GPU, with drafts of
graded quality on a CPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whet.checkpoint import locate
from whet.core.counters import ACCEPTED, DRAFTS
from whet.core.errors import InfeasibleError, UsageError
from whet.core.names import did_you_mean
from whet.core.numbers import MOST_DRAFTED
from whet.core.protocols import Observer
from whet.core.provenance import find_device
from whet.core.records import (
    CellSummary,
    Difference,
    Estimate,
    TrialRecord,
    Verdict,
)
from whet.core.records.break_even import (
    AcceptanceLevel,
    BreakEvenMap,
    BreakEvenPoint,
    Pays,
    UncountedLevel,
)
from whet.core.records.evidence import SUFFICIENT
from whet.core.run import Run
from whet.core.spec import Spec, SpeculationSpec, VariantSpec, parse_spec
from whet.core.store import RunStore, write_json
from whet.flow.break_even.fit import Measured, fit_break_even
from whet.flow.break_even.noisy_draft import write_noisy_draft
from whet.flow.run.preflight import prepare
from whet.flow.run.quantize import quantize_recipes
from whet.flow.run.results import RunSummary, summarize_run
from whet.flow.run.rounds import measure_all
from whet.levers.counters import counter_change

PLAIN: Final = "plain"
REAL: Final = "draft"
KIND: Final = "break_even"
DEFAULT_KS: Final = (2, 4, 6)
_WORSE_BY_NOISE: Final = (0.3, 0.5, 1.0)
_WORSE_BY_LENGTH: Final = (0.0, 0.5, 1.0)
_NAME: Final = re.compile(r"k(\d+)\.(draft|(?:noise|length)[\d.]+)")
_NEXT_TO_NOTHING: Final = 0.02
"""Accepted tokens per draft below which a level is marked as intended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MapRequest:
    """What to measure. ``base`` names the variant to speculate on; None is the spec's baseline.

    ``levels`` are drafts worse than a perfect one, as shares from 0 to 1: of noise in the draft's
    linear layers on a CPU, of the K tokens that are rejected on a GPU. None takes the defaults.
    ``together`` is how many servers come up at the same time.
    """

    spec: Spec
    ks: tuple[int, ...] = DEFAULT_KS
    base: str | None = None
    levels: tuple[float, ...] | None = None
    together: int = 1


def run_map(request: MapRequest, store: RunStore, observer: Observer) -> BreakEvenMap:
    """Measure what ``store`` does not hold yet and return the map, which is stored too.

    Raises any branch of ``WhetError``; whatever was finished before stays in ``store``.
    """
    spec = map_spec(request, store.root, synthetic=find_device().kind == "cuda")
    _write_drafts(spec, request, store.root, observer)
    job = prepare(spec, store, observer, skip_infeasible=False)
    job = quantize_recipes(job)
    if left_out := Run(store).left_out:
        name, reason = next(iter(left_out.items()))
        raise InfeasibleError(f"the map cannot be measured without {name}: {reason}")
    measure_all(job, quality=False)
    observer.stage("map", job.tier)
    result = read_map(Run(store), base=request.base or request.spec.baseline)
    store.put(KIND, "map", result)
    write_json(store.path("break_even.json"), result)
    return result


def map_spec(request: MapRequest, root: Path, *, synthetic: bool) -> Spec:
    """The spec with the map's variants in place of its own.

    ``root`` is the run directory, below which noisy drafts are stored. Raises ``UsageError``
    without anything to speculate with, or for an impossible K or level.
    """
    spec = request.spec
    if spec.engine_of(request.base or spec.baseline).url is not None:
        raise UsageError("a break-even map starts servers of its own; leave engine.url out")
    if not request.ks or not 1 <= min(request.ks) <= max(request.ks) <= MOST_DRAFTED:
        raise UsageError(f"K must be 1 to {MOST_DRAFTED:,}; give --k 2,4,6")
    wrong = [each for each in request.levels or () if not 0 <= each <= 1]
    if wrong:
        raise UsageError(f"level {wrong[0]:g} is not a share; give --levels from 0 to 1")
    base = _base(request).model_copy(update={"speculation": None})
    template = speculation_of(request)
    variants = {PLAIN: base}
    for k in sorted(set(request.ks)):
        own = template.model_copy(update={"num_tokens": k})
        variants[f"k{k}.{REAL}"] = base.model_copy(update={"speculation": own})
        for name, level in _levels(request, own, root, synthetic=synthetic):
            variants[f"k{k}.{name}"] = base.model_copy(update={"speculation": level})
    groups = _groups(spec, list(variants), request.together)
    load = spec.load.model_copy(update={"head_of_line": None, "together": groups})
    made = spec.model_copy(update={"variants": variants, "baseline": PLAIN, "load": load})
    return parse_spec(made.model_dump(mode="json"), base=Path())


def _groups(spec: Spec, names: list[str], size: int) -> tuple[tuple[str, ...], ...]:
    """The servers of a map in groups of ``size`` that come up together; one alone is in none."""
    if size < 1:
        raise UsageError(f"--together {size}: one server or more come up at a time")
    groups = [tuple(names[start : start + size]) for start in range(0, len(names), size)]
    return tuple(group for group in groups if len(group) > 1)


def speculation_of(request: MapRequest) -> SpeculationSpec:
    """How the map speculates: as the base does, else as the first variant that does."""
    variants = request.spec.variants
    for item in (_base(request), *variants.values()):
        if item.speculation is not None:
            return item.speculation
    if request.spec.model.draft is None:
        raise UsageError(
            "there is nothing to speculate with; set model.draft, or give a variant "
            "speculation (method: ngram)"
        )
    return SpeculationSpec()


def _base(request: MapRequest) -> VariantSpec:
    name = request.base or request.spec.baseline
    if name not in request.spec.variants:
        near = did_you_mean(name, request.spec.variants)
        raise UsageError(f"unknown variant {name!r} for --weights{near or '; see variants'}")
    return request.spec.variants[name]


def _levels(
    request: MapRequest, own: SpeculationSpec, root: Path, *, synthetic: bool
) -> Iterator[tuple[str, SpeculationSpec]]:
    """Name and speculation of each level beside the draft as it is, at the K of ``own``."""
    if synthetic:
        for share in request.levels or _WORSE_BY_LENGTH:
            length = round(1 + own.num_tokens * (1 - share), 3)
            forced = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": length}
            yield (
                f"length{length:g}",
                own.model_copy(
                    update={
                        "options": {**own.options, **forced},
                        "rejection_sample_method": None,
                    }
                ),
            )
    elif _own_weights(request, own) is not None:
        for share in _shares(request):
            draft = str(_draft_path(root, share))
            yield f"noise{share:g}", own.model_copy(update={"draft": draft})


def _shares(request: MapRequest) -> tuple[float, ...]:
    return tuple(share for share in request.levels or _WORSE_BY_NOISE if share > 0)


def _own_weights(request: MapRequest, own: SpeculationSpec) -> str | None:
    """The draft or head to add noise to; None for a method without one, and for a recipe's copy."""
    if own.draft is not None:
        return None if own.draft in request.spec.recipes else own.draft
    return request.spec.model.draft if own.method == "draft_model" else None


def _draft_path(root: Path, share: float) -> Path:
    return (root / "drafts" / f"noise{share:g}").resolve()


def _write_drafts(spec: Spec, request: MapRequest, root: Path, observer: Observer) -> None:
    """Write the noisy drafts that the map's variants name, unless they exist."""
    wanted = {item.speculation.draft for item in spec.variants.values() if item.speculation}
    source = _own_weights(request, speculation_of(request))
    for share in _shares(request) if source is not None else ():
        out = _draft_path(root, share)
        if str(out) in wanted and not out.is_dir():
            observer.stage("draft", f"the draft with {share:.0%} noise in its linear layers")
            revision = spec.model.draft_revision if source == spec.model.draft else None
            write_noisy_draft(locate(str(source), revision=revision), out, noise=share)


def read_map(run: Run, *, base: str) -> BreakEvenMap:
    """The map from what a run directory holds; starts nothing."""
    summaries = {
        name: summarize_run(run, (PLAIN, name)) for name in run.engines if _NAME.fullmatch(name)
    }
    left_out: list[UncountedLevel] = []
    points = []
    for size in sorted(run.require_spec().load.batch_sizes):
        for k in sorted({_k(name) for name in summaries}):
            of_k = {name: item for name, item in summaries.items() if _k(name) == k}
            point = _point(run, of_k, size, left_out)
            if point is not None:
                points.append(point)
    speculation = next(s for r in run.engines.values() if (s := r.variant.speculation))
    own = next((run.engines[name] for name in summaries if name.endswith(f".{REAL}")), None)
    path = own.variant.speculation.draft_path if own and own.variant.speculation else None
    return BreakEvenMap(
        name=run.name,
        tier=run.tier,
        base=base,
        weights=run.engines[PLAIN].variant.weights_label,
        method=speculation.method,
        draft=None if path is None else Path(path).name,
        points=tuple(points),
        left_out=tuple(dict.fromkeys(left_out)),
    )


def _k(name: str) -> int:
    match = _NAME.fullmatch(name)
    assert match is not None
    return int(match[1])


def _point(
    run: Run, summaries: dict[str, RunSummary], size: int, left_out: list[UncountedLevel]
) -> BreakEvenPoint | None:
    """None where the plain cell or every level lacks figures or evidence; ``left_out`` says why."""
    plain: Estimate | None = None
    levels: list[AcceptanceLevel] = []
    for name, summary in summaries.items():
        for variant in (PLAIN, name):
            reason = _uncounted(summary, variant, size, run.trials_of(variant, size))
            if reason is not None:
                left_out.append(UncountedLevel(variant=variant, batch_size=size, reason=reason))
                break
        else:
            plain = _cell(summary, PLAIN, size).tps_mean
            cell = _cell(summary, name, size)
            levels.append(_level(cell, run.trials_of(name, size), _k(name)))
    if plain is None or not levels:
        return None
    real = next((item for item in levels if item.level == REAL), None)
    direct = None
    if real is not None:
        table = summaries[real.variant].throughput
        direct = table.difference((PLAIN, size), (real.variant, size), family=len(run.loads))
    fit = fit_break_even(
        plain,
        [Measured(length=item.acceptance_length, tps=item.tps) for item in levels],
        k=(k := _k(levels[0].variant)),
        real=real.acceptance_length if real else None,
    )
    return BreakEvenPoint(
        batch_size=size,
        k=k,
        plain_tps=plain,
        levels=tuple(levels),
        l_star=fit.l_star,
        reachable=fit.reachable,
        fixed_share=fit.fixed_share,
        spread=fit.spread,
        real=real.acceptance_length if real else None,
        change=None if direct is None else direct.ratio,
        pays=_pays(direct),
        headroom=fit.headroom,
    )


def _cell(summary: RunSummary, variant: str, size: int) -> CellSummary:
    return next(c for c in summary.cells if (c.variant, c.batch_size) == (variant, size))


def _pays(change: Difference | None) -> Pays:
    if change is None or not change.different:
        return "undecided"
    return "yes" if change.ratio.value > 1 else "no"


def _uncounted(
    summary: RunSummary, variant: str, size: int, trials: Sequence[TrialRecord]
) -> str | None:
    """Why a cell does not count, or None.

    A claim that is not proved leaves it out. One is read otherwise: a draft that was made worse
    may have next to nothing accepted, as long as drafts were made.
    """
    cells = [c for c in summary.cells if (c.variant, c.batch_size) == (variant, size)]
    if not cells or cells[0].status != "complete" or cells[0].tps_mean is None:
        return (cells[0].failure if cells else None) or "it was not measured"
    worse = variant != PLAIN and not variant.endswith(f".{REAL}")
    for verdict in summary.verdicts:
        if verdict.variant != variant or verdict.batch_size not in (None, size):
            continue
        if verdict.outcome not in SUFFICIENT and not (worse and _drafted(verdict, trials)):
            return f"{verdict.claim.kind} {verdict.outcome}: {verdict.observed}"
    return None


def _drafted(verdict: Verdict, trials: Sequence[TrialRecord]) -> bool:
    """Whether it is the claim on speculation, and the counters show drafts all the same."""
    if verdict.claim.kind != "speculation":
        return False
    drafts, accepted = (counter_change(name, trials).delta for name in (DRAFTS, ACCEPTED))
    return accepted is not None and drafts is not None and drafts > 0


def _level(cell: CellSummary, trials: Sequence[TrialRecord], k: int) -> AcceptanceLevel:
    drafts, accepted = (counter_change(name, trials).delta for name in (DRAFTS, ACCEPTED))
    assert drafts
    assert accepted is not None
    assert cell.tps_mean is not None
    match = _NAME.fullmatch(cell.variant)
    word = match[2] if match else cell.variant
    return AcceptanceLevel(
        variant=cell.variant,
        level=re.sub(r"(?<=[a-z])(?=\d)", " ", word),
        acceptance_length=length_estimate(accepted, drafts, k),
        tps=cell.tps_mean,
        note=_note(accepted / drafts),
    )


def _note(mean: float) -> str | None:
    if mean >= _NEXT_TO_NOTHING:
        return None
    word = "not one token" if mean == 0 else "hardly a token"
    return f"{word} was accepted, as intended for this draft"


def length_estimate(accepted: float, drafts: float, k: int) -> Estimate:
    """1 + ``accepted`` ÷ ``drafts`` with a 95 % interval, from counters alone.

    What one step of K accepts is within 0 … K, so with mean m its variance is at most m·(K − m)
    (Bhatia & Davis 2000); steps are taken as independent.
    """
    mean = accepted / drafts
    arm = 1.96 * math.sqrt(max(mean * (k - mean), 0.0) / drafts)
    return Estimate(
        value=1 + mean,
        low=max(1.0, 1 + mean - arm),
        high=min(k + 1.0, 1 + mean + arm),
        samples=round(drafts),
    )
