"""Every fault is named: simulated traffic through the functions that ``whet watch`` calls."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from benchmarks.watch_false_alarms import delay, false_alarms

from tests.watch.traffic import DAY, MIXES, Deployment, Truth, shifts, simulated_references
from whet.core import counters
from whet.core.records.quality_checks import GoldenProbes
from whet.watch.causes import CAUSES
from whet.watch.mismatches import mismatches
from whet.watch.observation import Answers, Observation, Scrape, window_between
from whet.watch.signals import References
from whet.watch.state import WatchState, advance

HEALTHY = 70
FAULTY = 40

Change = Callable[[Observation, int], Observation]


def run_fault(
    change: Change,
    references: References | None = None,
    *,
    truth: Truth | None = None,
    periods: int = FAULTY,
) -> list[str]:
    """The names raised, in order, by a fault after healthy periods."""
    references = references or simulated_references()
    deployment = Deployment(np.random.default_rng(3))
    state, names = WatchState(run="r", variant="v"), list[str]()
    for period in range(HEALTHY + periods):
        faulty = period >= HEALTHY
        look = deployment.observe(period, truth if faulty and truth is not None else Truth())
        done = advance(state, change(look, period) if faulty else look, references)
        assert faulty or not done.findings, done.findings
        names += [finding.cause.name for finding in done.begun]
        state = done.state
    return names


def scraped(look: Observation, **changes: Any) -> Observation:
    """The observation with other scrapes."""
    assert look.before is not None
    scrape = replace(look.before, **changes)
    return replace(look, before=scrape, after=scrape)


def without(*names: str) -> Change:
    """Counters that stay where they were: 0."""

    def change(look: Observation, period: int) -> Observation:
        assert look.before is not None
        kept = {k: v for k, v in look.before.values.items() if k not in names}
        return scraped(look, values=kept)

    return change


def useless_draft(look: Observation, period: int) -> Observation:
    assert look.before is not None
    values = dict(look.before.values)
    values[counters.ACCEPTED] = 0.01 * values[counters.DRAFTS]
    return scraped(look, values=values)


def one_token(look: Observation, period: int) -> Observation:
    """K = 1 in place of 4: fewer tokens are accepted per step too."""
    assert look.before is not None
    values = dict(look.before.values)
    values[counters.DRAFT_TOKENS] = values[counters.DRAFTS]
    values[counters.ACCEPTED] = 0.8 * values[counters.DRAFTS]
    return scraped(look, values=values)


def several(look: Observation, period: int) -> Observation:
    assert look.before is not None
    start = 1000.0 + period % 2
    return scraped(look, values={**look.before.values, counters.PROCESS_START: start})


def restarting(look: Observation, period: int) -> Observation:
    assert look.before is not None
    return scraped(look, values={**look.before.values, counters.PROCESS_START: float(period)})


def preempting(look: Observation, period: int) -> Observation:
    assert look.before is not None
    values = {**look.before.values, "vllm:num_preemptions_total": float(period)}
    return scraped(look, values=values)


def busy(look: Observation, period: int) -> Observation:
    """Twenty requests in flight, where eight were measured."""
    assert look.before is not None
    values = {**look.before.values, "vllm:e2e_request_latency_seconds_sum": 1200.0 * period}
    return scraped(look, values=values)


HARD: dict[str, Change] = {
    "unreachable": lambda look, _: Observation(
        at=look.at, at_s=look.at_s, silence="unreachable: refused"
    ),
    "unauthorized": lambda look, _: Observation(
        at=look.at, at_s=look.at_s, silence="unauthorized: HTTP 401"
    ),
    "hung": lambda look, _: replace(look, speed=None, speed_error="probe: timeout"),
    "probe_failed": lambda look, _: replace(look, speed=None, speed_error="probe: http_500"),
    "wrong_model": lambda look, _: replace(look, models={"other": 4096}),
    "context_shortened": lambda look, _: replace(look, models={"target": 2048}),
    "engine_version": lambda look, _: replace(look, version="0.34.0"),
    "flags_changed": lambda look, _: scraped(look, cache={"block_size": "64"}),
    "metrics_missing": lambda look, _: scraped(look, names=0, other_names=0, values={}),
    "metrics_renamed": lambda look, _: scraped(look, names=0, other_names=90, values={}),
    "several_engines": several,
    "restart_loop": restarting,
    "speculation_off": without(counters.DRAFTS, counters.ACCEPTED, counters.DRAFT_TOKENS),
    "prefix_cache_off": without(counters.PREFIX_QUERIES, counters.PREFIX_HITS),
    "draft_useless": useless_draft,
    "draft_length_changed": one_token,
    "answers_broken": lambda look, _: replace(
        look, answers=Answers(logprobs={}, broken="not numbers (NaN)")
    ),
    "answers_unread": lambda look, _: replace(
        look, answers=Answers(logprobs={}, error="the server leaves logprobs out of its replies")
    ),
    "chat_template_changed": lambda look, period: replace(
        look, chat_prompt_tokens=None if period % 5 else 33
    ),
    "claim_weights": lambda look, _: replace(look, claims={"weights": "MarlinLinearKernel"}),
    "kv_cache_exhausted": preempting,
    "load_above_measured": busy,
}


@pytest.mark.parametrize("cause", HARD)
def test_a_fault_is_named(cause: str) -> None:
    assert run_fault(HARD[cause])[:1] == [cause]


@pytest.mark.parametrize(
    "cause", ["hung", "probe_failed", "answers_broken", "answers_unread", "answers_changed"]
)
def test_probes_in_every_third_period_name_a_fault_too(cause: str) -> None:
    def change(look: Observation, period: int) -> Observation:
        look = HARD.get(cause, lambda look, _: look)(look, period)
        if period % 3:
            look = replace(look, speed=None, speed_error=None, answers=None)
        return look

    assert run_fault(change, truth=Truth(golden_nats=0.1 * (cause == "answers_changed")))[:1] == [
        cause
    ]


@pytest.mark.parametrize("name", [counters.PREFIX_HITS, "vllm:kv_cache_usage_perc"])
def test_a_single_series_that_the_run_had_is_missed(name: str) -> None:
    references = simulated_references()
    envelope = replace(references.envelope, series=(counters.PREFIX_HITS, counters.KV_USAGE))
    names = run_fault(without(name), replace(references, envelope=envelope), periods=5)
    assert names == ["metrics_missing"]


def test_a_series_that_comes_back_is_no_burst() -> None:
    look = Deployment(np.random.default_rng(0)).observe(5, Truth())
    assert look.before is not None
    gone = scraped(look, values={counters.PROCESS_START: 1.0}).before
    assert gone is not None
    window = window_between(gone, look.before)
    assert window is not None
    rises = (window.rise(counters.DRAFTS), window.rise(counters.GENERATED), window.errors)
    assert rises == (None, None, 0.0)


@pytest.mark.parametrize(
    ("measured", "answers", "same"),
    [
        ("0.32.0+cu129", "0.32.0", True),
        ("0.32.0", "0.32.0+cpu", True),
        ("0.32.0", "v0.32.0", True),
        ("0.32.0+cu129", "0.32.0+cu130", False),
        ("0.32.0+cu129", "0.32.1", False),
        ("0.32.0", "0.32.0rc1", False),
    ],
)
def test_a_local_label_is_the_same_release(measured: str, answers: str, *, same: bool) -> None:
    references = simulated_references()
    references = replace(references, envelope=replace(references.envelope, engine_version=measured))
    look = replace(Deployment(np.random.default_rng(0)).observe(0, Truth()), version=answers)
    assert ("engine_version" not in mismatches(look, None, references, None)) == same


def test_speculation_where_the_variant_has_none() -> None:
    references = simulated_references()
    plain = replace(references.envelope, num_speculative_tokens=None)
    deployment, state = Deployment(np.random.default_rng(0)), WatchState(run="r", variant="v")
    names = []
    for period in range(5):
        done = advance(
            state, deployment.observe(period, Truth()), replace(references, envelope=plain)
        )
        state = done.state
        names += [finding.cause.name for finding in done.begun]
    assert names == ["speculation_on"]


def test_a_missing_adapter() -> None:
    references = simulated_references()
    envelope = replace(references.envelope, loras=("formal",))
    deployment, state, names = (
        Deployment(np.random.default_rng(0)),
        WatchState(run="", variant=""),
        [],
    )
    for period in range(3):
        done = advance(
            state, deployment.observe(period, Truth()), replace(references, envelope=envelope)
        )
        state = done.state
        names += [finding.cause.name for finding in done.begun]
    assert names == ["adapter_missing"]


def moved(golden: GoldenProbes, nats: float) -> GoldenProbes:
    """The probes of other weights."""
    probes = [
        replace(p, tokens=(replace(p.tokens[0], mean=p.tokens[0].mean + nats),))
        for p in golden.probes
    ]
    return replace(golden, probes=tuple(probes))


@pytest.mark.parametrize(
    ("nats", "cause"), [(0.2, "unquantized_weights"), (-0.2, "answers_changed")]
)
def test_answers_of_the_16_bit_weights_are_told_from_damage(nats: float, cause: str) -> None:
    references = simulated_references()
    assert references.golden is not None
    references = replace(references, plain=moved(references.golden, 0.2))
    names = run_fault(lambda look, _: look, references, truth=Truth(golden_nats=nats))
    assert names[:1] == [cause]


LARGEST = dict(shifts())


@pytest.mark.parametrize("cause", LARGEST)
def test_a_lasting_shift_is_named(cause: str) -> None:
    look = delay(1, LARGEST[cause], cause)
    assert look.name == cause


def test_prompts_that_are_longer_and_hit_less_are_one_cause() -> None:
    truth = Truth(hit_rate=0.2, long_prompts=0.8)
    names = run_fault(lambda look, _: look, truth=truth, periods=180)
    assert names == ["prefix_hits_fell", "prompts_changed"]


def test_every_cause_has_a_fault_here() -> None:
    shown = {*HARD, *LARGEST, "speculation_on", "adapter_missing", "unquantized_weights"}
    shown |= {"prompts_changed", "output_lengths_changed"}
    assert {cause.name for cause in CAUSES} <= shown


def test_a_month_of_healthy_traffic_raises_at_most_one_alarm() -> None:
    assert false_alarms(7).total() <= 1


@pytest.mark.parametrize("mix", MIXES[1:])
def test_a_mix_that_swings_within_a_day_or_a_week_is_no_change(mix: str) -> None:
    assert false_alarms(11, mix, periods=8 * DAY).total() <= 1


def test_traffic_above_what_was_measured_is_load_and_not_slowness() -> None:
    assert run_fault(lambda look, _: look, truth=Truth(rps=40.0)) == ["load_above_measured"]


def test_a_slow_machine_is_not_load() -> None:
    """It has more requests in flight, and a queue, at the same arrivals."""
    slow = Truth(tpot=8.0, ttft=8.0, waiting=20.0)
    assert run_fault(lambda look, _: look, truth=slow) == ["slower_than_measured"]


def test_other_weights_are_named_by_one_whole_set() -> None:
    references = simulated_references()
    assert references.golden is not None
    logprobs = {probe.id: -2.06 for probe in references.golden.probes}
    names = run_fault(lambda look, _: replace(look, answers=Answers(logprobs=logprobs)), periods=1)
    assert names == ["answers_changed"]


def test_a_figure_that_stays_lower_for_a_day_is_named() -> None:
    """By 12%: within a day that is no change."""
    found = delay(3, Truth(acceptance=0.88 * 3.85), "acceptance_of_traffic_fell")
    assert (found.name, found.right is not None) == ("acceptance_of_traffic_fell", True)
    assert DAY / 2 < (found.right or 0) <= 2 * DAY


def test_a_restart_forgets_what_the_old_process_summed_up() -> None:
    deployment, references = Deployment(np.random.default_rng(0)), simulated_references()
    state = WatchState(run="", variant="")
    for period in range(80):
        look = deployment.observe(period, Truth())
        look = busy(look, period) if 40 <= period < 60 else look
        if period >= 60:
            assert look.before is not None
            look = scraped(look, values={**look.before.values, counters.PROCESS_START: 9e9})
        done = advance(state, look, references)
        assert not done.findings or period < 60
        assert done.findings or period != 59
        state = done.state


def test_a_restart_of_the_engine_is_no_alarm() -> None:
    deployment = Deployment(np.random.default_rng(0), restart_every=400)
    state, references = WatchState(run="", variant=""), simulated_references()
    for period in range(1000):
        done = advance(state, deployment.observe(period, Truth()), references)
        assert not done.findings
        state = done.state


@pytest.mark.parametrize("cause", ["unreachable", "unauthorized", "hung"])
def test_one_answer_ends_a_silence(cause: str) -> None:
    """It hides what else changed: another version is named as soon as it would be without it."""
    deployment, references = Deployment(np.random.default_rng(0)), simulated_references()
    state, begun = WatchState(run="", variant=""), list[tuple[int, str]]()
    for period in range(12):
        look = deployment.observe(period, Truth())
        if period >= 4:
            look = HARD[cause](look, period) if period < 8 else replace(look, version="0.34.0")
        done = advance(state, look, references)
        begun += [(period, finding.cause.name) for finding in done.begun]
        state = done.state
    assert begun == [(5, cause), (9, "engine_version")]


def test_a_fault_that_ends_is_cleared() -> None:
    deployment, references = Deployment(np.random.default_rng(0)), simulated_references()
    state, ended = WatchState(run="", variant=""), list[str]()
    for period in range(100):
        look = deployment.observe(period, Truth())
        if 40 <= period < 50:
            look = replace(look, version="0.34.0")
        done = advance(state, look, references)
        ended += done.ended
        state = done.state
    assert ended == ["engine_version"]
    assert not state.raised


def test_quiet_traffic_and_missing_probes_are_no_alarm() -> None:
    """At night nothing is sent, and under pressure no probe."""
    deployment, references = Deployment(np.random.default_rng(0)), simulated_references()
    state = WatchState(run="", variant="")
    for period in range(300):
        look = deployment.observe(period, Truth(rps=0.0 if period % 2 else 0.01))
        if period % 3:
            look = replace(look, speed=None, answers=None, skipped="requests wait")
        done = advance(state, look, references)
        assert not done.findings
        state = done.state


def test_a_scrape_of_another_process_is_not_subtracted() -> None:
    before = Scrape(
        at_s=0.0, values={counters.PROCESS_START: 1.0}, buckets={}, cache={}, names=1, other_names=0
    )
    after = replace(before, values={counters.PROCESS_START: 2.0, counters.DRAFTS: 5.0})
    assert window_between(before, after) is None


def test_a_clock_that_is_set_back_is_no_load() -> None:
    deployment = Deployment(np.random.default_rng(3))
    first, second = (deployment.observe(period, Truth()).before for period in (0, 1))
    assert first is not None
    assert second is not None
    assert window_between(first, second) is not None
    for back_s in (1.0, 86_400.0):
        assert window_between(first, replace(second, at_s=first.at_s - back_s)) is None


@pytest.mark.parametrize(
    ("drafted", "named"), [(1.0, True), (3.0, True), (3.8, False), (5.0, True)]
)
def test_a_draft_of_another_length_is_named(drafted: float, named: bool) -> None:
    def change(look: Observation, period: int) -> Observation:
        assert look.before is not None
        values = dict(look.before.values)
        values[counters.DRAFT_TOKENS] = drafted * values[counters.DRAFTS]
        return scraped(look, values=values)

    assert run_fault(change, periods=3) == (["draft_length_changed"] if named else [])


def test_a_length_that_follows_the_load_is_no_change() -> None:
    """Above the deployed load a K by load is smaller, and that load is what is named."""

    def change(look: Observation, period: int) -> Observation:
        return busy(one_token(look, period), period)

    references = simulated_references()
    follows = replace(references.envelope, draft_follows_load=True)
    names = run_fault(change, replace(references, envelope=follows), periods=10)
    assert names == ["load_above_measured"]
    assert run_fault(change, periods=5)[0] == "draft_length_changed"
