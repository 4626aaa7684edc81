"""A run directory gathered into one frozen view; what is not there yet is None or empty."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from whet.core.errors import StorageError
from whet.core.format import plural
from whet.core.names import REPEAT_SUFFIX
from whet.core.provenance import Environment
from whet.core.records import (
    CellDecision,
    CellSummary,
    ComparisonSet,
    Decision,
    DegenerateTraffic,
    EngineFacts,
    FactorialView,
    HeadOfLineRecord,
    LeverCost,
    LeverCosts,
    ModelFacts,
    QualityRecord,
    QuantizedCheckpoint,
    ResolvedEngine,
    StartFacts,
    TrialRecord,
    Verdict,
    VerdictSet,
    WorkloadFacts,
    decode,
)
from whet.core.spec import Spec
from whet.core.store import RunStore

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    """Everything that a report reads. Mappings are keyed as the run directory is.

    ``missing`` says in sentences what an interrupted run has not done yet; it is empty for a
    whole run. ``unmeasured`` is its part on cells. A failed cell is a finding and not missing.
    """

    root: Path
    name: str
    spec: Spec | None
    environment: Environment | None
    models: Mapping[str, ModelFacts]
    quantized: Mapping[str, QuantizedCheckpoint]
    workloads: Mapping[str, WorkloadFacts]
    engines: Mapping[str, ResolvedEngine]
    starts: Mapping[str, StartFacts]
    facts: Mapping[str, EngineFacts]
    trials: tuple[TrialRecord, ...]
    cells: tuple[CellSummary, ...]
    verdicts: tuple[Verdict, ...]
    quality: Mapping[str, QualityRecord]
    degenerate: Mapping[str, DegenerateTraffic]
    comparisons: ComparisonSet | None
    factorial: FactorialView | None
    head_of_line: Mapping[str, HeadOfLineRecord]
    costs: tuple[LeverCost, ...]
    decision: Decision | None
    variants: tuple[str, ...]
    unmeasured: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Every batch size asked for or measured, smallest first."""
        asked = self.spec.load.batch_sizes if self.spec else ()
        return tuple(sorted({*asked, *(cell.batch_size for cell in self.cells)}))

    @property
    def baseline(self) -> str | None:
        """The variant that the others are compared with."""
        if self.decision is not None:
            return self.decision.baseline
        return self.spec.baseline if self.spec else None

    @property
    def tier(self) -> str | None:
        """The hardware tier that the prices speak of."""
        if self.spec is not None and self.spec.hardware.tier:
            return self.spec.hardware.tier
        return self.environment.device.name if self.environment else None

    @property
    def about_testbed(self) -> str | None:
        """What a reader of the figures has to know where the target is a testbed."""
        target = self.models.get("target")
        if target is None or target.testbed is None:
            return None
        return (
            f"The target is a testbed: {target.testbed}, to {target.parameters / 1e9:.2f} B "
            "parameters. Speed, memory, acceptance and task scores are measured on it; it says "
            "nothing about how a real model of that size bears fewer bits."
        )

    def cell(self, variant: str, batch_size: int) -> CellSummary | None:
        """The summary of one cell, or None where there is none yet."""
        for cell in self.cells:
            if cell.variant == variant and cell.batch_size == batch_size:
                return cell
        return None

    def decided(self, variant: str, batch_size: int) -> CellDecision | None:
        """A cell's status in the decision; None where there is no decision on it."""
        for cell in self.decision.cells if self.decision else ():
            if cell.variant == variant and cell.batch_size == batch_size:
                return cell
        return None

    def is_excluded(self, variant: str, batch_size: int | None = None) -> bool:
        """Whether the decision excludes a cell, or every measured cell of a variant."""
        cells = [
            cell
            for cell in (self.decision.cells if self.decision else ())
            if cell.variant == variant and batch_size in (None, cell.batch_size)
        ]
        return bool(cells) and all(cell.status == "excluded" for cell in cells)

    def evidence(self, variant: str, batch_size: int) -> str | None:
        """The worst outcome among the verdicts that bear on a cell; None where none was given."""
        outcomes = {
            verdict.outcome
            for verdict in self.verdicts
            if verdict.variant == variant and verdict.batch_size in (None, batch_size)
        }
        for outcome in ("contradicted", "unproved", "proved"):
            if outcome in outcomes:
                return outcome
        return None


