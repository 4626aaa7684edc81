"""A load is a concurrency or a rate, in JSON as in memory."""

import pytest

from whet.core.errors import StorageError
from whet.core.load import Load, loads_words, trial_key
from whet.core.records.codec import decode, encode
from whet.core.records.decision import Finalists


@pytest.mark.parametrize(
    ("load", "data", "words", "key"),
    [
        (Load.at(2), {"concurrency": 2}, "concurrency 2", "awq--b002-t1"),
        (Load.rate(2), {"rate_rps": 2.0}, "2 req/s", "awq--r2-t1"),
    ],
)
def test_a_stored_load_says_which_of_the_two_it_is(
    load: Load, data: dict[str, float], words: str, key: str
) -> None:
    record = Finalists(cells=(("awq", load),))
    assert encode(record) == {"cells": [["awq", data]]}
    assert decode(Finalists, encode(record)) == record
    assert (load.words, trial_key("awq", load, 1)) == (words, key)


@pytest.mark.parametrize("data", [2, 2.0, {}, {"concurrency": 2, "rate_rps": 2.0}])
def test_what_is_not_one_load_is_not_read(data: object) -> None:
    with pytest.raises(StorageError, match="a stored Load cannot be read"):
        decode(Load, data)


def test_loads_have_an_order_and_the_same_number_is_two_loads() -> None:
    loads = [Load.rate(2), Load.at(16), Load.rate(0.5), Load.at(2)]
    assert sorted(set(loads)) == [Load.at(2), Load.at(16), Load.rate(0.5), Load.rate(2)]
    assert loads_words(sorted(loads)[:2]) == "concurrency 2, 16"
