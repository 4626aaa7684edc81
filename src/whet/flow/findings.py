"""What the trials of a run come to: cells, verdicts, comparisons. Pure functions of the store."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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
from whet.core.spec import Spec
from whet.core.store import RunStore
from whet.evidence import judge_cell, judge_start
from whet.flow.job import cell_key
from whet.flow.traffic import workload_key
from whet.metrics import CellContext, compare, noise_floor, summarise

_COMPARED: Final = ("tps_mean", "ttft_p95_ms", "tpot_p50_ms")

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
    """What the trials of one run come to. ``noise`` is the A/A difference, None if not measured."""

    cells: tuple[CellSummary, ...]
    verdicts: tuple[Verdict, ...]
    comparisons: tuple[Comparison, ...]
    noise: float | None


def read_kept(store: RunStore) -> Kept:
    """Everything that a run directory holds of its trials."""
    trials: dict[tuple[str, int], list[TrialRecord]] = defaultdict(list)
    for trial in store.all("trials", TrialRecord):
        trials[trial.variant, trial.batch_size].append(trial)
    return Kept(
        store=store,
        spec=_file(store, "resolved_spec.json", Spec),
        environment=_file(store, "environment.json", Environment),
        resolved={item.variant.name: item for item in store.all("variants", ResolvedEngine)},
        trials=dict(trials),
    )


def find(kept: Kept) -> Findings:
    """Cells, verdicts and comparisons from the raw trials."""
    cells = tuple(cell for name in kept.resolved for cell in cells_of_variant(kept, name))
    noise = _noise(kept, cells)
    return Findings(
        cells=cells,
        verdicts=tuple(verdict for name in kept.resolved for verdict in _verdicts(kept, name)),
        comparisons=tuple(_comparisons(kept, cells, noise)),
        noise=noise,
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
    facts = kept.store.get("facts", name, EngineFacts)
    if facts is not None:
        yield from judge_start(kept.resolved[name], facts)
    for size in kept.spec.load.batch_sizes:
        trials, workloads = kept.trials.get((name, size)), _workloads(kept, size)
        if trials and workloads:
            yield from judge_cell(kept.resolved[name], trials, workloads)


def _noise(kept: Kept, cells: Sequence[CellSummary]) -> float | None:
    baseline = kept.spec.baseline
    again = list(cells_of_variant(kept, baseline + REPEAT_SUFFIX))
    first = [cell for cell in cells if cell.variant == baseline]
    if not any(cell.status == "complete" for cell in again):
        return None
    return noise_floor(first, again)


def _comparisons(
    kept: Kept, cells: Sequence[CellSummary], noise: float | None
) -> Iterable[Comparison]:
    """Every pair of complete variants at each batch size, on each metric that people rank by."""
    for size in kept.spec.load.batch_sizes:
        whole = [c.variant for c in cells if c.batch_size == size and c.status == "complete"]
        pairs = [(one, two) for i, one in enumerate(whole) for two in whole[i + 1 :]]
        for reference, candidate in pairs:
            for metric in _COMPARED:
                yield compare(
                    kept.trials[reference, size],
                    kept.trials[candidate, size],
                    metric=metric,
                    noise_floor=noise or 0.0,
                )


def _never_started(kept: Kept, name: str, size: int, why: str) -> CellSummary:
    memory_kind = "device" if kept.environment.device.kind == "cuda" else "resident"
    return CellSummary(
        variant=name,
        batch_size=size,
        status="failed",
        trials=0,
        requests=0,
        errors=0,
        ttft_p50_ms=None,
        ttft_p95_ms=None,
        tpot_p50_ms=None,
        tpot_p95_ms=None,
        e2e_p50_ms=None,
        e2e_p95_ms=None,
        itl_p50_ms=None,
        tps_mean=None,
        rps_mean=None,
        goodput_rps=None,
        cost_per_1m_tokens=None,
        memory_gb=None,
        memory_kind=memory_kind,
        acceptance_length=None,
        prefix_hit_rate=None,
        expected_hit_rate=None,
        window_s=None,
        warmup_excluded=0,
        failure=f"the server did not start: {why}",
    )


def _file(store: RunStore, name: str, cls: type[T]) -> T:
    path = store.path(name)
    if not path.exists():
        raise StorageError(f"{path} is missing; the run stopped before it measured: --resume it")
    return decode(cls, json.loads(path.read_text(encoding="utf-8")))
