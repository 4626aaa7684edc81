"""Stored real runs held against themselves and against copies with a planted change."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ci.planted import (
    change_cell,
    change_file,
    change_record,
    change_trials,
    check,
    compared,
    scaled_counter,
    slower,
)
from whet.core.counters import ACCEPTED, PREFIX_HITS
from whet.core.load import Load
from whet.core.records.engine import ResolvedEngine
from whet.core.records.evidence import VerdictSet
from whet.core.records.load import WorkloadFacts
from whet.core.records.model import ModelFacts
from whet.core.records.quality import QualityRecord
from whet.core.records.summary import Estimate
from whet.core.run import Run
from whet.core.store import RunStore

Copy = Callable[[Path], Path]
EAGLE = "fp8+eagle3+cache"
COST = "cost, concurrency 128"
TOKENS = "throughput, concurrency 128"
SPECULATING = "draft+cache"
WEIGHTS = "f4db029c6363"
"""The first digits of the demo target's hash."""


@pytest.mark.parametrize("name", ["h200", "demo"])
def test_a_stored_run_passes_against_itself(name: str, request: pytest.FixtureRequest) -> None:
    root: Path = request.getfixturevalue(name)
    result = compared(root, root)
    assert (result.verdict, result.changes, result.cause) == ("pass", (), None)
    groups = {each.group for each in result.checks}
    assert groups == {"evidence", "quality", "objective", "speed", "counters"}
    assert result.primary is not None
    assert result.primary.sentence == "no change, every start the same"
    assert {each.verdict for each in result.checks if each.role == "advisory"} == {"within"}


def test_one_cell_decides_the_recommended_one(h200: Path) -> None:
    result = compared(h200, h200)
    assert [each.name for each in result.checks if each.role == "primary"] == [COST]
    assert result.variant == EAGLE
    assert {each.name for each in result.checks if each.group == "evidence"} == {
        f"evidence: {kind}" for kind in ("weights", "settings", "speculation", "prefix_cache")
    }
    other = compared(h200, h200, variant="fp8+cache")
    assert other.primary is not None
    assert other.primary.name == COST, "the cheapest load of the variant that was asked for"


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [
        (1.2, "fail"),
        (1.06, "pass"),
        pytest.param(0.8, "pass", marks=pytest.mark.full),
    ],
)
def test_the_cost_of_the_primary_cell_decides_alone(
    h200: Path, copy_of: Copy, factor: float, verdict: str
) -> None:
    candidate = copy_of(h200)
    change_trials(candidate, EAGLE, slower(factor), 128)
    result = compared(candidate, h200)
    cost = check(result, COST)
    assert (result.verdict, cost.verdict, cost.role) == (verdict, verdict, "primary")
    assert cost.change is not None
    assert cost.change.value == pytest.approx(factor, rel=1e-3)
    word = {"fail": "beyond", "pass": "within"}[verdict]
    for name in (TOKENS, "TPOT p50, concurrency 128"):
        assert (check(result, name).verdict, check(result, name).role) == (word, "advisory")
    ratio = check(result, "TPOT p50, concurrency 128").change
    assert ratio is not None
    assert ratio.value == pytest.approx(factor)
    assert check(result, "TPOT p50, concurrency 4").verdict == "within"


def test_a_load_that_is_not_the_primary_one_advises(h200: Path, copy_of: Copy) -> None:
    candidate = copy_of(h200)
    change_trials(candidate, EAGLE, slower(2), 4)
    result = compared(candidate, h200)
    assert result.verdict == "pass"
    assert {each.name for each in result.counted("beyond")} == {
        f"{name}, concurrency 4" for name in ("throughput", "TTFT p95", "TPOT p50")
    }


@pytest.mark.parametrize("factors", [(0.9, 1.1, 1.02, 1.0), (1.0, 1.1, 1.2, 1.3)])
def test_an_undecided_cost_says_how_many_starts_would_decide(
    demo: Path, copy_of: Copy, factors: tuple[float, ...]
) -> None:
    """The rounds of the whole run drift: the allowance is within the interval, or no change is."""
    candidate = copy_of(demo)
    for variant in Run.read(candidate).variants:
        change_trials(candidate, variant, lambda trial: slower(factors[trial.trial])(trial))
    cost = check(compared(candidate, demo), "cost, concurrency 8")
    assert cost.verdict == "unknown"
    assert re.search(r"not decided at \+7%: \d+ starts of each would decide", cost.sentence)


