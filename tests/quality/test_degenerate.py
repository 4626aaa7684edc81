"""Text that no healthy model writes, and text that only looks like it."""

import random
from collections.abc import Sequence

import pytest
from benchmarks.degenerate_text import FINE, LOOP, Traffic, Unit, verdicts_of

from whet.core.records.quality_checks import DegenerateTraffic
from whet.quality.degenerate import TimedAnswer, degenerate, examine_traffic, find_fault

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


def answers(*texts: str, trial: str = "b1-t0", first: int = 0) -> list[TimedAnswer]:
    """One answer to each of some prompts."""
    return [
        TimedAnswer(prompt=number, request=(trial, number), text=text)
        for number, text in enumerate(texts, start=first)
    ]


def loops(count: int, of: int) -> list[str]:
    return [LOOP] * count + [FINE] * (of - count)


def examine(
    here: Sequence[TimedAnswer], there: Sequence[TimedAnswer], *, ends: Sequence[str] = ()
) -> DegenerateTraffic:
    """The record of a variant next to one baseline."""
    _, record = examine_traffic({"fp16": there, "v": here}, "fp16", ends=ends)
    return record


# Of k prompts whose difference has one sign, one-sided p is 2⁻ᵏ: 0.008 at seven, 0.004 at eight.
@pytest.mark.parametrize(("count", "verdict"), [(4, "pass"), (7, "unknown"), (8, "fail")])
def test_it_fails_at_a_p_below_one_in_two_hundred(count: int, verdict: str) -> None:
    record = examine(answers(*loops(count, 40)), answers(*loops(0, 40)))
    assert record.p_value == pytest.approx(2**-count)
    assert (record.baseline_share, record.verdict) == (0.0, verdict)


def test_answers_to_one_prompt_are_one_unit() -> None:
    """A prompt after which the variant loops in each of nine trials shows one difference."""
    here, there = list[TimedAnswer](), list[TimedAnswer]()
    for trial in range(9):
        here += answers(*loops(3, 20), trial=f"b1-t{trial}")
        there += answers(*loops(0, 20), trial=f"b1-t{trial}")
    record = examine(here, there)
    assert (record.answers, record.found) == (180, (("loop", 27),))
    assert record.p_value == pytest.approx(2**-3)
    assert record.verdict == "pass"


def test_a_share_of_a_prompts_answers_counts_as_a_share() -> None:
    """Loops of other prompts in each trial cancel; those that are added do not."""
    here, there = list[TimedAnswer](), list[TimedAnswer]()
    for trial in range(6):
        flipped = [LOOP if number % 6 == trial else FINE for number in range(60)]
        there += answers(*flipped, trial=f"b1-t{trial}")
        here += answers(*flipped[::-1], *loops(9, 9), trial=f"b1-t{trial}")
        there += answers(*loops(0, 9), trial=f"b1-t{trial}", first=60)
    record = examine(here, there)
    assert record.baseline_share == pytest.approx(10 / 69)
    assert record.verdict == "fail"


def test_all_variants_of_a_run_share_one_error_rate() -> None:
    bad, good = answers(*loops(8, 40)), answers(*loops(0, 40))
    alone = examine_traffic({"fp16": good, "v": bad}, "fp16")
    among = examine_traffic({"fp16": good, "v": bad, "w": good, "x": good}, "fp16")
    assert [record.verdict for record in alone] == ["pass", "fail"]
    assert [record.verdict for record in among] == ["pass", "unknown", "pass", "pass"]


def test_other_loads_are_compared_prompt_by_prompt_too() -> None:
    there = answers(*loops(10, 40), trial="r1-t0")
    same = examine(answers(*loops(10, 40), trial="r2-t0"), there)
    assert (same.p_value, same.verdict) == (1.0, "pass")
    assert examine(answers(*loops(20, 40), trial="r2-t0"), there).verdict == "fail"


def test_without_common_prompts_two_draws_of_prompts_are_compared() -> None:
    there = answers(*loops(2, 40), trial="r1-t0")
    few = examine(answers(*loops(4, 40), trial="r2-t0", first=100), there)
    many = examine(answers(*loops(20, 40), trial="r2-t0", first=100), there)
    assert (few.verdict, many.verdict) == ("pass", "fail")


def test_a_difference_that_is_certain_but_small_does_not_fail() -> None:
    record = examine(answers(*loops(9, 1000)), answers(*loops(0, 1000)))
    assert record.p_value is not None
    assert record.p_value < 0.005
    assert record.verdict == "pass", "0.9 points"