def load_run(store: RunStore) -> RunView:
    """Gather a run, finished or interrupted.

    Raises ``StorageError`` where a stored record is of another version of whet.
    """
    spec = _file(store, "resolved_spec.json", Spec)
    cells = store.all("cells", CellSummary)
    engines = _keyed(store, "variants", ResolvedEngine)
    removed = {name for name in engines if spec and name not in spec.variants}
    begun = (name for name in engines if name not in removed)
    variants = _order(spec, [*begun, *(cell.variant for cell in cells)])
    rank = {name: at for at, name in enumerate(variants)}
    view = RunView(
        root=store.root,
        name=spec.name if spec else store.root.name,
        spec=spec,
        environment=_file(store, "environment.json", Environment),
        models=_keyed(store, "models", ModelFacts),
        quantized=_keyed(store, "quantized", QuantizedCheckpoint),
        workloads=_keyed(store, "workloads", WorkloadFacts),
        engines=engines,
        starts=_keyed(store, "starts", StartFacts),
        facts=_keyed(store, "facts", EngineFacts),
        trials=tuple(store.all("trials", TrialRecord)),
        cells=tuple(
            sorted(
                (cell for cell in cells if cell.variant in rank),
                key=lambda cell: (rank[cell.variant], cell.batch_size),
            )
        ),
        verdicts=tuple(
            verdict
            for item in sorted(
                store.all("verdicts", VerdictSet), key=lambda one: rank.get(one.variant, len(rank))
            )
            for verdict in item.verdicts
        ),
        quality=_keyed(store, "quality", QualityRecord),
        degenerate=_keyed(store, "degenerate", DegenerateTraffic),
        comparisons=store.get("comparisons", "all", ComparisonSet),
        factorial=store.get("factorial", "all", FactorialView),
        head_of_line=_keyed(store, "head_of_line", HeadOfLineRecord),
        costs=_costs(store),
        decision=store.get("decision", "decision", Decision),
        variants=variants,
        unmeasured=(),
        missing=(),
    )
    return _with_missing(view, store)


def _file(store: RunStore, name: str, cls: type[T]) -> T | None:
    path = store.path(name)
    if not path.exists():
        return None
    try:
        return decode(cls, json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise StorageError(
            f"{path} is not whole JSON; put it back from a copy, or start a new run"
        ) from error


def _costs(store: RunStore) -> tuple[LeverCost, ...]:
    found = store.get("costs", "all", LeverCosts)
    return () if found is None else found.costs


def _keyed(store: RunStore, kind: str, cls: type[T]) -> dict[str, T]:
    """Every journalled record of a kind by its key."""
    keys = sorted(path.stem for path in store.path(kind).glob("*.json"))
    found = ((key, store.get(kind, key, cls)) for key in keys)
    return {key: record for key, record in found if record is not None}


def _order(spec: Spec | None, found: Iterable[str]) -> tuple[str, ...]:
    """Variants in the spec's order, then others that were measured; A/A repeats left out."""
    names = [*(spec.variants if spec else ()), *found]
    return tuple(dict.fromkeys(name for name in names if not name.endswith(REPEAT_SUFFIX)))


def _with_missing(view: RunView, store: RunStore) -> RunView:
    # A variant that preflight left out or that the spec no longer has lacks nothing.
    wanted = [
        name
        for name in view.variants
        if store.status("infeasible", name) is None
        and (view.spec is None or name in view.spec.variants)
    ]
    lacking = {
        name: [size for size in view.batch_sizes if view.cell(name, size) is None]
        for name in wanted
    }
    kept = {name: sum(trial.variant == name for trial in view.trials) for name in wanted}
    unseen = [n for n in wanted if len(lacking[n]) == len(view.batch_sizes) and not kept[n]]
    unmeasured = [f"Not measured yet: {', '.join(unseen)}."] if unseen else []
    without_quality = []
    for name in (name for name in wanted if name not in unseen):
        if lacking[name]:
            sizes = ", ".join(str(size) for size in lacking[name])
            trials = f" ({plural(kept[name], 'trial')} kept)" if view.decision is None else ""
            unmeasured.append(f"{name} has no figures at batch size {sizes}{trials}.")
        if name not in view.quality:
            why = store.reason("quality", name)
            without_quality.append(f"{name} has no quality record{f': {why}' if why else ''}.")
    missing = [*unmeasured, *without_quality]
    if view.decision is None:
        missing.append("No decision was made; go on with whet run --resume.")
    return replace(view, unmeasured=tuple(unmeasured), missing=tuple(missing))
