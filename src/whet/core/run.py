"""One run directory as typed records, each read when it is first needed."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Final, NoReturn

from whet.core.errors import StorageError
from whet.core.format import plural
from whet.core.load import Load, loads_words, workload_key
from whet.core.provenance import Environment
from whet.core.records.decision import CellDecision, Decision, LeverEffects, Spreads, SpreadSet
from whet.core.records.engine import ResolvedEngine, StartFacts
from whet.core.records.evidence import (
    EngineFacts,
    Evidence,
    Verdict,
    VerdictSet,
)
from whet.core.records.load import RateSearch, TrialRecord, WorkloadFacts
from whet.core.records.model import ModelFacts
from whet.core.records.quality import QualityRecord
from whet.core.records.quality_checks import DegenerateTraffic
from whet.core.records.quant import QuantizedCheckpoint
from whet.core.records.search import SearchRecord, Tried
from whet.core.records.summary import CellSummary
from whet.core.spec import Spec
from whet.core.spec.traffic import REMOVED_KEYS
from whet.core.store import RunStore, read_record

RESUME_NOTE: Final = "# resume: "
"""Begins the last line of a run's spec.yaml, which has the command that goes on with it."""


def read_spec(path: Path) -> Spec:
    """Return the spec of a run, without keys that are gone; ``StorageError`` where damaged."""
    return read_record(path, Spec, without=REMOVED_KEYS)