def test_loops_that_the_baseline_has_too_are_its_own() -> None:
    base, record = examine_traffic(dict.fromkeys(("fp16", "v"), answers(*loops(38, 40))), "fp16")
    assert (base.answers, base.found, base.verdict) == (40, (("loop", 38),), "pass")
    assert record.verdict == "pass"


@pytest.mark.parametrize("text", [MARKS, " "])
def test_a_model_that_says_nothing_fails_next_to_any_baseline(text: str) -> None:
    broken, half = answers(*[text] * 9, FINE), answers(*[text] * 5, *[FINE] * 5)
    for there, verdict in ((broken, "fail"), (half, "pass")):
        records = examine_traffic({"fp16": there, "v": there}, "fp16")
        assert [record.verdict for record in records] == [verdict] * 2
    assert examine(broken, answers(*loops(0, 10))).verdict == "fail"


def test_few_prompts_on_either_side_are_unknown() -> None:
    assert examine(answers(*[MARKS] * 7), answers(*loops(0, 40))).verdict == "unknown"
    assert examine(answers(*loops(0, 8)), answers(*loops(0, 7))).verdict == "unknown"
    again = [each for trial in range(9) for each in answers(*[MARKS] * 7, trial=f"b1-t{trial}")]
    assert examine(again, answers(*loops(0, 40))).verdict == "unknown", "63 answers, 7 prompts"
    nothing = examine([], [])
    assert (nothing.verdict, nothing.p_value, nothing.baseline_share) == ("unknown", None, None)
    [alone] = examine_traffic({"v": answers(*loops(0, 40))}, "fp16")
    assert alone.verdict == "unknown", "the baseline was not timed"


def test_what_is_forced_past_the_end_token_is_no_answer() -> None:
    forced = answers(*[FINE + "</s>" + "I am sorry. " * 12] * 10)
    assert examine(forced, answers(*loops(0, 10))).verdict == "fail"
    record = examine(forced, answers(*loops(0, 10)), ends=("<|x|>", "</s>"))
    assert (record.found, record.verdict) == ((), "pass")


def test_an_end_token_at_once_is_empty_but_not_a_broken_model() -> None:
    at_once = answers(*["</s>" + FINE] * 10)
    record = examine(at_once, at_once, ends=("</s>",))
    assert (record.found, record.verdict) == ((("empty", 10),), "pass")
    assert examine(at_once, answers(*loops(0, 10)), ends=("</s>",)).verdict == "fail", "2⁻¹⁰"


def test_the_reason_tells_counts_and_the_first_fault() -> None:
    record = examine(answers(*loops(9, 10)), answers(*loops(1, 10)))
    assert record.verdict == "fail"
    assert record.reason == (
        "9 of 10 timed answers are degenerate text: 90.0% against the baseline's 10.0% "
        "(sign-flip test over 10 prompts, p 0.0039 after Holm); "
        "the first: 'I am sorry.' repeated 10 times"
    )


def test_a_secret_in_a_loop_is_starred_in_the_reason() -> None:
    text = ("key sk-" + "a1" * 20 + " ") * 10
    reason = examine(answers(*[text] * 9), answers(*loops(1, 9))).reason
    assert reason is not None
    assert "a1" not in reason
    assert reason.endswith("*' repeated 9 times")


def test_three_examples_are_kept_starred_and_cut() -> None:
    key = "sk-" + "a1" * 20
    secret = "x" * 250 + " " + key + " " + "I am sorry. " * 60
    texts = [secret, "", LOOP, LOOP, MARKS, "So: " + "dear me, " * 12, *[FINE] * 4]
    examples = examine(answers(*texts), answers(*loops(0, 10))).examples
    assert examples[1:] == (LOOP, MARKS)
    assert len(examples[0]) == 300
    assert "sk-" not in examples[0]


@pytest.mark.parametrize("unit", ["answer", "load", "start", "server"])
def test_a_model_that_loops_is_not_excluded_against_itself(unit: Unit) -> None:
    """The promise is 1% of runs. Counted as answers, 30% of the runs of the last kind exclude."""
    traffic = Traffic(prompts=20, variants=3, loops=0.3, flips=0.3, flipped=unit)
    failed = sum("fail" in verdicts for verdicts in verdicts_of(traffic, 100))
    assert failed <= 4  # P is 0.003 at a rate of 1%


def test_added_loops_are_found() -> None:
    traffic = Traffic(prompts=100, variants=2, loops=0.2, flips=0.1, added=0.2)
    verdicts = verdicts_of(traffic, 20)
    assert sum(each == "fail" for _, each in verdicts) >= 18
    assert not any(each == "fail" for each, _ in verdicts)
