"""A map measured in no time: servers whose rate follows from what they accept."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import write_tiny_llama
from tests.flow.rounds_stage import DECLARED, Stand, patch_declared
from tests.flow.stage import tiny_spec
from tests.metrics.events import steady, trial
from whet.core.counters import ACCEPTED, DRAFT_TOKENS, DRAFTS, GENERATED, PREFIX_QUERIES
from whet.core.protocols import Silent
from whet.core.provenance import Device
from whet.core.records import BreakEvenMap, BreakEvenPoint, Declared, TrialRecord
from whet.core.spec import Spec
from whet.core.store import RunStore
from whet.flow.break_even.map import MapRequest, run_map
from whet.load import TrialPlan

STEPS = 100
CPU = Device(kind="cpu", name="scripted", memory_bytes=2**34, count=1, driver=None)


@dataclass
class Physics:
    """Accepted tokens a step by level; a plain server makes ``plain`` times a step's tokens.

    A speculative server's rate is its acceptance length times that of one step a time.
    """

    accepted: dict[str, float]
    plain: float = 2.0
    engine: Stand = field(default_factory=Stand)
    silent: set[str] = field(default_factory=set)
    measured: list[str] = field(default_factory=list)

    def declared(self, _url: str) -> Declared:
        """What the newest server says of its settings: K as its name has it."""
        name = self.engine.started[-1]
        if not name.startswith("k"):
            return DECLARED
        asked = {"method": "draft_model", "num_speculative_tokens": name[1 : name.index(".")]}
        said = tuple((f"speculative_config.{key}", value) for key, value in asked.items())
        return replace(DECLARED, config=(*DECLARED.config, *said))

    def run_trial(self, _url: str, _model: str, *, plan: TrialPlan, **_asked: Any) -> TrialRecord:
        name = plan.variant
        self.measured.append(name)
        level = name.partition(".")[2]
        speculates = name.startswith("k")
        accepted = self.accepted.get(level, 0.0)
        speed = 1 + accepted if speculates else self.plain
        after = {GENERATED: 1000.0, PREFIX_QUERIES: 0.0}
        if speculates and name not in self.silent:
            after |= {DRAFTS: STEPS, DRAFT_TOKENS: 4 * STEPS, ACCEPTED: accepted * STEPS}
        return replace(
            trial(
                steady(16, scale=1 / speed),
                number=plan.trial,
                variant=name,
                batch_size=plan.batch_size,
                before=dict.fromkeys(after, 0.0),
                after=after,
            ),
            workload_sha256=plan.workload.facts.sha256,
        )


def stage(monkeypatch: pytest.MonkeyPatch, physics: Physics) -> Physics:
    monkeypatch.setattr("whet.flow.run.preflight.get_engine", lambda _name: physics.engine)
    monkeypatch.setattr("whet.flow.break_even.map.find_device", lambda: CPU)
    monkeypatch.setattr("whet.flow.run.measure.run_trial", physics.run_trial)
    patch_declared(monkeypatch, physics.declared)
    return physics


def spec_with_draft(folder: Path, *, starts: int = 1, **change: Any) -> Spec:
    write_tiny_llama(folder / "draft", seed=1)
    models = {"target": str(folder / "target"), "draft": str(folder / "draft")}
    load = {
        "batch_sizes": [1, 2],
        "trials": starts,
        "order": "interleaved" if starts > 1 else "blocks",
        "min_requests": 2,
        "requests_per_slot": 1,
        "warmup_requests": 2,
    }
    return tiny_spec(folder, **{"model": models, "load": load, "variants": {"fp16": {}}, **change})


def mapped(request: MapRequest, root: Path, *, resume: bool = False) -> BreakEvenMap:
    with RunStore.open(root, resume=resume) as store:
        return run_map(request, store, Silent())


def at(found: BreakEvenMap, size: int, k: int) -> BreakEvenPoint:
    [point] = [one for one in found.points if (one.batch_size, one.k) == (size, k)]
    return point