def test_other_traffic_is_compared_by_the_spread_of_both_runs(h200: Path, copy_of: Copy) -> None:
    """The widths that a run has in itself, of starts and of their rounds."""
    candidate = copy_of(h200)
    change_record(candidate, "workloads", "b128-t0", WorkloadFacts, sha256="f" * 64)
    cost = check(compared(candidate, h200), COST)
    assert cost.verdict == "pass"
    assert cost.change is not None
    assert cost.change.low == pytest.approx(0.9708, abs=1e-3)
    assert cost.change.high == pytest.approx(1.0300, abs=1e-3)


def test_a_start_that_only_one_run_has_is_left_out_of_pairs(demo: Path, copy_of: Copy) -> None:
    candidate = copy_of(demo)
    lines = (candidate / "journal.jsonl").read_text().splitlines(keepends=True)
    own = re.compile(rf'"trials", "key": "{re.escape(SPECULATING)}--b008-t3')
    (candidate / "journal.jsonl").write_text("".join(x for x in lines if not own.search(x)))
    assert len(Run.read(candidate).trials) == len(Run.read(demo).trials) - 1
    cost = check(compared(candidate, demo), "cost, concurrency 8").change
    assert cost is not None
    assert (cost.value, cost.samples) == (1, 3)


def test_speed_on_another_machine_is_unknown_and_counters_are_compared(
    demo: Path, copy_of: Copy
) -> None:
    candidate = copy_of(demo)

    def other_cpu(environment: dict[str, object]) -> None:
        environment["cpu"] = "Intel"
        environment["device"]["name"] = "Intel × 2"  # type: ignore[index]

    change_file(candidate, "environment.json", other_cpu)
    result = compared(candidate, demo)
    own = {each.group: set() for each in result.checks} | {"": set()}
    for each in result.checks:
        own[each.group].add(each.verdict)
    assert own["speed"] == {"unknown", "not distinguished"}
    assert own["objective"] == {"not distinguished"}
    assert own["counters"] == {"within"}
    assert own["evidence"] == own["quality"] == {"pass"}
    assert result.verdict == "unknown"
    sentence = check(result, "cost, concurrency 8").sentence
    assert "figures of two machines are not compared (AMD EPYC × 2; Intel × 2)" in sentence
    (machine,) = [each for each in result.changes if each.what == "machine"]
    assert (machine.baseline, machine.candidate) == ("AMD EPYC × 2", "Intel × 2")


def test_one_start_of_each_server_has_no_interval(demo: Path, copy_of: Copy) -> None:
    root = copy_of(demo)
    for variant in Run.read(root).variants:
        change_trials(root, variant, lambda trial: replace(trial, start=0))
    result = compared(root, root)
    assert result.verdict == "unknown"
    (cost,) = result.counted("unknown")
    assert cost.role == "primary"
    for name in ("cost, concurrency 8", "TTFT p95, concurrency 8"):
        assert "one start has no interval; set load.trials" in check(result, name).sentence


def test_another_engine_is_a_change_that_is_judged(demo: Path, copy_of: Copy) -> None:
    candidate = copy_of(demo)
    change_record(candidate, "variants", SPECULATING, ResolvedEngine, engine="sglang")
    result = compared(candidate, demo)
    assert result.verdict == "pass"
    assert [each.candidate for each in result.changes] == ["sglang 0.32.0"]


def outcomes(root: Path, variant: str, **outcome: str) -> None:
    """Give every verdict on these claims another outcome; without any, drop the claims."""
    stored = Run.read(root)
    own = [each for each in stored.verdicts if each.variant == variant]
    changed = [
        replace(each, outcome=outcome[each.claim.kind]) if each.claim.kind in outcome else each
        for each in own
        if outcome.get(each.claim.kind) != "dropped"
    ]
    change_record(root, "verdicts", variant, VerdictSet, verdicts=tuple(changed))


