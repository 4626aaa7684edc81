"""Stored real runs held against themselves and against copies with a planted change."""

from __future__ import annotations

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
TOKENS = "throughput, concurrency 128"
SPECULATING = "draft+cache"
WEIGHTS = "f4db029c6363"
"""The first digits of the demo target's hash."""


def test_a_run_passes_against_itself_where_its_starts_are_alike(h200: Path) -> None:
    result = compared(h200, h200, allowed=0.35)
    assert (result.verdict, result.variant, result.changes) == ("pass", EAGLE, ())
    groups = {each.group for each in result.checks}
    assert groups == {"evidence", "quality", "objective", "speed", "counters"}
    assert {each.name for each in result.checks if each.group == "evidence"} == {
        f"evidence: {kind}" for kind in ("weights", "settings", "speculation", "prefix_cache")
    }


def test_three_starts_decide_throughput_at_5_percent_and_say_what_ttft_needs(h200: Path) -> None:
    result = compared(h200, h200)
    assert {each.name for each in result.counted("unknown")} == {
        f"TTFT p95, concurrency {size}" for size in (4, 32, 128)
    }
    sentence = check(result, "TTFT p95, concurrency 128").sentence
    assert "inconclusive at +5%: 74 starts of each would decide" in sentence
    assert result.verdict == "unknown"


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [
        (1.2, "fail"),
        (1.06, "unknown"),
        (1.01, "pass"),
        pytest.param(0.8, "pass", marks=pytest.mark.full),
    ],
)
def test_the_whole_interval_decides(h200: Path, copy_of: Copy, factor: float, verdict: str) -> None:
    candidate = copy_of(h200)
    change_trials(candidate, EAGLE, slower(factor), 128)
    result = compared(candidate, h200)
    for name in (TOKENS, "TPOT p50, concurrency 128"):
        assert check(result, name).verdict == verdict
    ratio = check(result, "TPOT p50, concurrency 128").change
    assert ratio is not None
    assert ratio.value == pytest.approx(factor)
    throughput = check(result, TOKENS).change
    assert throughput is not None
    assert throughput.value == pytest.approx(1 / factor, rel=1e-3)
    assert check(result, "TPOT p50, concurrency 4").verdict == "pass"


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
    assert own["speed"] == own["objective"] == {"unknown"}
    assert own["counters"] == own["evidence"] == own["quality"] == {"pass"}
    sentence = check(result, "TPOT p50, concurrency 8").sentence
    assert "figures of two machines are not compared (AMD EPYC × 2; Intel × 2)" in sentence
    (machine,) = [each for each in result.changes if each.what == "machine"]
    assert (machine.baseline, machine.candidate) == ("AMD EPYC × 2", "Intel × 2")


def test_one_start_of_each_server_has_no_interval(demo: Path, copy_of: Copy) -> None:
    root = copy_of(demo)
    for variant in Run.read(root).variants:
        change_trials(root, variant, lambda trial: replace(trial, start=0))
    result = compared(root, root)
    for name in ("TTFT p95, concurrency 8", "prefix hit rate, concurrency 8"):
        assert check(result, name).verdict == "unknown"
        assert "one start has no interval; set load.trials" in check(result, name).sentence


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
        (ACCEPTED, 0.8, "acceptance length, concurrency 8", "fail"),
        (ACCEPTED, 0.99, "acceptance length, concurrency 8", "pass"),
        (PREFIX_HITS, 0.5, "prefix hit rate, concurrency 8", "fail"),
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
    assert check(compared(candidate, demo), name).verdict == verdict


def test_other_prompts_are_compared_without_pairs(demo: Path, copy_of: Copy) -> None:
    candidate = copy_of(demo)
    change_record(candidate, "workloads", "b008-t0", WorkloadFacts, sha256="f" * 64)
    change_trials(candidate, SPECULATING, scaled_counter(PREFIX_HITS, 0.4))
    result = compared(candidate, demo)
    assert check(result, "prefix hit rate, concurrency 8").verdict == "fail"
    assert "traffic b008" in {each.what for each in result.changes}


@pytest.mark.parametrize(
    ("low", "value", "high", "verdict"),
    [(900, 1950, 1999, "pass"), (900, 1950, 2010, "unknown"), (2000, 2100, 2200, "fail")],
)
def test_the_recommended_load_has_to_meet_the_baselines_limit(
    demo: Path, copy_of: Copy, low: float, value: float, high: float, verdict: str
) -> None:
    candidate = copy_of(demo)
    figure = Estimate(value=value, low=low, high=high, samples=900)
    change_cell(candidate, SPECULATING, 8, ttft_p95_ms=figure)
    held = check(compared(candidate, demo), "TTFT p95 limit, concurrency 8")
    assert held.verdict == verdict
    assert "limit 2,000 ms" in held.sentence


def test_a_variant_that_is_not_recommended_is_held_where_it_qualified(h200: Path) -> None:
    result = compared(h200, h200, variant="fp8+cache")
    limits = [each.name for each in result.checks if each.group == "objective"]
    assert limits == [f"TTFT p95 limit, concurrency {size}" for size in (4, 32, 128)]


def exclude_failed(root: Path, reason: str) -> None:
    """Exclude the cell at concurrency 8 from the decision, as a failed one is."""

    def exclude(decision: dict[str, list[dict[str, object]]]) -> None:
        place = {"variant": SPECULATING, "load": {"concurrency": 8}, "tier": "AMD EPYC × 2"}
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
    assert (lost.verdict, lost.sentence) == (verdict, cell["failure"])
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


def test_runs_without_a_common_load_say_so(demo: Path, copy_of: Copy) -> None:
    candidate = copy_of(demo)
    for size in (1, 8):
        change_cell(candidate, SPECULATING, size, load=Load.at(size + 20))
    result = compared(candidate, demo)
    assert check(result, "loads").verdict == "unknown"
    objective = check(result, "objective, concurrency 8")
    assert objective.verdict == "unknown"
    assert "was not measured at concurrency 8" in objective.sentence


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
