"""Objectives as people write them, and what events answer, against published intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metrics.events import event, failed
from whet.core.errors import UsageError
from whet.core.records.codec import decode, encode
from whet.core.records.load import RequestEvent
from whet.core.records.objective import Bound, Constraint, Judgement, ObjectiveVerdict
from whet.metrics.objective import attainment, judge, judge_attainment
from whet.metrics.objective_text import (
    constraint_text,
    goodput_text,
    parse_goodput,
    parse_objective,
)
from whet.metrics.request_groups import RequestGroups, wilson


def ttfts(values_ms: Sequence[float]) -> list[RequestEvent]:
    return [event(ttft_ms=value) for value in values_ms]


def groups(events: Sequence[RequestEvent]) -> RequestGroups:
    """Each request is a group of its own."""
    return RequestGroups(events=tuple(events))


def ask(events: Sequence[RequestEvent], text: str) -> Judgement:
    (judgement,) = judge(groups(events), parse_objective(text)).judgements
    return judgement


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no goodput bound"),
        ([""], "no goodput bound"),
        (["ttft"], "names no limit"),
        (["ttft=200"], "names no limit"),
        (["tttf:200"], "'tttf'.*did you mean 'ttft'"),
        (["itl:20"], "no single request has"),
        (["ttft:"], "no plain number"),
        (["ttft:fast"], "no plain number"),
        (["ttft:200ms"], "no plain number; write it in ms"),
        (["ttft:nan"], "no plain number"),
        (["ttft:inf"], "no plain number"),
        (["ttft:1e9999"], "no plain number"),
        (["ttft:0"], "above 0"),
        (["ttft:-5"], "above 0"),
        (["ttft:1e999"], "finite"),
        (["ttft:1e-999"], "above 0"),
        (["ttft:200", "ttft:300"], "second on ttft"),
        (["e2el:200", "e2e:300"], "second on e2e"),
    ],
)
def test_a_goodput_word_that_cannot_be_read_says_how_to_write_it(
    words: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        parse_goodput(words)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        (" ; ;", "empty"),
        ("ttft", "not a constraint"),
        ("ttft:p95", "not a constraint"),
        ("ttft:p95>300ms", "not a constraint"),
        ("ttft:p95=300ms", "not a constraint"),
        ("ttft:p95=<300ms", "not a constraint"),
        ("ttft:p95<300ms<400ms", "not a constraint"),
        ("ttft:p95:p99<300ms", "unknown statistic 'p95:p99'"),
        ("tfft:p95<300ms", "unknown metric 'tfft'; did you mean 'ttft'"),
        ("errors<1%", "unknown metric 'errors'; did you mean 'error'"),
        (":p95<300ms", "unknown metric ''"),
        ("ttft<300ms", "no statistic"),
        ("ttft:<300ms", "no statistic"),
        ("ttft:medain<300ms", "unknown statistic 'medain'; did you mean 'median'"),
        ("ttft:max<300ms", "unknown statistic 'max'"),
        ("ttft:p<300ms", "unknown statistic 'p'"),
        ("ttft:p0<300ms", "between p0 and p100"),
        ("ttft:p100<300ms", "between p0 and p100"),
        ("ttft:p99.999999999999999999999<300ms", "between p0 and p100"),
        ("error:p95<1%", "write error<1%"),
        ("ttft:p95<", "no number"),
        ("ttft:p95<ms", "no number"),
        ("ttft:p95<nanms", "no number"),
        ("ttft:p95<300", "no unit; ttft is counted in us or ms or s"),
        ("ttft:p95<300sec", "unit 'sec'"),
        ("ttft:p95<300m", "unit 'm'; did you mean 'ms'"),
        ("ttft:p95<3%", "unit '%'"),
        ("error<1", "no unit; error is counted in %"),
        ("error<1ms", "unit 'ms'"),
        ("error<100%", "every request to fail"),
        ("error<=0%", "above 0"),
        ("ttft:p95<0ms", "above 0"),
        ("ttft:p95<-1ms", "above 0"),
        ("ttft:p95<1e999s", "finite"),
        ("ttft:p95<300ms;ttft:p95<=0.3s", "second of its kind"),
        ("ttft:p50<3ms;ttft:median<3ms", "second of its kind"),
        ("ttft:p99<3ms;ttft:p99.0<3ms", "second of its kind"),
        ("e2e:p99<3ms;e2el:p99<3ms", "second of its kind"),
        ("error<1%;error<2%", "second of its kind"),
    ],
)
def test_a_constraint_that_cannot_be_read_is_named_with_the_right_form(
    text: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        parse_objective(text)


def test_vllm_s_words() -> None:
    bounds = parse_goodput(["ttft:200", "tpot:50.5 e2el:5e3"])
    assert bounds == (
        Bound(metric="ttft", limit_ms=200),
        Bound(metric="tpot", limit_ms=50.5),
        Bound(metric="e2e", limit_ms=5000),
    )
    assert goodput_text(bounds) == "ttft:200 tpot:50.5 e2el:5000"


def test_llm_optimizer_s_grammar() -> None:
    text = "ttft:p95<300ms;tpot:p95<50ms;itl:median<10ms;e2e:p99<=5s;error<1%"
    ttft, _, itl, e2e, error = parse_objective(text)
    assert ttft == Constraint(metric="ttft", statistic="p95", limit=300, unit="ms", inclusive=False)
    assert (itl.statistic, e2e.limit, e2e.inclusive) == ("median", 5000, True)
    assert error == Constraint(metric="error", statistic=None, limit=1, unit="%", inclusive=False)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (" TTFT : P95 < 0.3 s ; ", "ttft:p95<300ms"),
        ("e2el:p50<=100us", "e2e:median<=0.1ms"),
        ("itl:p99.90<1e-3ms;;tpot:mean<.5ms", "itl:p99.9<0.001ms;tpot:mean<0.5ms"),
        ("error<=0.50%", "error<=0.5%"),
    ],
)
def test_there_is_one_canonical_form(text: str, canonical: str) -> None:
    assert ";".join(map(constraint_text, parse_objective(text))) == canonical


POSITIVE = st.floats(0, exclude_min=True, allow_infinity=False)
LATENCY = st.builds(
    Constraint,
    metric=st.sampled_from(["ttft", "tpot", "itl", "e2e"]),
    statistic=st.sampled_from(["mean", "median", "p1", "p90", "p95", "p99", "p99.9", "p99.99"]),
    limit=POSITIVE,
    unit=st.just("ms"),
    inclusive=st.booleans(),
)
ERROR = st.builds(
    Constraint,
    metric=st.just("error"),
    statistic=st.none(),
    limit=st.floats(0, 100, exclude_min=True, exclude_max=True),
    unit=st.just("%"),
    inclusive=st.booleans(),
)


@given(
    st.lists(LATENCY | ERROR, min_size=1, max_size=6, unique_by=lambda c: (c.metric, c.statistic))
)
def test_what_is_printed_is_read_as_the_same(constraints: list[Constraint]) -> None:
    assert parse_objective(";".join(map(constraint_text, constraints))) == tuple(constraints)


@given(st.dictionaries(st.sampled_from(["ttft", "tpot", "e2e"]), POSITIVE, min_size=1))
def test_printed_goodput_words_are_read_as_the_same(limits: dict[str, float]) -> None:
    bounds = tuple(Bound(metric=metric, limit_ms=limit) for metric, limit in limits.items())
    assert parse_goodput(goodput_text(bounds).split()) == bounds


@given(st.text(alphabet="tfp95:<=0.1ems%;- é٣", max_size=20))
def test_whatever_is_typed_is_read_or_refused_in_words(text: str) -> None:
    for parse in (parse_objective, lambda words: parse_goodput([words])):
        try:
            parse(text)
        except UsageError:
            continue


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_s_interval_is_the_published_one(
    hits: int, count: int, low: float, high: float
) -> None:
    """Newcombe 1998, *Statistics in Medicine* 17, table I, method 3."""
    found = wilson(hits / count, count)
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)
    assert found.value == hits / count


def test_an_error_and_an_unknown_figure_are_misses() -> None:
    events = [
        event(ttft_ms=10, gap_ms=5),
        event(ttft_ms=20, gap_ms=5),
        event(ttft_ms=21),
        event(gap_ms=6),
        event(tokens=None),
        event(pieces=1, tokens=1),
        failed(),
    ]
    found = attainment(groups(events), parse_goodput(["ttft:20", "tpot:5"]))
    assert found is not None
    assert found.value == 3 / 7
    assert attainment(groups([]), parse_goodput(["ttft:20"])) is None


def test_a_share_of_requests_is_judged_by_its_interval() -> None:
    """Of 100 that all meet, Wilson's lower end is 100 ÷ (100 + 1.96²) = 0.963."""
    bounds = parse_goodput(["ttft:20"])
    kept = ttfts([10] * 100)
    assert judge_attainment(groups(kept), bounds, share=0.96).verdict == "met"
    unsure = judge_attainment(groups(kept), bounds, share=0.97)
    assert unsure.verdict == "undecided"
    assert unsure.judgements[0].asked == "97% of requests within ttft:20"
    assert judge_attainment(groups(ttfts([30] * 100)), bounds, share=0.5).verdict == "missed"
    assert (
        judge_attainment(groups([]), bounds, share=0.5).judgements[0].reason
        == "there is no request"
    )
    for share in (0, 1, 1.5):
        with pytest.raises(UsageError, match="must be between 0 and 1"):
            judge_attainment(groups(kept), bounds, share=share)


