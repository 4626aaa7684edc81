"""A switch of script or language is seen; a healthy answer that is merely new is not."""

import pytest

from whet.quality.language import find_switch, read_language

ENGLISH = [
    "Dear Ms Meier, thank you for your message. The lamp is on its way and comes on Friday.",
    "Dear Mr Costa, we are sorry that the chair came late. Your money is on its way to you.",
    "Thank you for the order. The kettle comes in three days and we will write to you again.",
    "We are sorry to hear that. The code of the lamp is on the box, and it has four letters.",
    "Your order is not late: it comes on Monday. Thank you for your message, and for the order.",
    "The chair has three legs and the table has four. The box is for the lamp, not for these.",
    "Yes, we will take it back. Write the code on the box and we will come for it on Friday.",
    "No, the money is not lost. It is on its way to you, and you will have it in three days.",
]
GERMAN = (
    "Guten Tag Frau Meier, vielen Dank für Ihre Nachricht. Die Lampe ist unterwegs und kommt "
    "am Freitag. Bitte melden Sie sich, wenn etwas fehlt."
)
FRENCH = (
    "Bonjour Madame Meier, merci pour votre message. La lampe est en route et elle arrive "
    "vendredi. Je vous prie de nous écrire si une pièce manque."
)
RUSSIAN = "Лампа уже в пути и придёт в пятницу."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("灯将在星期五从波尔图发货", "12 of 12 letters are Han"),
        (RUSSIAN, "28 of 28 letters are Cyrillic"),
        ("ランプはきんようびにとどきます", "15 of 15 letters are Kana"),
        ("램프는 금요일에 도착합니다", "12 of 12 letters are Hangul"),
        ("يصل المصباح يوم الجمعة", "19 of 19 letters are Arabic"),
        ("The lamp comes, лампа", "5 of 17 letters are Cyrillic"),
    ],
)
def test_another_script_is_named_with_its_letters(text: str, words: str) -> None:
    assert find_switch(text, read_language(ENGLISH)) == words


@pytest.mark.parametrize(
    "text",
    [
        "The lamp comes from Łódź, for Ms Müller-Ångström, on Friday.",
        "It is 5 μm thin, and the angle α is small; the lamp is fine.",
        "One word of Greek, λάμπα, in a long sentence about the lamp and the box is a quotation.",
        "Ω",
        "12.50 €, 3 × 4, → 7",
        "ＤＥＡＲ Ｍｓ Ｍｅｉｅｒ",
    ],
)
def test_signs_names_and_a_quotation_are_no_switch(text: str) -> None:
    assert find_switch(text, read_language(ENGLISH)) is None


def test_a_script_that_prompts_or_answers_use_is_none_to_wonder_at() -> None:
    assert find_switch("Лампа уже в пути", read_language(ENGLISH)) is not None
    assert find_switch("Лампа уже в пути", read_language(ENGLISH, ["Переведи"])) is None
    assert find_switch("Лампа уже в пути", read_language([*ENGLISH, "Да"])) is None


def test_a_stray_answer_among_hundreds_permits_nothing() -> None:
    expected = read_language([*ENGLISH * 25, RUSSIAN])
    assert find_switch(RUSSIAN, expected) is not None
    assert find_switch(RUSSIAN, expected, own=True) is not None, "it counts on both sides"


def test_letters_of_two_scripts_in_one_word() -> None:
    both = read_language([*ENGLISH, "Лампа в пути, она придёт в пятницу"])
    broken = "Лаmpа в puти, она priдёт in пятniцу"
    assert find_switch(broken, both) == "letters of two scripts in one word"
    assert find_switch("Лампа Porto в пути, the lamp comes в пятницу", both) is None
    assert find_switch(broken, read_language([*ENGLISH, broken])) is None, "its own way"


@pytest.mark.parametrize(
    "text", ["新しいiPhoneケースを見ました", "微信Pay支付成功了", "K팝을 좋아해요"]
)
def test_scripts_that_share_words_freely_are_left_alone(text: str) -> None:
    assert find_switch(text, read_language([text + "!"])) is None


@pytest.mark.parametrize("text", [GERMAN, FRENCH])
def test_another_language_of_the_same_script(text: str) -> None:
    said = find_switch(text, read_language(ENGLISH))
    assert said is not None
    assert said.endswith("words are among the baseline's")


def test_each_healthy_answer_passes_against_the_others() -> None:
    expected = read_language(ENGLISH)
    assert [find_switch(text, expected, own=True) for text in ENGLISH] == [None] * len(ENGLISH)


def test_an_answer_is_not_vouched_for_by_itself() -> None:
    expected = read_language([*ENGLISH * 3, GERMAN])
    assert find_switch(GERMAN, expected) is None, "one of 25 answers is German"
    assert find_switch(GERMAN, expected, own=True) is not None


def test_a_short_answer_is_not_judged_by_its_words() -> None:
    assert find_switch("Sofa, Schrank, Regal, Lampe", read_language(ENGLISH)) is None


def test_a_sample_that_does_not_know_its_own_words_leaves_them_out() -> None:
    letters = "abcdefghijklmnopqrst"
    varied = [" ".join(a + b + "x" for b in letters) for a in letters]
    expected = read_language(varied)
    assert expected.words is None
    assert find_switch(GERMAN, expected) is None
    assert find_switch(RUSSIAN, expected) is not None, "scripts are still told apart"
