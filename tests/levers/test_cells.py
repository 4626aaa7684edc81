"""Counters prove, contradict or say nothing; and nothing is never taken for zero."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.levers.builders import DRAFT, counters, resolved, trial, workload
from whet.core.load import Load
from whet.core.records.engine import Speculation
from whet.core.records.evidence import Verdict
from whet.core.records.load import Counters, TrialRecord
from whet.levers import judge_cell


def only(kind: str, verdicts: tuple[Verdict, ...]) -> Verdict:
    (found,) = [verdict for verdict in verdicts if verdict.claim.kind == kind]
    return found


def speculation(*trials: TrialRecord, on: bool = True) -> Verdict:
    engine = resolved(speculation=DRAFT if on else None)
    return only("speculation", judge_cell(engine, trials, workload()))


def cache(*trials: TrialRecord, on: bool = True) -> Verdict:
    return only("prefix_cache", judge_cell(resolved(prefix_cache=on), trials, workload()))


def test_accepted_tokens_prove_speculation_over_all_trials() -> None:
    first = trial(
        counters(drafts=10, drafted=40, accepted=5), counters(drafts=110, drafted=440, accepted=155)
    )
    second = trial(
        counters(drafts=110, drafted=440, accepted=155),
        counters(drafts=210, drafted=840, accepted=305),
    )
    verdict = speculation(first, second)
    assert verdict.outcome == "proved"
    assert "acceptance length 2.50" in verdict.observed  # 1 + 300 / 200
    assert verdict.load == Load.at(4)
    assert any("155 → 305" in source for source in verdict.sources)


def test_drafts_without_one_accepted_token_contradict() -> None:
    verdict = speculation(
        trial(counters(drafts=0, drafted=0, accepted=0), counters(drafts=9, drafted=36, accepted=0))
    )
    assert verdict.outcome == "contradicted"
    assert "vocabulary" in verdict.observed


def test_counters_that_stand_still_contradict_speculation() -> None:
    still = counters(drafts=9, drafted=36, accepted=3)
    assert speculation(trial(still, still)).outcome == "contradicted"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, counters(drafts=9, accepted=3)),
        (counters(generated=1), counters(generated=41)),
        (counters(drafts=9, accepted=3), counters(generated=2)),
        (counters(drafts=9, accepted=9), counters(drafts=3, accepted=3)),
    ],
    ids=["not scraped", "renamed", "gone", "restarted"],
)
def test_missing_counters_are_unproved_not_zero(before: Counters | None, after: Counters) -> None:
    verdict = speculation(trial(before, after))
    assert verdict.outcome == "unproved"
    assert "no data" in verdict.observed


def test_one_trial_without_a_scrape_leaves_the_cell_unproved() -> None:
    good = trial(counters(drafts=0, accepted=0), counters(drafts=9, accepted=3))
    assert speculation(good, trial(None, None)).outcome == "unproved"


def test_only_complete_trials_count() -> None:
    good = trial(counters(drafts=0, accepted=0), counters(drafts=9, accepted=3))
    assert speculation(good, trial(None, None, status="failed")).outcome == "proved"
    assert speculation(trial(None, None, status="failed")).outcome == "unproved"
    assert speculation().outcome == "unproved"


def test_absent_counters_prove_no_speculation_only_beside_living_ones() -> None:
    assert speculation(trial(counters(generated=1), counters(generated=41)), on=False).outcome == (
        "proved"
    )
    assert speculation(trial(counters(), counters()), on=False).outcome == "unproved"


def test_drafts_contradict_no_speculation() -> None:
    moved = trial(counters(generated=1, drafts=1), counters(generated=41, drafts=2))
    still = trial(counters(generated=1, drafts=1), counters(generated=41, drafts=1))
    assert speculation(moved, on=False).outcome == "contradicted"
    assert speculation(still, on=False).outcome == "proved"


@pytest.mark.parametrize(
    ("hits", "outcome"),
    [
        (600, "proved"),
        (581, "proved"),
        (579, "contradicted"),
        (619, "proved"),
        (621, "contradicted"),
    ],
)
def test_the_hit_rate_must_be_within_two_points(hits: int, outcome: str) -> None:
    verdict = cache(trial(counters(queries=50, hits=50), counters(queries=1050, hits=50 + hits)))
    assert verdict.outcome == outcome


def test_a_head_on_hidden_states_hits_one_block_less() -> None:
    # Nine in ten requests lose 16 of their 100 tokens: 60.0 − 14.4.
    facts = replace(workload(0.6), shared_prefix_share=0.9, block_size=16, input_tokens_mean=100.0)
    head = Speculation(method="eagle3", num_tokens=4, draft_path="/head")

    def at(hits: int, speculation: Speculation) -> str:
        trials = [trial(counters(queries=0, hits=0), counters(queries=1000, hits=hits))]
        engine = resolved(prefix_cache=True, speculation=speculation)
        return only("prefix_cache", judge_cell(engine, trials, facts)).outcome

    assert at(456, head) == "proved"
    assert at(456, DRAFT) == "contradicted"
    assert at(600, head) == "contradicted"


def test_a_cold_start_may_cost_the_first_uses() -> None:
    # 0.6 × max(4 in flight, 4 prefixes) ÷ 20 requests = 12 points, and the 2 of every trial.
    def at(hits: int) -> str:
        ends = counters(queries=0, hits=0), counters(queries=1000, hits=hits)
        return cache(trial(*ends, warmup=0)).outcome

    assert at(461) == "proved"
    assert at(459) == "contradicted"


def test_a_prefix_is_cold_once_for_each_adapter() -> None:
    # 20 warm-up requests touch 4 prefixes, not 4 for each of 6 adapters: all 20 may find nothing.
    ends = counters(queries=0, hits=0), counters(queries=1000, hits=300)
    loras = tuple((f"l{number}", f"/l{number}") for number in range(6))
    engine = resolved(prefix_cache=True)
    engine = replace(engine, variant=replace(engine.variant, loras=loras))
    assert only("prefix_cache", judge_cell(engine, [trial(*ends)], workload())).outcome == "proved"
    assert cache(trial(*ends)).outcome == "contradicted"


def test_each_trial_is_held_to_its_own_workload() -> None:
    trials = [
        trial(counters(queries=0, hits=0), counters(queries=1000, hits=500), sha256="a"),
        trial(counters(queries=1000, hits=500), counters(queries=4000, hits=2600), sha256="b"),
    ]
    facts = [workload(0.5, sha256="a"), workload(0.7, sha256="b")]
    verdict = only("prefix_cache", judge_cell(resolved(prefix_cache=True), trials, facts))
    assert verdict.outcome == "proved"  # 2600 of 4000 against (0.5 × 1000 + 0.7 × 3000) ÷ 4000
    assert "65.0%, built for 65.0%" in verdict.observed


def test_no_lookup_contradicts_a_cache_and_proves_its_absence() -> None:
    still = trial(
        counters(queries=0, hits=0, generated=0), counters(queries=0, hits=0, generated=40)
    )
    moved = trial(counters(queries=0, hits=0), counters(queries=10, hits=0))
    assert cache(still).outcome == "contradicted"
    assert cache(still, on=False).outcome == "proved"
    assert cache(moved, on=False).outcome == "contradicted"


def test_a_missing_query_counter_proves_nothing_about_a_cache() -> None:
    silent = trial(counters(generated=1), counters(generated=41))
    assert cache(silent).outcome == "unproved"
    assert cache(silent, on=False).outcome == "unproved"


def responses(*, cached: int, on: bool) -> Verdict:
    """A server without cache counters whose 20 responses say how many prompt tokens were cached."""
    plain = trial(counters(generated=0), counters(generated=40))
    events = tuple(replace(event, cached_tokens=cached) for event in plain.requests)
    return cache(replace(plain, requests=events), on=on)


def test_a_server_without_cache_counters_is_judged_by_its_responses() -> None:
    assert responses(cached=0, on=False).outcome == "proved"
    assert responses(cached=3, on=False).outcome == "contradicted"
    rate = workload().expected_hit_rate
    verdict = responses(cached=round(10 * rate), on=True)
    assert verdict.outcome == "proved"
    assert verdict.sources[0].startswith("usage of the responses:")
    assert responses(cached=0, on=True).outcome == "contradicted"


def test_responses_that_do_not_report_cached_tokens_prove_nothing() -> None:
    assert cache(trial(counters(generated=0), counters(generated=40)), on=False).outcome == (
        "unproved"
    )
