"""Cells, verdicts and starts from the trials of a run. Pure functions of what is stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from whet.core.load import Load, cell_key
from whet.core.records.decision import Finalists
from whet.core.records.engine import ResolvedEngine
from whet.core.records.evidence import EngineFacts, Evidence, Verdict
from whet.core.records.summary import CellSummary, Estimate, MemoryKind
from whet.core.run import Run
from whet.core.starts import StartReport, every_start
from whet.core.store import RunStore
from whet.levers import judge_cell, judge_start
from whet.metrics import METRICS, CellContext, metrics_in, summarise
from whet.metrics.measured import cost_per_1m_tokens
from whet.metrics.pooled import StartTable

_OUTCOMES: Final[tuple[Evidence, ...]] = ("proved", "accepted", "unproved", "contradicted")
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


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """Figures of one run.

    ``tables`` has the figures of every start by metric, over the complete cells; ``confirmation``
    the cells that were measured again, and ``fresh`` their starts. The intervals of both come from
    these tables.
    """

    cells: tuple[CellSummary, ...]
    verdicts: tuple[Verdict, ...]
    tables: Mapping[str, StartTable]
    confirmation: tuple[CellSummary, ...]
    fresh: Mapping[str, StartTable]

    @property
    def newest(self) -> Iterator[CellSummary]:
        """Every cell once, a cell that was measured again with its fresh figures."""
        again = {(cell.variant, cell.load): cell for cell in self.confirmation if cell.trials}
        for cell in self.cells:
            other = again.pop((cell.variant, cell.load), None)
            yield cell if other is None else replace(other, selected_cost=cell.cost_per_1m_tokens)
        yield from again.values()


def summarize_run(run: Run, names: Collection[str] | None = None) -> RunSummary:
    """Cells, verdicts and starts from the raw trials, of all variants or of ``names``."""
    names = run.engines.keys() if names is None else names
    cells = tuple(cell for name in names for cell in cells_of_variant(run, name))
    again = tuple(cell for name in names for cell in _confirmation_cells(run, name))
    tested = [metric.name for metric in metrics_in("differences")]
    tables = {metric: _table(run, cells, metric) for metric in tested}
    fresh = {metric: _table(run, again, metric, of=tables[metric]) for metric in tested if again}
    return RunSummary(
        cells=tuple(_with_intervals(run, cell, tables) for cell in cells),
        verdicts=tuple(verdict for name in names for verdict in _verdicts(run, name)),
        tables=tables,
        confirmation=tuple(_with_intervals(run, cell, fresh) for cell in again),
        fresh=fresh,
    )


def _with_intervals(run: Run, cell: CellSummary, tables: Mapping[str, StartTable]) -> CellSummary:
    """The cell with the intervals that all starts of the run give together."""
    figures = dict(cell.figures)
    for metric, table in tables.items():
        figure = figures[metric]
        if isinstance(figure, Estimate) and figure.value > 0:
            around = table.interval((cell.variant, cell.load), figure.value)
            low, high = around or (None, None)
            figures[metric] = replace(figure, low=low, high=high)
    price, cell = run.require_spec().hardware.price_usd_per_hour, replace(cell, figures=figures)
    cost = cost_per_1m_tokens(cell.tps_mean, price)
    return replace(cell, figures={**figures, "cost_per_1m_tokens": cost})


def _table(
    run: Run, cells: Iterable[CellSummary], metric: str, *, of: StartTable | None = None
) -> StartTable:
    """The starts of the complete cells; with ``of``, those of the confirmation of that table."""
    figures = {
        (cell.variant, cell.load): METRICS[metric].start_figures(
            run.trials_of(cell.variant, cell.load, confirmation=of is not None)
        )
        for cell in cells
        if cell.status == "complete"
    }
    return StartTable.of(metric, {place: each for place, each in figures.items() if each}, more=of)


def store_cells(store: RunStore, cells: Iterable[CellSummary]) -> None:
    """Store cells, so that also an interrupted run reports its figures."""
    for cell in cells:
        status = "complete" if cell.status == "complete" else "failed"
        store.put("cells", cell_key(cell.variant, cell.load), cell, status=status)


def cells_of_variant(
    run: Run, name: str, points: Iterable[Load] | None = None
) -> Iterator[CellSummary]:
    """The cells of one variant, at ``points`` or at each of its loads, smallest batch first."""
    spec = run.require_spec()
    start_failure = run.store.reason("starts", name)
    for size in run.points_of(name) if points is None else sorted(points):
        trials = run.trials_of(name, size)
        if trials:
            cell = summarise(trials, cell=_context(run, name, size))
            yield _with_missing_trials(cell, spec.load.trials, start_failure)
        elif start_failure is not None:
            yield _never_started(run, name, size, start_failure)


def _confirmation_cells(run: Run, name: str) -> Iterator[CellSummary]:
    """A finalist that does not start again has failed, whatever starts it had before."""
    start_failure = run.store.reason("starts", name)
    finalists = [cell for each in run.store.all("finalists", Finalists) for cell in each.cells]
    for size in run.measured_at(name):
        trials = run.trials_of(name, size, confirmation=True)
        if start_failure is not None and (name, size) in finalists:
            yield _never_started(run, name, size, start_failure)
        elif trials:
            yield summarise(trials, cell=_context(run, name, size))


def _with_missing_trials(cell: CellSummary, wanted: int, start_failure: str | None) -> CellSummary:
    """A cell that lacks trials is interrupted, however good those that it has."""
    if cell.status != "complete" or cell.trials >= wanted:
        return cell
    why = f"{cell.trials} of {wanted} trials were measured"
    if start_failure is not None:
        why += f"; then the server did not start: {start_failure}"
    return replace(cell, status="interrupted", failure=why)


def _context(run: Run, name: str, size: Load) -> CellContext:
    spec = run.require_spec()
    caches = name in run.engines and run.engines[name].variant.prefix_cache
    rates = [facts.expected_hit_rate for facts in run.workloads_of(size)]
    return CellContext(
        price_usd_per_hour=spec.hardware.price_usd_per_hour,
        memory_kind=_memory_kind(run),
        expected_hit_rate=sum(rates) / len(rates) if caches and rates else None,
        ttft_ms=spec.objective.recommend_ttft_ms,
        tpot_ms=spec.objective.tpot_ms,
        e2e_ms=spec.objective.e2e_ms,
    )


def _memory_kind(run: Run) -> MemoryKind:
    return "device" if run.require_environment().device.kind == "cuda" else "resident"


def _verdicts(run: Run, name: str) -> Iterator[Verdict]:
    accepted = run.require_spec().evidence.accept_unproved
    for verdict in _judged(run, name):
        if verdict.outcome == "unproved" and verdict.claim.kind in accepted:
            observed = f"{verdict.observed}; accepted unproved (evidence.accept_unproved)"
            yield replace(verdict, outcome="accepted", observed=observed)
        else:
            yield verdict


def _judged(run: Run, name: str) -> Iterator[Verdict]:
    resolved = run.engines[name]
    yield from judge_starts(resolved, every_start(run.store, name))
    for size in run.measured_at(name):
        trials = (*run.trials_of(name, size), *run.trials_of(name, size, confirmation=True))
        workloads = run.workloads_of(size)
        if trials and workloads:
            yield from judge_cell(resolved, trials, workloads)


def judge_starts(resolved: ResolvedEngine, starts: Sequence[StartReport]) -> Iterator[Verdict]:
    """Judge each claim over every start of a variant's server: it must hold in each.

    The worst verdict counts. The first one names the facts in which the starts differ.
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
        agreeing = sum(verdict.outcome == worst.outcome for verdict in verdicts)
        share = f", in {agreeing} of {len(starts)} starts" if agreeing < len(starts) else ""
        yield replace(worst, observed=f"{worst.observed}{share}{unlike}")
        unlike = ""


def _differences(starts: Sequence[EngineFacts]) -> Iterator[str]:
    for name in _SAME_IN_EVERY_START:
        values = dict.fromkeys(_fact_words(getattr(facts, name)) for facts in starts)
        if len(values) > 1:
            yield f"{name.replace('_', ' ')} ({' and '.join(values)})"


def _fact_words(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(sorted(value)) or "none"
    return "not said" if value is None else str(value)


def _never_started(run: Run, name: str, size: Load, why: str) -> CellSummary:
    return CellSummary(
        variant=name,
        load=size,
        status="failed",
        trials=0,
        requests=0,
        errors=0,
        memory_kind=_memory_kind(run),
        starts=0,
        failure=f"the server did not start: {why}",
        figures=dict.fromkeys(METRICS),
    )