def test_every_claim_has_to_be_proved_still(demo: Path, copy_of: Copy) -> None:
    candidate = copy_of(demo)
    outcomes(
        candidate,
        SPECULATING,
        weights="contradicted",
        settings="unproved",
        speculation="dropped",
        prefix_cache="accepted",
    )
    result = compared(candidate, demo)
    weights = check(result, "evidence: weights")
    assert (weights.verdict, "contradicted" in weights.sentence) == ("fail", True)
    assert check(result, "evidence: settings").verdict == "unknown"
    assert check(result, "evidence: prefix_cache").verdict == "pass"
    lost = check(result, "evidence: speculation")
    assert lost.verdict == "fail"
    assert lost.sentence == "the baseline proves it and the candidate no longer claims it"
    assert result.verdict == "fail"


def test_a_claim_not_judged_at_a_load_is_unknown(demo: Path, copy_of: Copy) -> None:
    candidate = copy_of(demo)
    own = [each for each in Run.read(candidate).verdicts if each.variant == SPECULATING]
    rest = tuple(each for each in own if each.load != Load.at(1))
    change_record(candidate, "verdicts", SPECULATING, VerdictSet, verdicts=rest)
    claim = check(compared(candidate, demo), "evidence: speculation")
    assert claim.verdict == "unknown"
    assert claim.sentence.endswith("not judged at concurrency 1")


def test_answers_are_held_against_the_baseline_runs_own(demo: Path, copy_of: Copy) -> None:
    """The candidate's own 16-bit weights are as bad: its gate does not show what changed."""
    candidate = copy_of(demo)
    record = Run.read(candidate).quality[SPECULATING]
    worse = tuple((total + 0.05 * tokens, tokens) for total, tokens in record.nll)
    change_record(candidate, "quality", SPECULATING, QualityRecord, nll=worse)
    result = compared(candidate, demo)
    assert check(result, "quality gate").verdict == "pass"
    answers = check(result, "answers against the baseline")
    assert answers.verdict == "fail"
    assert answers.change is not None
    assert answers.change.value == pytest.approx(1.0513, abs=1e-4)


def test_answers_that_were_lost_fail(demo: Path, copy_of: Copy) -> None:
    candidate = copy_of(demo)
    record = Run.read(candidate).quality[SPECULATING]
    wrong = tuple(
        replace(each, right=False) if each.task == "json_extraction" else each
        for each in record.answers
    )
    change_record(candidate, "quality", SPECULATING, QualityRecord, answers=wrong)
    answers = check(compared(candidate, demo), "answers against the baseline")
    assert answers.verdict == "fail"
    assert "json_extraction: 10 answers lost and 0 gained" in answers.sentence


def test_answers_to_other_questions_are_not_compared(demo: Path, copy_of: Copy) -> None:
    candidate = copy_of(demo)
    change_record(candidate, "quality", SPECULATING, QualityRecord, data_sha256="0" * 64)
    result = compared(candidate, demo)
    answers = check(result, "answers against the baseline")
    assert answers.verdict == "unknown"
    assert "measured on other text, tasks or token ids" in answers.sentence
    assert "quality questions" in {each.what for each in result.changes}


def test_a_gate_that_failed_and_one_that_is_missing(demo: Path, copy_of: Copy) -> None:
    candidate = copy_of(demo)
    change_record(
        candidate,
        "quality",
        SPECULATING,
        QualityRecord,
        verdicts=((0.01, "fail"), (0.02, "pass")),
        reason="greedy parity is below the plain server's own",
    )
    gate = check(compared(candidate, demo), "quality gate")
    assert gate.verdict == "fail"
    assert gate.sentence.endswith("at 1%; greedy parity is below the plain server's own")
    (candidate / "quality" / f"{SPECULATING}.json").unlink()
    gate = check(compared(candidate, demo), "quality gate")
    assert (gate.verdict, "no quality record" in gate.sentence) == ("unknown", True)


