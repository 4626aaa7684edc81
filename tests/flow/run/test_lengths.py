"""Natural output lengths: measured once on the first server, then the same for every variant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.flow.rounds_stage import Bench, build_bench, spec_of, story
from tests.metrics.events import event, trial
from whet.core.records.load import OutputLengths, TrialRecord
from whet.core.spec import Spec
from whet.core.store import RunStore
from whet.load import TrialPlan


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[TrialPlan]:
    """The plans of the measurement; the answer to turn i has i + 1 tokens, the last one fails."""
    plans: list[TrialPlan] = []

    def trial_on(_: Any, __: Any, plan: TrialPlan) -> TrialRecord:
        plans.append(plan)
        count = len(plan.workload.requests)
        events = [replace(event(index=i), output_tokens=i + 1) for i in range(count)]
        events[-1] = replace(events[-1], error="timeout", output_tokens=None)
        return trial(events, variant=plan.variant)

    monkeypatch.setattr("whet.flow.run.traffic.lengths.trial_on", trial_on)
    return plans


def natural(folder: Path) -> Spec:
    spec = spec_of(folder, trials=2)
    workload = spec.workload.model_copy(update={"output_lengths": "natural"})
    return spec.model_copy(update={"workload": workload})


def test_every_variant_writes_as_many_tokens_as_the_first_server_did(
    measured: list[TrialPlan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench, root = build_bench(monkeypatch), tmp_path / "run"
    story(bench, natural(tmp_path), root)
    [plan] = measured
    assert plan.variant == bench.engine.started[0]
    assert plan.calls is not None
    assert not any(call.ignore_eos for call in plan.calls), "the model ends its answers itself"
    turns = len(plan.calls)
    stored = RunStore.read(root).get("lengths", "answers", OutputLengths)
    assert stored is not None
    assert stored.tokens == tuple(range(1, turns))
    sent = {request.max_tokens for plan in bench.plans for request in plan.workload.requests}
    assert sent <= set(stored.tokens)
    story(bench, natural(tmp_path), root, resume=True)
    assert len(measured) == 1


def test_the_bench_measures_no_lengths_of_a_ratio(
    measured: list[TrialPlan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench: Bench = build_bench(monkeypatch)
    story(bench, spec_of(tmp_path, trials=2), tmp_path / "run")
    assert measured == []
    assert bench.plans
