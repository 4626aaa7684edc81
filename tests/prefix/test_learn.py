"""What a sample of requests teaches."""

from __future__ import annotations

from tests.prefix.scenarios import BODY, RULES, name
from whet.core.records import LoggedRequest
from whet.prefix.learn import Rules, cut, learn, unit_hash


def requests(*texts: str) -> list[LoggedRequest]:
    return [
        LoggedRequest(place=f"log:{i}", messages=({"role": "system", "content": text},))
        for i, text in enumerate(texts)
    ]


def test_a_text_is_cut_at_lines_json_and_the_sentences_of_long_lines() -> None:
    assert cut("One.\n  two\n\nThree: ") == ["One.\n  two\n\n", "Three: "]
    told = cut('Now {"shop": "Lumen", "n": 1} is it.\nEnd')
    assert told == ["Now ", '{"shop": "Lumen", "n": 1}', " is it.\n", "End"]
    long = " ".join(["This is a sentence of some length."] * 20)
    assert len(cut(long)) == 20
    assert "".join(cut(long)) == long


def test_a_unit_is_known_whatever_its_date_blanks_or_order_of_keys() -> None:
    assert unit_hash("On 2026-01-02,  all.\n") == unit_hash("On 2027-03-04, all. \n\n")
    assert unit_hash('{"name": 1, "place": 2}') == unit_hash('{"place": 2, "name": 1}')
    assert unit_hash("On 2026-01-02, all.") != unit_hash("On 2026-01-02, none.")


def test_what_varies_is_cut_out_of_what_stays() -> None:
    rules = learn(requests(*(f"You talk to {name(i)}, be kind.\n{BODY}" for i in range(8))))
    (frame,) = rules.frames
    assert (frame.before, frame.after, frame.kind) == ("You talk to ", ", be kind.\n", "name")
    assert unit_hash(f"{RULES[0]}\n") in rules.stable


def test_units_move_only_where_requests_that_begin_the_same_have_them_in_either_order() -> None:
    one, two = (f"{rule} {rule}\n" for rule in RULES[:2])
    both = (f"Start.\n{one}{two}End.", f"Start.\n{two}{one}End.")
    assert set(learn(requests(*both * 4)).rank) == {unit_hash(one), unit_hash(two)}
    apps = (f"This app.\n{one}{two}End.", f"Another.\n{two}{one}End.")
    assert learn(requests(*apps * 4)).rank == {}


def test_few_requests_teach_nothing() -> None:
    assert learn([]) == Rules()
    assert learn(requests(BODY, BODY)).stable == frozenset()