@pytest.mark.parametrize(
    ("counter", "factor", "name", "verdict"),
    [
        (ACCEPTED, 0.8, "acceptance length, concurrency 8", "beyond"),
        (ACCEPTED, 0.99, "acceptance length, concurrency 8", "within"),
        (PREFIX_HITS, 0.5, "prefix hit rate, concurrency 8", "beyond"),
        (PREFIX_HITS, 0.0, "prefix hit rate, concurrency 8", "fail"),
    ],
)
def test_a_draft_or_a_prompt_that_got_worse_shows_in_the_counters(
    demo: Path, copy_of: Copy, counter: str, factor: float, name: str, verdict: str
) -> None:
    candidate = copy_of(demo)
    change_trials(candidate, SPECULATING, scaled_counter(counter, factor))
    if factor == 0:
        change_cell(candidate, SPECULATING, 8, prefix_hit_rate=0.0)
        change_cell(candidate, SPECULATING, 1, prefix_hit_rate=0.0)
    result = compared(candidate, demo)
    assert check(result, name).verdict == verdict
    assert result.verdict == ("fail" if verdict == "fail" else "pass")
    assert (result.cause is not None) == (verdict == "beyond")
    if result.cause is not None:
        assert result.cause.startswith(f"Probable cause: {name.partition(',')[0]}, concurrency 1 ")


def test_other_prompts_are_compared_without_pairs(demo: Path, copy_of: Copy) -> None:
    candidate = copy_of(demo)
    change_record(candidate, "workloads", "b008-t0", WorkloadFacts, sha256="f" * 64)
    change_trials(candidate, SPECULATING, scaled_counter(PREFIX_HITS, 0.4))
    result = compared(candidate, demo)
    assert check(result, "prefix hit rate, concurrency 8").verdict == "beyond"
    assert "traffic b008" in {each.what for each in result.changes}


@pytest.mark.parametrize(
    ("figure", "meets", "verdict"),
    [
        ((900, 1950, 1999, True), "yes", "pass"),
        ((900, 1950, 1999, False), "likely", "pass"),
        ((900, 1950, 2010, True), "likely", "pass"),
        ((900, 2050, 2100, True), "unknown", "not distinguished"),
        ((None, 1950, None, True), "unknown", "not distinguished"),
        ((2000, 2100, 2200, True), "no", "fail"),
    ],
)
def test_the_primary_cell_has_to_meet_the_baselines_limit(
    demo: Path,
    copy_of: Copy,
    figure: tuple[float | None, float, float | None, bool],
    meets: str,
    verdict: str,
) -> None:
    candidate = copy_of(demo)
    low, value, high, enough = figure
    ttft = Estimate(value=value, low=low, high=high, samples=900, enough=enough)
    change_cell(candidate, SPECULATING, 8, ttft_p95_ms=ttft)
    result = compared(candidate, demo)
    limit = check(result, "TTFT p95 limit, concurrency 8")
    assert limit.verdict == verdict
    assert limit.sentence.startswith(f"{meets}: ")
    assert "limit 2,000 ms" in limit.sentence
    assert result.verdict == ("fail" if meets == "no" else "pass")


def test_a_variant_that_is_not_recommended_is_judged_where_it_qualified(h200: Path) -> None:
    result = compared(h200, h200, variant="fp8+cache")
    limits = [each.name for each in result.checks if each.group == "objective"]
    assert limits == ["TTFT p95 limit, concurrency 128"]


def exclude_failed(root: Path, reason: str, size: int = 8) -> None:
    """Exclude the cell at one concurrency from the decision, as a failed one is."""

    def exclude(decision: dict[str, list[dict[str, object]]]) -> None:
        place = {"variant": SPECULATING, "load": {"concurrency": size}, "tier": "AMD EPYC × 2"}
        decision["excluded"].append(place | {"reason": reason, "kind": "failed"})

    change_file(root, "decision.json", exclude)