def test_a_percentile_is_met_where_the_whole_interval_is_within() -> None:
    """1 … 130: p95 is bounded by the order statistics 118 and 129 (binomial, n = 130)."""
    events = ttfts(range(1, 131))
    assert ask(events, "ttft:p95<=129ms").verdict == "met"
    assert ask(events, "ttft:p95<129ms").verdict == "undecided"
    assert ask(events, "ttft:p95<=118ms").verdict == "undecided"
    assert ask(events, "ttft:p95<118ms").verdict == "missed"
    figure = ask(events, "ttft:p95<=129ms").figure
    assert figure is not None
    assert (figure.low, figure.high, figure.samples, figure.enough) == (118, 129, 130, True)


def test_an_interval_that_holds_the_bound_decides_nothing() -> None:
    found = ask(ttfts(range(1, 131)), "ttft:p95<125.55ms")
    assert (found.verdict, found.reason) == ("undecided", "the interval holds the bound")
    assert ask(ttfts(range(1, 131)), "ttft:p95<140ms").verdict == "met"


@pytest.mark.parametrize(
    ("statistic", "floor"),
    [("p90", 64), ("p95", 130), ("p99", 662), ("p99.9", 6636), ("median", 6)],
)
def test_too_few_samples_are_never_met_and_say_how_many_are_wanted(
    statistic: str, floor: int
) -> None:
    found = ask(ttfts([1] * (floor - 1)), f"ttft:{statistic}<1000ms")
    assert found.verdict == "undecided"
    assert found.reason == f"{floor - 1} samples are too few for {statistic}; {floor} are wanted"
    assert ask(ttfts([1] * floor), f"ttft:{statistic}<1000ms").verdict == "met"


