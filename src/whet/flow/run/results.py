"""What the trials of a run come to: cells, verdicts, comparisons. Pure functions of the store."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final, TypeVar

from whet.core.errors import StorageError
from whet.core.names import REPEAT_SUFFIX
from whet.core.provenance import Environment
from whet.core.records import (
    CellSummary,
    Comparison,
    EngineFacts,
    ResolvedEngine,
    TrialRecord,
    Verdict,
    WorkloadFacts,
    decode,
)
from whet.core.spec import LoadSpec, Spec
from whet.core.store import RunStore
from whet.flow.run.context import cell_key
from whet.flow.run.schedule import Said, every_start
from whet.flow.run.workload import workload_key
from whet.levers import judge_cell, judge_start
from whet.metrics import CellContext, summarise
from whet.metrics.compare import compare_sides, noise_floors, side_of

_COMPARED: Final = ("tps_mean", "ttft_p95_ms", "tpot_p50_ms")
_OUTCOMES: Final = ("proved", "unproved", "contradicted")
_SAME_IN_EVERY_START: Final = (
    "version",
    "weight_kernels",
    "quantized_layers",
    "unquantized_layers",
    "attention_backend",
    "prefix_cache_enabled",
    "async_scheduling",
    "max_model_len",
    "batched_tokens",
    "graphs_captured",
    "tensor_parallel",
    "kv_cache_dtype",
    "loras",
)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A run as its directory has it. ``trials`` are keyed by (variant, batch size)."""

    store: RunStore
    spec: Spec
    environment: Environment
    resolved: dict[str, ResolvedEngine]
    trials: dict[tuple[str, int], list[TrialRecord]]

    @property
    def tier(self) -> str:
        """The hardware tier that prices and the matrix speak of."""
        return self.spec.hardware.tier or self.environment.device.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """What the trials of one run come to.

    ``noise`` is the largest A/A difference in throughput over all batch sizes, None if none was
    measured.
    """

    cells: tuple[CellSummary, ...]
    verdicts: tuple[Verdict, ...]
    comparisons: tuple[Comparison, ...]
    noise: float | None


def read_kept(store: RunStore) -> Kept:
    """Everything that a run directory holds of its trials."""
    spec = _file(store, "resolved_spec.json", Spec)
    trials: dict[tuple[str, int], list[TrialRecord]] = defaultdict(list)
    for trial in store.all("trials", TrialRecord):
        trials[trial.variant, trial.batch_size].append(_with_start(trial, spec.load))
    return Kept(
        store=store,
        spec=spec,
        environment=_file(store, "environment.json", Environment),
        resolved={item.variant.name: item for item in store.all("variants", ResolvedEngine)},
        trials=dict(trials),
    )


def _with_start(trial: TrialRecord, load: LoadSpec) -> TrialRecord:
    """The start of a trial that was stored before starts were numbered follows from the order."""
    if trial.start is not None:
        return trial
    every_trial = load.order == "interleaved" and not load.together
    return replace(trial, start=trial.trial if every_trial else 0)


def find(kept: Kept) -> Findings:
    """Cells, verdicts and comparisons from the raw trials."""
    cells = tuple(cell for name in kept.resolved for cell in cells_of_variant(kept, name))
    floors = _floors(kept, cells)
    return Findings(
        cells=cells,
        verdicts=tuple(verdict for name in kept.resolved for verdict in _verdicts(kept, name)),
        comparisons=tuple(_comparisons(kept, cells, floors)),
        noise=max(floors[_COMPARED[0]].values(), default=None),
    )


def keep_cells(kept: Kept, name: str) -> None:
    """Store the cells of a variant, so that also an interrupted run reports its figures."""
    for cell in cells_of_variant(kept, name):
        status = "complete" if cell.status == "complete" else "failed"
        kept.store.put("cells", cell_key(cell.variant, cell.batch_size), cell, status=status)


def cells_of_variant(kept: Kept, name: str) -> Iterable[CellSummary]:
    """The cells of one variant, or of the baseline's A/A repeat, smallest batch first."""
    plain = name.removesuffix(REPEAT_SUFFIX)
    for size in kept.spec.load.batch_sizes:
        trials = kept.trials.get((name, size))
        if trials:
            cell = summarise(trials, cell=_context(kept, plain, size))
            yield _complete(cell, kept)
        elif (why := kept.store.reason("starts", name)) is not None:
            yield _never_started(kept, name, size, why)


def _complete(cell: CellSummary, kept: Kept) -> CellSummary:
    """A cell that lacks trials is not complete, however good those that it has."""
    wanted = kept.spec.load.trials
    if cell.status == "complete" and cell.trials < wanted:
        why = f"{cell.trials} of {wanted} trials were measured"
        if (reason := kept.store.reason("starts", cell.variant)) is not None:
            why += f"; then the server did not start: {reason}"
        return replace(cell, status="interrupted", failure=why)
    return cell