@pytest.mark.parametrize(
    ("cell", "verdict"),
    [
        ({"errors": 9, "failure": "trial 0: 9 of 96 failed (reset × 9)"}, "fail"),
        ({"failure": "trial 0 is invalid: other processes took 40% of the CPU"}, "unknown"),
    ],
)
def test_a_load_without_figures_fails_unless_it_was_the_measurement(
    demo: Path, copy_of: Copy, cell: dict[str, object], verdict: str
) -> None:
    candidate = copy_of(demo)
    change_cell(candidate, SPECULATING, 8, status="failed", **cell)

    exclude_failed(candidate, str(cell["failure"]))
    result = compared(candidate, demo)
    lost = check(result, "figures, concurrency 8")
    assert (lost.verdict, lost.sentence, lost.role) == (verdict, cell["failure"], "primary")
    assert result.verdict == verdict
    names = {each.name for each in result.checks}
    assert "throughput, concurrency 8" not in names
    assert "throughput, concurrency 1" in names


def test_a_server_that_died_under_load_fails(demo: Path, copy_of: Copy) -> None:
    candidate = copy_of(demo)
    change_cell(candidate, SPECULATING, 8, status="failed", failure="the server ended")
    change_trials(
        candidate,
        SPECULATING,
        lambda trial: replace(trial, status="failed", failure="the server ended"),
        8,
    )
    exclude_failed(candidate, "the server ended")
    assert check(compared(candidate, demo), "figures, concurrency 8").verdict == "fail"


def test_a_lost_load_fails_besides_the_primary_one(demo: Path, copy_of: Copy) -> None:
    candidate = copy_of(demo)
    reason = "trial 0: 9 of 96 failed (reset × 9)"
    change_cell(candidate, SPECULATING, 1, status="failed", errors=9, failure=reason)
    exclude_failed(candidate, reason, size=1)
    result = compared(candidate, demo)
    assert (result.verdict, check(result, "figures, concurrency 1").role) == ("fail", "required")
    assert check(result, "cost, concurrency 8").verdict == "pass"


def test_runs_without_a_common_load_say_so(demo: Path, copy_of: Copy) -> None:
    candidate = copy_of(demo)
    for size in (1, 8):
        change_cell(candidate, SPECULATING, size, load=Load.at(size + 20))
    result = compared(candidate, demo)
    cost = check(result, "cost, concurrency 8")
    assert (cost.verdict, cost.role, result.verdict) == ("unknown", "primary", "unknown")
    assert "was not measured at concurrency 8 in both runs" in cost.sentence


def test_a_variant_that_cannot_run_any_more_fails(demo: Path, copy_of: Copy) -> None:
    candidate = copy_of(demo)
    lines = (candidate / "journal.jsonl").read_text().splitlines(keepends=True)
    own = f'"kind": "variants", "key": "{SPECULATING}"'
    (candidate / "journal.jsonl").write_text("".join(x for x in lines if own not in x))
    with RunStore.open(candidate, resume=True) as store:
        store.note(
            "infeasible", SPECULATING, status="failed", reason="the draft has another tokenizer"
        )
    result = compared(candidate, demo)
    assert [each.verdict for each in result.checks] == ["fail"]
    assert "the draft has another tokenizer" in result.checks[0].sentence


def test_what_changed_is_listed(demo: Path, copy_of: Copy) -> None:
    candidate = copy_of(demo)
    change_record(candidate, "variants", SPECULATING, ResolvedEngine, engine_version="0.34.0")
    change_record(candidate, "models", "target", ModelFacts, weights_sha256="a" * 64)

    def more_trials(spec: dict[str, dict[str, object]]) -> None:
        spec["load"]["trials"] = 5
        spec["variants"][SPECULATING]["args"] = {"max_num_seqs": 64}

    change_file(candidate, "resolved_spec.json", more_trials)
    changes = {each.what: (each.baseline, each.candidate) for each in compared(demo, demo).changes}
    assert changes == {}
    changes = {
        each.what: (each.baseline, each.candidate) for each in compared(candidate, demo).changes
    }
    assert changes["engine"] == ("vllm 0.32.0", "vllm 0.34.0")
    assert changes["target weights"] == (WEIGHTS, "a" * 12)
    assert changes["load.trials"] == ("2", "5")
    assert changes[f"variants.{SPECULATING}.args.max_num_seqs"] == ("none", "64")
