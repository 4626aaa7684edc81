"""Text that no healthy model writes, and text that only looks like it."""

import random
from dataclasses import replace

import pytest

from tests.metrics.events import event, failed
from whet.core.records import DegenerateTraffic, RequestEvent
from whet.quality import degenerate, examine_traffic
from whet.quality.degenerate import find_fault

FINE = "The lamp is on its way and comes on Friday."
LOOP = "So: " + "I am sorry. " * 10
MARKS = "!" * 64


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n ",
        "!" * 64,
        "!!!!!!!! !!!!!!!!",
        "the " * 40,
        "We ship it. " + "I am sorry to hear that. " * 12,
        "answer: " + "0" * 100,
        "\ufffd" * 20 + "abc",
    ],
)
def test_garbage_is_named(text: str) -> None:
    assert degenerate(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "42",
        "no",
        "1111",
        "The red lamp costs 19.90 EUR and ships in three days from Porto.",
        '{"items": [{"n": 0}, {"n": 0}, {"n": 0}, {"n": 0}, {"n": 0}, {"n": 0}], "total": 0}',
        "A table\n" + "-" * 60 + "\nlamp | 19.90 EUR | three days\nchair | 49.90 EUR | five days\n"
        "and a good deal of prose that follows it, so that the line is not most of the text",
        "ha ha ha, very funny",
    ],
)
def test_an_answer_is_left_alone(text: str) -> None:
    assert degenerate(text) is None


def test_the_loop_and_its_length_are_told() -> None:
    assert degenerate("So: " + "yes, " * 30) == "'yes,' repeated 30 times"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("\n", "empty"),
        ("!" * 64, "one mark"),
        ("\ufffd" * 20 + "abc", "unreadable"),
        ("We ship it. " + "I am sorry. " * 12, "loop"),
    ],
)
def test_each_kind_is_told_apart(text: str, kind: str) -> None:
    fault = find_fault(text)
    assert fault is not None
    assert fault[0] == kind


def slow_loop(text: str) -> bool:
    """The definition, tried for every unit: no short cut."""
    for size in range(1, min(160, len(text) // 4) + 1):
        length = size
        while length < len(text) and text[-1 - length] == text[-1 - length + size]:
            length += 1
        if length >= max(48, 4 * size) and 2 * length >= len(text):
            return True
    return False


def test_the_short_cut_finds_what_trying_every_unit_finds() -> None:
    draw = random.Random(7)
    told = []
    for _ in range(400):
        unit = "".join(draw.choice("ab ") for _ in range(draw.randrange(1, 200)))
        head = "".join(draw.choice("abc ") for _ in range(draw.randrange(0, 120)))
        text = (head + unit * draw.randrange(1, 9) + unit[: draw.randrange(len(unit))]).strip()
        if len(set(text) - {" "}) < 2:
            continue
        found = find_fault(text)
        assert (found is not None) == slow_loop(text), text
        told.append(found is not None)
    assert 100 < sum(told) < 300


@pytest.mark.parametrize("size", [1, 12, 160])
def test_a_loop_is_one_from_four_whole_turns_on(size: int) -> None:
    unit = "".join(chr(0x4E00 + at) for at in range(size))
    turns = max(4, -(-48 // size))
    head = "x"  # else a single character is one mark
    assert find_fault(head + unit * turns) is not None
    assert find_fault(head + (unit * turns)[1:]) is None


def said(*texts: str) -> list[RequestEvent]:
    return [replace(event(index=index), text=text) for index, text in enumerate(texts)]


def beside(answers: int, faults: int) -> DegenerateTraffic:
    """A baseline's record."""
    return DegenerateTraffic(
        variant="fp16",
        answers=answers,
        found=(("loop", faults),) if faults else (),
        baseline_share=None,
        p_value=None,
        examples=(),
        verdict="pass",
    )


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
    base = examine_traffic("fp16", texts, None)
    assert (base.answers, base.found) == (40, (("loop", 30),))
    assert examine_traffic("v", texts, base).verdict == "pass"


@pytest.mark.parametrize("text", [MARKS, " "])
@pytest.mark.parametrize("base", [None, beside(40, 40)])
def test_most_answers_saying_nothing_fail_beside_any_baseline(
    text: str, base: DegenerateTraffic | None
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
    base = examine_traffic("fp16", said(*[FINE] * 40), None)
    assert examine_traffic("v", said(*forced), base).verdict == "fail"
    record = examine_traffic("v", said(*forced), base, ends=("<|x|>", "</s>"))
    assert (record.found, record.verdict) == ((), "pass")


def test_an_end_token_at_once_is_empty_but_not_a_broken_model() -> None:
    at_once = said(*["</s>" + FINE] * 10)
    record = examine_traffic("v", at_once, beside(40, 30), ends=("</s>",))
    assert (record.found, record.verdict) == ((("empty", 10),), "pass")
    assert examine_traffic("v", at_once, beside(40, 0), ends=("</s>",)).verdict == "fail"


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


def test_three_examples_are_kept_starred_and_cut() -> None:
    key = "sk-" + "a1" * 20
    secret = "x" * 250 + " " + key + " " + "I am sorry. " * 60
    texts = [secret, "", LOOP, LOOP, MARKS, "So: " + "dear me, " * 12, *[FINE] * 4]
    examples = examine_traffic("v", said(*texts), beside(9, 0)).examples
    assert examples[1:] == (LOOP, MARKS)
    assert len(examples[0]) == 300
    assert "sk-" not in examples[0]