def test_few_samples_can_still_show_a_miss() -> None:
    assert ask(ttfts([50] * 20), "ttft:median<10ms").verdict == "missed"


@pytest.mark.parametrize(
    "text", ["ttft:median<20ms", "ttft:mean<20ms", "itl:p95<9ms", "e2e:p90<9s"]
)
def test_no_request_decides_nothing(text: str) -> None:
    found = ask([], text)
    assert (found.verdict, found.figure) == ("undecided", None)
    assert found.reason is not None


def test_a_failed_request_lies_beyond_every_bound() -> None:
    """Where a fifth failed, p90 and the whole of its interval lie among them."""
    kept = ttfts([10] * 170)
    assert ask(kept, "ttft:p90<20ms").verdict == "met"
    found = ask([*kept, *[failed()] * 40], "ttft:p90<20ms")
    assert (found.verdict, found.figure) == ("missed", None)
    assert found.reason == "40 of 210 requests failed, the percentile among them"
    few = ask([*kept, *[failed()] * 5], "ttft:p90<20ms")
    assert few.verdict == "met"
    assert few.figure is not None
    assert few.figure.samples == 175


def test_a_percentile_s_open_end_among_failures_is_not_a_number() -> None:
    found = ask([*ttfts([10] * 90), *[failed()] * 8], "ttft:p90<20ms")
    assert found.verdict == "undecided"
    assert found.figure is not None
    assert (found.figure.value, found.figure.high) == (10, None)


def test_all_failed_is_missed_not_unknown() -> None:
    assert ask([failed()] * 20, "e2e:median<1000s").verdict == "missed"