class Run:
    """What a run directory holds, finished or not; what is not there yet is None or empty.

    Each attribute is read at its first use and then stays: a later state of the same directory is
    a new ``Run`` over the same store, which parses only what was stored since. Mappings are keyed
    as the directory is and ordered by when a key was first stored.

    Raises ``StorageError`` where a record is damaged or was written by another version.
    """

    def __init__(self, store: RunStore) -> None:
        self.store = store

    @classmethod
    def read(cls, root: Path) -> Run:
        """The run in ``root``, to read only. ``StorageError`` where the folder holds no run."""
        return cls(RunStore.read(root))

    @property
    def root(self) -> Path:
        """The run directory."""
        return self.store.root

    @property
    def name(self) -> str:
        """The spec's name, else the folder's."""
        return self.spec.name if self.spec else self.root.name

    @cached_property
    def spec(self) -> Spec | None:
        """The spec as it was resolved; None where the run stopped before."""
        path = self.store.path("resolved_spec.json")
        return read_spec(path) if os.path.lexists(path) else None

    @cached_property
    def environment(self) -> Environment | None:
        """The machine and its packages."""
        path = self.store.path("environment.json")
        return read_record(path, Environment) if os.path.lexists(path) else None

    def require_spec(self) -> Spec:
        """The spec. Raises ``StorageError`` if it is missing."""
        return self.spec or self._missing_file("resolved_spec.json")

    def require_environment(self) -> Environment:
        """The environment. Raises ``StorageError`` if it is missing."""
        return self.environment or self._missing_file("environment.json")

    @cached_property
    def models(self) -> Mapping[str, ModelFacts]:
        """Checkpoints by role: ``target``, ``draft``, ``weights-<variant>`` of its own."""
        return self.store.keyed("models", ModelFacts)

    @cached_property
    def quantized(self) -> Mapping[str, QuantizedCheckpoint]:
        """Written checkpoints by recipe."""
        return self.store.keyed("quantized", QuantizedCheckpoint)

    @cached_property
    def workloads(self) -> Mapping[str, WorkloadFacts]:
        """The traffic by concurrency and trial."""
        return self.store.keyed("workloads", WorkloadFacts)

    def workloads_of(self, point: Load) -> tuple[WorkloadFacts, ...]:
        """Return the traffic of every trial at one load."""
        first = workload_key(point, None)
        return tuple(facts for key, facts in self.workloads.items() if key.startswith(first))

    @cached_property
    def engines(self) -> Mapping[str, ResolvedEngine]:
        """Variants as the engine got them, the baseline first."""
        return self.store.keyed("variants", ResolvedEngine)

    @cached_property
    def starts(self) -> Mapping[str, StartFacts]:
        """The newest start of each variant's server."""
        return self.store.keyed("starts", StartFacts)

    @cached_property
    def facts(self) -> Mapping[str, EngineFacts]:
        """What the log of each variant's newest start says."""
        return self.store.keyed("facts", EngineFacts)

    @cached_property
    def trials(self) -> tuple[TrialRecord, ...]:
        """Every trial, in the order of measurement."""
        return tuple(self.store.all("trials", TrialRecord))

    @cached_property
    def _trials_by_cell(self) -> Mapping[tuple[str, Load], tuple[TrialRecord, ...]]:
        cells: dict[tuple[str, Load], list[TrialRecord]] = defaultdict(list)
        for trial in self.trials:
            cells[trial.variant, trial.load].append(trial)
        return {key: tuple(trials) for key, trials in cells.items()}

    def trials_of(
        self, variant: str, point: Load, *, confirmation: bool = False
    ) -> tuple[TrialRecord, ...]:
        """The trials of one cell, empty where it was not measured.

        Those of the confirmation have the numbers after ``load.trials``.
        """
        trials = self._trials_by_cell.get((variant, point), ())
        first = self.spec.load.trials if self.spec else len(trials)
        return tuple(trial for trial in trials if (trial.trial >= first) == confirmation)

    def measured_at(self, variant: str) -> tuple[Load, ...]:
        """The loads that a variant is measured at, and others that a confirmation sent it."""
        sent = (load for name, load in self._trials_by_cell if name == variant)
        return tuple(sorted({*self.points_of(variant), *sent}))

    @cached_property
    def _stored_cells(self) -> tuple[CellSummary, ...]:
        return tuple(self.store.all("cells", CellSummary))

    @cached_property
    def cells(self) -> tuple[CellSummary, ...]:
        """Stored cells of ``variants``, in their order, smallest batch first."""
        rank = {name: at for at, name in enumerate(self.variants)}
        cells = (cell for cell in self._stored_cells if cell.variant in rank)
        return tuple(sorted(cells, key=lambda cell: (rank[cell.variant], cell.load)))

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Stored verdicts on every claim, in the order of ``variants``."""
        rank = {name: at for at, name in enumerate(self.variants)}
        sets = self.store.all("verdicts", VerdictSet)
        sets.sort(key=lambda item: rank.get(item.variant, len(rank)))
        return tuple(verdict for item in sets for verdict in item.verdicts)

    @cached_property
    def quality(self) -> Mapping[str, QualityRecord]:
        """The quality gate's figures by variant."""
        return self.store.keyed("quality", QualityRecord)

    @cached_property
    def degenerate(self) -> Mapping[str, DegenerateTraffic]:
        """Degenerate text among the timed answers by variant."""
        return self.store.keyed("degenerate", DegenerateTraffic)

    @cached_property
    def lever_effects(self) -> LeverEffects | None:
        """What each lever brings, alone and beside others."""
        return self.store.get("effects", "all", LeverEffects)

    @cached_property
    def spreads(self) -> tuple[Spreads, ...]:
        """How much the starts vary, by metric."""
        stored = self.store.get("spreads", "all", SpreadSet)
        return () if stored is None else stored.spreads

    @cached_property
    def decision(self) -> Decision | None:
        """The decision; None before it is made."""
        return self.store.get("decision", "decision", Decision)

    @cached_property
    def variants(self) -> tuple[str, ...]:
        """Variants in the spec's order, a search's, then others that were measured."""
        wanted = (*(self.spec.variants if self.spec else ()), *self.tried)
        begun = (name for name in self.engines if self.spec is None or name in wanted)
        names = (*wanted, *begun, *(cell.variant for cell in self._stored_cells))
        return tuple(dict.fromkeys(names))

    @cached_property
    def rate_searches(self) -> Mapping[str, RateSearch]:
        """The rates of each variant that ``load.find`` or ``load.trace`` set."""
        return self.store.keyed("rates", RateSearch)

    def points_of(self, variant: str) -> tuple[Load, ...]:
        """The loads that a variant is measured at; empty before its search has ended."""
        if variant in self.tried and self.tried[variant].loads:
            return self.tried[variant].loads
        if self.spec is None or self.spec.load.points:
            return self.spec.load.points if self.spec else ()
        search = self.rate_searches.get(variant)
        return () if search is None else search.points

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """Every load of the spec or of a cell, smallest first."""
        wanted = (point for name in self.variants for point in self.points_of(name))
        return tuple(sorted({*wanted, *(cell.load for cell in self.cells)}))

    @property
    def baseline(self) -> str | None:
        """The variant that the others are compared with."""
        if self.decision is not None:
            return self.decision.baseline
        return self.spec.baseline if self.spec else None

    @property
    def tier(self) -> str:
        """The hardware tier of prices and matrix; empty where the machine is unknown."""
        if self.spec is not None and self.spec.hardware.tier:
            return self.spec.hardware.tier
        return self.environment.device.name if self.environment else ""

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

    def cell(self, variant: str, point: Load) -> CellSummary | None:
        """The summary of one cell, or None before it is stored."""
        place = (variant, point)
        return next((c for c in self.cells if (c.variant, c.load) == place), None)

    def decided(self, variant: str, point: Load) -> CellDecision | None:
        """A cell's status in the decision, or None."""
        cells = self.decision.cells if self.decision else ()
        return next((c for c in cells if (c.variant, c.load) == (variant, point)), None)

    def is_excluded(self, variant: str, point: Load | None = None) -> bool:
        """Whether the decision excludes a cell, or every measured cell of a variant."""
        cells = [
            cell
            for cell in (self.decision.cells if self.decision else ())
            if cell.variant == variant and point in (None, cell.load)
        ]
        return bool(cells) and all(cell.status == "excluded" for cell in cells)

    def evidence(self, variant: str, point: Load) -> Evidence | None:
        """The worst outcome among the verdicts on a cell, or None without a verdict."""
        outcomes = {
            verdict.outcome
            for verdict in self.verdicts
            if verdict.variant == variant and verdict.load in (None, point)
        }
        worst_first: tuple[Evidence, ...] = ("contradicted", "unproved", "accepted", "proved")
        return next((outcome for outcome in worst_first if outcome in outcomes), None)

    @cached_property
    def tried(self) -> Mapping[str, Tried]:
        """What a search tried, by variant in its order; empty without one."""
        return self.store.keyed("tried", Tried)

    @cached_property
    def search(self) -> SearchRecord | None:
        """How the search went; None without one."""
        return self.store.get("search", "search", SearchRecord)

    @cached_property
    def left_out(self) -> Mapping[str, str]:
        """Variants that cannot run here, each with its reason: preflight's or its recipe's."""
        spec, reason, reasons = self.spec, self.store.reason, dict[str, str]()
        for name in spec.variants if spec else ():
            for recipe in spec.recipes_of(name) if spec else ():
                if failed := reason("quantized", recipe):
                    reasons[name] = f"the recipe {recipe} cannot be made: {failed}"
            if name not in self.engines and (why := reason("infeasible", name)):
                reasons[name] = why
        return reasons

    @cached_property
    def _required_variants(self) -> tuple[str, ...]:
        """Variants that the run has to measure: those that a search tried, else the spec's.

        Preflight may have refused some.
        """
        wanted = self.tried or (None if self.spec is None else self.spec.variants)
        return tuple(
            name
            for name in self.variants
            if self.store.status("infeasible", name) is None
            and name not in self.left_out
            and (wanted is None or name in wanted)
        )

    @cached_property
    def _trial_counts(self) -> Mapping[str, int]:
        counts: dict[str, int] = defaultdict(int)
        for trial in self.trials:
            counts[trial.variant] += 1
        return dict(counts)

    def _is_measured(self, name: str, point: Load) -> bool:
        """Whether a cell is stored, or every trial that it is computed from."""
        if self.cell(name, point) is not None:
            return True
        ended = [t for t in self.trials_of(name, point) if t.status != "interrupted"]
        return self.spec is not None and len(ended) >= self.spec.load.trials

    def _has_begun(self, name: str) -> bool:
        measured = any(self.cell(name, size) for size in self.loads)
        return measured or name in self._trial_counts or name in self.rate_searches

    @cached_property
    def unmeasured(self) -> tuple[str, ...]:
        """In sentences, what the run has still to measure. A failed cell is a result."""
        untouched = [name for name in self._required_variants if not self._has_begun(name)]
        sentences = [f"Not measured yet: {', '.join(untouched)}."] if untouched else []
        for name in self._required_variants:
            lacking = [x for x in self.points_of(name) if not self._is_measured(name, x)]
            if lacking and name not in untouched:
                count = plural(self._trial_counts.get(name, 0), "trial")
                stored = f" ({count} kept)" if self.decision is None else ""
                sentences.append(f"{name} has no figures at {loads_words(lacking)}{stored}.")
        kinds = ("decision", "decision"), ("finalists", "0")
        if [self.store.status(*each) is None for each in kinds] == [True, False]:
            sentences.append("The confirmation is not finished.")
        return tuple(sentences)

    @property
    def without_quality(self) -> tuple[str, ...]:
        """In sentences, the measured variants that no quality check has seen.

        A search checks the answers of what leads only; of the others those that failed are named.
        """
        sentences = []
        for name in self._required_variants:
            reason = self.store.reason("quality", name)
            if self._has_begun(name) and name not in self.quality and (reason or not self.search):
                sentences.append(f"{name} has no quality record{f': {reason}' if reason else ''}.")
        return tuple(sentences)

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """In sentences, what an interrupted run still lacks; empty for a whole run."""
        sentences = [*self.unmeasured, *self.without_quality]
        if self.decision is None:
            sentences.append(f"No decision was made; go on with {self.resume_command}.")
        return tuple(sentences)

    @cached_property
    def resume_command(self) -> str:
        """The command that goes on with the run."""
        path = self.store.path("spec.yaml")
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        notes = [each for each in lines if each.startswith(RESUME_NOTE)]
        return notes[-1].removeprefix(RESUME_NOTE) if notes else "whet run --resume"

    def _missing_file(self, name: str) -> NoReturn:
        raise StorageError(
            f"{self.store.path(name)} is missing",
            fix="the run stopped before it measured: --resume it",
        )