def _context(kept: Kept, name: str, size: int) -> CellContext:
    spec = kept.spec
    caches = name in kept.resolved and kept.resolved[name].variant.prefix_cache
    rates = [facts.expected_hit_rate for facts in _workloads(kept, size)]
    return CellContext(
        price_usd_per_hour=spec.hardware.price_usd_per_hour,
        memory_kind="device" if kept.environment.device.kind == "cuda" else "resident",
        expected_hit_rate=sum(rates) / len(rates) if caches and rates else None,
        ttft_ms=spec.objective.recommend_ttft_ms,
        tpot_ms=spec.objective.tpot_ms,
        e2e_ms=spec.objective.e2e_ms,
    )


def _workloads(kept: Kept, size: int) -> list[WorkloadFacts]:
    keys = (workload_key(size, trial) for trial in range(kept.spec.load.trials))
    found = (kept.store.get("workloads", key, WorkloadFacts) for key in keys)
    return [facts for facts in found if facts is not None]


def _verdicts(kept: Kept, name: str) -> Iterable[Verdict]:
    yield from judge_starts(kept.resolved[name], every_start(kept.store, name))
    for size in kept.spec.load.batch_sizes:
        trials, workloads = kept.trials.get((name, size)), _workloads(kept, size)
        if trials and workloads:
            yield from judge_cell(kept.resolved[name], trials, workloads)


def judge_starts(resolved: ResolvedEngine, starts: Sequence[Said]) -> Iterator[Verdict]:
    """A verdict on each claim over every start of a variant's server: it has to hold in each.

    The worst one counts. What the starts said differently is told with the first verdict.
    """
    by_claim: dict[str, list[Verdict]] = defaultdict(list)
    for facts, declared in starts:
        for verdict in judge_start(resolved, facts, declared):
            by_claim[verdict.claim.kind].append(verdict)
    unlike = "".join(
        f"; the starts differ in {words}" for words in _differences([facts for facts, _ in starts])
    )
    for verdicts in by_claim.values():
        worst = max(verdicts, key=lambda verdict: _OUTCOMES.index(verdict.outcome))
        alike = sum(verdict.outcome == worst.outcome for verdict in verdicts)
        share = f", in {alike} of {len(starts)} starts" if alike < len(starts) else ""
        yield replace(worst, observed=f"{worst.observed}{share}{unlike}")
        unlike = ""


def _differences(starts: Sequence[EngineFacts]) -> Iterator[str]:
    for name in _SAME_IN_EVERY_START:
        seen = dict.fromkeys(_fact_words(getattr(facts, name)) for facts in starts)
        if len(seen) > 1:
            yield f"{name.replace('_', ' ')} ({' and '.join(seen)})"


def _fact_words(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(sorted(value)) or "none"
    return "not said" if value is None else str(value)


def _floors(kept: Kept, cells: Sequence[CellSummary]) -> dict[str, dict[int, float]]:
    """The A/A difference of the baseline by metric and batch size, where it was measured."""
    again = list(cells_of_variant(kept, kept.spec.baseline + REPEAT_SUFFIX))
    first = [cell for cell in cells if cell.variant == kept.spec.baseline]
    return {metric: noise_floors(first, again, metric=metric) for metric in _COMPARED}


def _comparisons(
    kept: Kept, cells: Sequence[CellSummary], floors: Mapping[str, Mapping[int, float]]
) -> Iterable[Comparison]:
    """Every pair of complete variants at each batch size, on each metric that people rank by.

    A batch size that the A/A repeat lacks is held against the metric's largest floor of the others.
    """
    for size in kept.spec.load.batch_sizes:
        whole = [cell for cell in cells if cell.batch_size == size and cell.status == "complete"]
        for metric in _COMPARED:
            floor = floors[metric].get(size, max(floors[metric].values(), default=0.0))
            sides = [
                side_of(kept.trials[cell.variant, size], metric)
                for cell in whole
                if (figure := getattr(cell, metric)) is not None and figure.value > 0
            ]
            for reference, candidate in combinations(sides, 2):
                yield compare_sides(reference, candidate, metric=metric, noise_floor=floor)


def _never_started(kept: Kept, name: str, size: int, why: str) -> CellSummary:
    memory_kind = "device" if kept.environment.device.kind == "cuda" else "resident"
    return CellSummary(
        variant=name,
        batch_size=size,
        status="failed",
        trials=0,
        requests=0,
        errors=0,
        memory_kind=memory_kind,
        starts=0,
        failure=f"the server did not start: {why}",
    )


def _file(store: RunStore, name: str, cls: type[T]) -> T:
    path = store.path(name)
    if not path.exists():
        raise StorageError(f"{path} is missing; the run stopped before it measured: --resume it")
    return decode(cls, json.loads(path.read_text(encoding="utf-8")))