def test_an_unknown_tpot_may_lie_anywhere() -> None:
    fast = [event(gap_ms=2)] * 100
    unknown = [event(tokens=None)] * 5
    assert ask([*fast, *unknown], "tpot:median<5ms").verdict == "met"
    assert ask([*fast, *unknown], "tpot:median<1ms").verdict == "missed"
    found = ask([*fast, *unknown * 30], "tpot:median<5ms")
    assert found.verdict == "undecided"
    assert found.reason == "150 of 250 requests came without token usage"
    assert ask([*fast, *unknown], "tpot:mean<5ms").verdict == "undecided"


def test_one_token_has_no_tpot_and_does_not_count() -> None:
    events = [*[event(gap_ms=2)] * 100, *[event(pieces=1, tokens=1)] * 50]
    figure = ask(events, "tpot:median<5ms").figure
    assert figure is not None
    assert figure.samples == 100


def test_a_mean_has_student_s_interval() -> None:
    """1 … 10: mean 5.5, s = 3.0277, t(0.975, 9) = 2.2622: 5.5 ± 2.1659."""
    figure = ask(ttfts(range(1, 11)), "ttft:mean<9ms").figure
    assert figure is not None
    assert (figure.low, figure.high) == pytest.approx((3.3341, 7.6659), abs=1e-4)
    for limit, verdict in ((7.7, "met"), (7.6, "undecided"), (3.4, "undecided"), (3.3, "missed")):
        assert ask(ttfts(range(1, 11)), f"ttft:mean<{limit}ms").verdict == verdict


def test_a_mean_of_survivors_is_never_met() -> None:
    kept = ttfts([10, 11] * 50)
    assert ask([*kept, *[failed()] * 5], "ttft:mean<20ms").verdict == "met"
    found = ask([*kept, *[failed()] * 6], "ttft:mean<20ms")
    assert found.verdict == "undecided"
    assert found.reason == "6 of 106 requests failed and are not in it"


def test_gaps_of_one_request_decide_nothing() -> None:
    found = ask([event(gap_ms=5, pieces=500)], "itl:median<10ms")
    assert found.verdict == "undecided"
    assert ask([event(gap_ms=5)] * 2, "itl:median<10ms").verdict == "met"


def test_requests_that_differ_leave_their_pooled_gaps_undecided() -> None:
    """Half of ten requests are slow: 990 gaps, and ten answers."""
    slow, fast = event(gap_ms=12, pieces=100), event(gap_ms=6, pieces=100)
    assert ask([slow, fast] * 5, "itl:median<10ms").verdict == "undecided"
    assert ask([fast] * 10, "itl:median<10ms").verdict == "met"


def test_gaps_of_too_few_requests_are_never_met() -> None:
    found = ask([event(gap_ms=5)] * 20, "itl:p99<10ms")
    assert found.verdict == "undecided"
    assert found.reason == "20 requests are too few for p99"
    assert ask([event(gap_ms=5, pieces=50)] * 20, "itl:p99<10ms").verdict == "undecided"
    assert ask([event(gap_ms=5)] * 662, "itl:p99<10ms").verdict == "met"


def test_errors_are_judged_by_wilson_s_interval() -> None:
    """Without an error of n, the upper end is 3.8415 ÷ (n + 3.8415): below 1% from n = 381 on."""
    found = ask([event()] * 380, "error<1%")
    assert found.verdict == "undecided"
    assert ask([event()] * 381, "error<1%").verdict == "met"
    assert ask([*[event()] * 100, *[failed()] * 10], "error<1%").verdict == "missed"
    assert ask([], "error<1%").verdict == "undecided"


def test_output_without_a_piece_is_an_error() -> None:
    assert ask([replace(event(), chunk_ns=())] * 10, "error<1%").verdict == "missed"


def test_one_miss_misses_all_and_one_doubt_leaves_it_open() -> None:
    events = ttfts([10] * 200)
    kept, open_, lost = "ttft:p95<20ms", "error<1%", "e2e:median<1ms"
    assert judge(groups(events), parse_objective(kept)).verdict == "met"
    assert judge(groups(events), parse_objective(f"{kept};{open_}")).verdict == "undecided"
    found = judge(groups(events), parse_objective(f"{open_};{kept};{lost}"))
    assert found.verdict == "missed"
    assert [judgement.asked for judgement in found.judgements] == [open_, kept, lost]
    assert decode(ObjectiveVerdict, encode(found)) == found
