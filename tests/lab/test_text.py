"""The generator: same text everywhere, splits that share nothing, answers that are right."""

from __future__ import annotations

import json
import re

import pytest
from lab.inputs import generate
from lab.text import documents, split_of
from lab.text.words import FIRST_NAMES, LAST_NAMES

from whet.data import NAMES, Name, read_text


def _names(split: str) -> set[str]:
    chosen = "train" if split == "train" else "heldout"
    text = "\n".join(
        message.content for chat in documents(3, 150, chosen) for message in chat.messages()
    )
    pairs = re.findall(r"\b([A-Z][a-z]+ [A-Z][a-z]+)\b", text)
    return {p for p in pairs if p.split()[0] in FIRST_NAMES and p.split()[1] in LAST_NAMES}


def test_same_seed_gives_the_same_chats_and_another_seed_others() -> None:
    assert list(documents(5, 20, "train")) == list(documents(5, 20, "train"))
    assert list(documents(5, 20, "train")) != list(documents(6, 20, "train"))


def test_no_customer_occurs_in_both_splits() -> None:
    train, heldout = _names("train"), _names("heldout")
    assert len(train) > 50
    assert len(heldout) > 50
    assert not train & heldout


def test_split_follows_the_crc_of_the_spelling() -> None:
    # CRC-32 of "123456789" is 0xCBF43926 (the check value of every CRC catalogue); 0x26 % 8 == 6.
    assert split_of("123456789") == "train"


def test_sums_are_right() -> None:
    sums = 0
    for chat in documents(1, 300, "heldout"):
        for item in chat.exchanges:
            if match := re.fullmatch(r"What is (\d+) ([+-]) (\d+)\?", item.user):
                first, sign, second = int(match[1]), match[2], int(match[3])
                if item.reply.isdigit():
                    assert int(item.expected) == (first + second if sign == "+" else first - second)
                    sums += 1
    assert sums > 3


def test_extracted_names_are_in_the_ticket() -> None:
    tickets = [
        item
        for chat in documents(2, 200, "train")
        for item in chat.exchanges
        if item.task == "json_extraction" and '"order"' in item.expected
    ]
    assert len(tickets) > 20
    for item in tickets:
        answer = json.loads(item.expected)
        assert answer["order"]["id"] in item.user
        assert all(line["product"] in item.user for line in answer["order"]["items"])


@pytest.fixture(scope="module")
def generated() -> dict[Name, bytes]:
    return generate(seed=0)


@pytest.mark.parametrize("name", NAMES)
def test_the_built_in_files_are_what_the_generator_writes(
    generated: dict[Name, bytes], name: Name
) -> None:
    assert generated[name] == read_text(name), "run make data"


def test_another_seed_gives_other_calibration_text(generated: dict[Name, bytes]) -> None:
    assert generate(seed=1)["calibration"] != generated["calibration"]
