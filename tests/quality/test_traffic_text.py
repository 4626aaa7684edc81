"""Degenerate text in timed traffic: judged beside the baseline's, up to the end token."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.metrics.events import event, failed
from tests.quality.test_language import ENGLISH, GERMAN
from whet.core.records import RequestEvent
from whet.quality.language import read_language
from whet.quality.traffic_text import BaselineTraffic, examine_traffic, read_baseline

FINE = "The lamp is on its way and comes on Friday."
LOOP = "So: " + "I am sorry. " * 10
MARKS = "!" * 64


def said(*texts: str) -> list[RequestEvent]:
    return [replace(event(index=index), text=text) for index, text in enumerate(texts)]


def beside(answers: int, degenerate: int) -> BaselineTraffic:
    return BaselineTraffic(answers=answers, degenerate=degenerate, language=None)


def test_fishers_p_is_that_of_a_hand_count() -> None:
    # 3 of 8 against 0 of 8: C(8, 3) of the C(16, 3) ways to place three faults, 56 ÷ 560.
    record = examine_traffic("v", said(*[LOOP] * 3, *[FINE] * 5), beside(8, 0))
    assert record.p_value == pytest.approx(0.1)
    assert (record.baseline_share, record.verdict) == (0.0, "pass")
    assert record.found == (("loop", 3),)


# One-sided p of k of 100 against 0 of 100 is C(100, k) ÷ C(200, k): 0.014 at six, 0.007 at seven.
@pytest.mark.parametrize(("faults", "verdict"), [(6, "pass"), (7, "fail")])
def test_it_fails_at_a_p_below_one_in_a_hundred(faults: int, verdict: str) -> None:
    texts = [LOOP] * faults + [FINE] * (100 - faults)
    assert examine_traffic("v", said(*texts), beside(100, 0)).verdict == verdict


def test_a_difference_that_is_certain_but_small_does_not_fail() -> None:
    record = examine_traffic("v", said(*[LOOP] * 9, *[FINE] * 991), beside(10_000, 0))
    assert record.p_value is not None
    assert record.p_value < 1e-6
    assert record.verdict == "pass", "0.9 points"


def test_loops_that_the_baseline_has_too_are_its_own() -> None:
    texts = said(*[LOOP] * 30, *[FINE] * 10)
    base = read_baseline(texts)
    assert (base.answers, base.degenerate) == (40, 30)
    assert examine_traffic("v", texts, base).verdict == "pass"


@pytest.mark.parametrize("text", [MARKS, " "])
@pytest.mark.parametrize("base", [None, beside(40, 40)])
def test_most_answers_saying_nothing_fail_beside_any_baseline(
    text: str, base: BaselineTraffic | None
) -> None:
    assert examine_traffic("v", said(*[text] * 5, *[FINE] * 4), base).verdict == "fail"
    half = examine_traffic("v", said(*[text] * 5, *[FINE] * 5), base)
    assert half.verdict == "pass", "half is not most"


def test_few_answers_on_either_side_are_unknown() -> None:
    assert examine_traffic("v", said(*[MARKS] * 7), beside(40, 0)).verdict == "unknown"
    assert examine_traffic("v", said(*[FINE] * 8), beside(7, 0)).verdict == "unknown"
    nothing = examine_traffic("v", [], beside(0, 0))
    assert (nothing.verdict, nothing.p_value, nothing.baseline_share) == ("unknown", None, None)


def test_a_request_that_failed_is_no_answer() -> None:
    events = [*said(*[FINE] * 8), *(replace(failed(), text="") for _ in range(20))]
    record = examine_traffic("v", events, None)
    assert (record.answers, record.found, record.verdict) == (8, (), "pass")


def test_what_is_forced_past_the_end_token_is_no_answer() -> None:
    forced = [FINE + "</s>" + "I am sorry. " * 12] * 10
    base = read_baseline(said(*[FINE] * 40))
    assert examine_traffic("v", said(*forced), base).verdict == "fail"
    record = examine_traffic("v", said(*forced), base, ends=("<|x|>", "</s>"))
    assert (record.found, record.verdict) == ((), "pass")


def test_an_end_token_at_once_is_empty_but_not_a_broken_model() -> None:
    at_once = said(*["</s>" + FINE] * 10)
    record = examine_traffic("v", at_once, beside(40, 30), ends=("</s>",))
    assert (record.found, record.verdict) == ((("empty", 10),), "pass")
    assert examine_traffic("v", at_once, beside(40, 0), ends=("</s>",)).verdict == "fail"


def languages(variant: Sequence[str]) -> str:
    return examine_traffic("v", said(*variant), read_baseline(said(*ENGLISH * 5))).verdict


def test_a_switch_of_language_fails_and_the_same_answers_pass() -> None:
    assert languages([GERMAN] * 8 + ENGLISH * 4) == "fail"
    assert languages(ENGLISH * 5) == "pass"


def test_a_baseline_without_a_language_judges_none() -> None:
    base = replace(read_baseline(said(*ENGLISH * 5)), language=None)
    assert examine_traffic("v", said(*[GERMAN] * 40), base).verdict == "pass"


def test_the_baselines_own_switches_count_for_it() -> None:
    assert read_baseline(said(*ENGLISH * 25, GERMAN)).degenerate == 1
    assert read_language(ENGLISH * 25).words is not None


def test_examples_show_each_kind_first_and_are_cut_after_secrets_are_starred() -> None:
    key = "sk-" + "a1" * 20
    secret = "x" * 280 + " " + key + " " + "I am sorry. " * 60
    texts = [LOOP, "So: " + "dear me, " * 12, "", secret, MARKS, *[FINE] * 4]
    record = examine_traffic("v", said(*texts), beside(9, 0))
    assert record.examples[:2] == (LOOP, MARKS)
    assert len(record.examples) == 3
    only = examine_traffic("v", said(secret, *[FINE] * 8), beside(9, 0)).examples[0]
    assert (len(only), only[-1]) == (301, "…")
    assert "sk-" not in only
    assert only[281] == "*"


def test_the_reason_tells_counts_and_the_first_fault() -> None:
    record = examine_traffic("v", said(*[LOOP] * 9, FINE), beside(40, 1))
    assert record.verdict == "fail"
    assert record.reason is not None
    assert record.reason.startswith(
        "9 of 10 timed answers are degenerate text, against 1 of 40 of the baseline's (Fisher's"
    )
    assert record.reason.endswith("the first: 'I am sorry.' repeated 10 times")


def test_a_secret_in_a_loop_is_starred_in_the_reason() -> None:
    text = ("key sk-" + "a1" * 20 + " ") * 10
    reason = examine_traffic("v", said(*[text] * 9), beside(40, 1)).reason
    assert reason is not None
    assert "a1" not in reason
    assert reason.endswith("*' repeated 9 times")
