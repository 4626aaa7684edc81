"""Claims that a person accepts without proof, and what an attached server is sent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.flow.rounds_stage import Bench, build_bench
from tests.flow.run.test_pipeline import story
from tests.flow.stage import tiny_spec
from whet.cli.run.output import why_nothing_qualifies
from whet.core.errors import UsageError
from whet.core.load import Load
from whet.core.protocols import Silent
from whet.core.records.decision import Decision
from whet.core.records.engine import ResolvedEngine
from whet.core.records.evidence import Claim, Evidence, Verdict
from whet.core.run import Run
from whet.core.spec import Spec
from whet.core.store import RunStore
from whet.flow.run.check.check import prepare
from whet.flow.run.plan import Recorder
from whet.flow.run.traffic.workload import trial_plan
from whet.quality import Measured

OBJECTIVE = {"ttft_ms": [1e9], "recommend_ttft_ms": 1e9}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Every trial and quality check is over at once, and the quality is good."""
    bench = build_bench(monkeypatch)

    def passes(*args: Any, **options: Any) -> Measured:
        measured = bench.measure_quality(*args, **options)
        verdicts = tuple((tolerance, "pass") for tolerance in (0.01, 0.02, 0.05))
        return replace(measured, record=replace(measured.record, verdicts=verdicts))

    monkeypatch.setattr("whet.flow.run.measure.quality.measure_quality", passes)
    return bench


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> list[Evidence]:
    """The outcome of the weights claim, which is the only one that is judged."""
    outcome: list[Evidence] = ["unproved"]

    def judge(resolved: ResolvedEngine, *_: object) -> list[Verdict]:
        claim = Claim(kind="weights", statement="16bit weights", expected="", per_cell=False)
        return [
            Verdict(
                variant=resolved.variant.name,
                load=None,
                claim=claim,
                outcome=outcome[0],
                observed="the log does not show the model's layers",
                sources=(),
            )
        ]

    monkeypatch.setattr("whet.flow.run.conclude.results.judge_start", judge)
    monkeypatch.setattr("whet.flow.run.conclude.results.judge_cell", lambda *_: [])
    return outcome


def spec_of(folder: Path, *accepted: str) -> Spec:
    return tiny_spec(
        folder,
        variants={"fp16": {}},
        objective=OBJECTIVE,
        evidence={"accept_unproved": list(accepted)},
    )


def reasons(decision: Decision) -> dict[str, str | None]:
    return {item.variant: item.kind for item in decision.excluded}


def test_an_unproved_claim_keeps_a_variant_out_and_the_advice_names_it(
    bench: Bench, weights: list[Evidence], tmp_path: Path
) -> None:
    decision = story(bench.engine, spec_of(tmp_path), tmp_path / "run")
    assert decision.recommendation is None
    assert reasons(decision) == {"fp16": "evidence"}
    advice = why_nothing_qualifies(Run.read(tmp_path / "run"), decision)
    assert "weights" in advice
    assert "evidence: {accept_unproved: [weights]}" in advice
    assert "--resume" in advice
    assert "objective" not in advice


def test_an_accepted_claim_lets_the_decision_recommend_and_is_marked(
    bench: Bench, weights: list[Evidence], tmp_path: Path
) -> None:
    story(bench.engine, spec_of(tmp_path), tmp_path / "run")
    decision = story(bench.engine, spec_of(tmp_path, "weights"), tmp_path / "run", resume=True)
    assert "evidence" not in reasons(decision).values()
    assert {verdict.outcome for verdict in Run.read(tmp_path / "run").verdicts} == {"accepted"}
    assert all(
        "evidence.accept_unproved" in v.observed for v in Run.read(tmp_path / "run").verdicts
    )
    assert decision.recommendation is not None
    assert any("weights" in caution for caution in decision.recommendation.cautions)
    assert not any("proved" in reason for reason in decision.recommendation.reasons)


def test_another_claim_does_not_cover_it(
    bench: Bench, weights: list[Evidence], tmp_path: Path
) -> None:
    decision = story(bench.engine, spec_of(tmp_path, "speculation"), tmp_path / "run")
    assert reasons(decision) == {"fp16": "evidence"}


def test_a_contradicted_claim_is_never_accepted(
    bench: Bench, weights: list[Evidence], tmp_path: Path
) -> None:
    weights[0] = "contradicted"
    decision = story(bench.engine, spec_of(tmp_path, "weights"), tmp_path / "run")
    assert decision.recommendation is None
    assert reasons(decision) == {"fp16": "evidence"}
    advice = why_nothing_qualifies(Run.read(tmp_path / "run"), decision)
    assert "accept_unproved" not in advice


def test_a_claim_that_no_variant_makes_is_refused(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"accept_unproved.*'wieghts'; did you mean 'weights'\?"):
        story(bench.engine, spec_of(tmp_path, "wieghts"), tmp_path / "run")


def test_an_attached_server_gets_fresh_requests_at_every_attempt(
    bench: Bench, tmp_path: Path
) -> None:
    with RunStore.open(tmp_path / "run") as store:
        recorder = Recorder(store=store, observer=Silent())
        prepared = prepare(spec_of(tmp_path), recorder, bench.engine, skip_infeasible=False)
        own = prepared.resolved[0]
        attached = replace(own, url="http://127.0.0.1:1")
        same = [trial_plan(prepared, store, own, (Load.at(2), 0), warmup=0) for _ in range(2)]
        fresh = [trial_plan(prepared, store, attached, (Load.at(2), 0), warmup=0) for _ in range(2)]
    assert same[0].workload == same[1].workload
    prompts = [
        {request.prompt_token_ids for request in plan.workload.requests}
        for plan in (same[0], *fresh)
    ]
    assert len(set.union(*prompts)) == sum(len(each) for each in prompts)
    kinds = [[r.prefix_id for r in plan.workload.requests] for plan in (same[0], *fresh)]
    assert kinds[0] == kinds[1] == kinds[2], "the same mix of shared prefixes"
    for plan in fresh:
        rate = plan.workload.facts.expected_hit_rate
        assert rate == pytest.approx(same[0].workload.facts.expected_hit_rate, abs=0.01)
