"""Which difference a loss is put down to."""

from __future__ import annotations

from array import array

from whet.prefix.causes import Losses, Reading
from whet.prefix.turns import Turns
from whet.prefix.units import chain


def reading(raw: list[int], canon: list[int], kinds: list[str], at_ns: int = 0) -> Reading:
    """Each piece of 100 characters, 25 tokens."""
    return Reading(
        at_ns=at_ns, raw=array("Q", chain(raw)), canon=array("Q", chain(canon)),
        units=array("Q", canon), kinds=tuple(kinds), where=("the system message",) * len(raw),
        lengths=array("Q", [100] * len(raw)), messages=(),
        characters=100 * len(raw), tokens=25 * len(raw),
    )  # fmt: skip


def test_the_first_piece_that_is_new_as_sent_and_known_in_its_form_is_the_cause() -> None:
    losses = Losses(16)
    kinds = ["whitespace", "date", "id", "whitespace"]
    assert (
        losses.judge(reading([1, 2, 3, 4], [1, 9, 8, 4], kinds), index=0, hits=0, mended=0) is None
    )
    loss = losses.judge(reading([1, 5, 6, 4], [1, 9, 8, 4], kinds), index=1, hits=16, mended=96)
    assert loss is not None
    assert (loss.kind, loss.tokens) == ("date", 80)
    loss = losses.judge(reading([1, 2, 7, 4], [1, 9, 8, 4], kinds), index=2, hits=48, mended=96)
    assert loss is not None
    assert (loss.kind, loss.tokens) == ("id", 48)


def test_less_than_a_block_is_no_loss() -> None:
    losses = Losses(16)
    losses.judge(reading([1, 2], [9, 2], ["date", "whitespace"]), index=0, hits=0, mended=0)
    told = reading([3, 2], [9, 2], ["date", "whitespace"])
    assert losses.judge(told, index=1, hits=32, mended=47) is None


def test_an_edit_counts_once_and_says_since_when() -> None:
    losses = Losses(16)
    kinds = ["whitespace"] * 4
    for index in range(6):
        text = [1, 2, 3, 4] if index < 3 else [1, 7, 3, 4]
        losses.judge(reading(text, text, kinds, at_ns=index), index=index, hits=0, mended=0)
    ((key, tally),) = losses.settle().items()
    assert key == ("changed", "the system message")
    assert (tally.requests, tally.tokens, tally.since_ns) == (1, 48, 3)  # 50 tokens after it


def test_two_versions_side_by_side_are_no_edit() -> None:
    losses = Losses(16)
    for index in range(6):
        text = [1, 2 + index % 2, 4, 5]
        told = reading(text, text, ["whitespace"] * 4)
        losses.judge(told, index=index, hits=0, mended=0)
    ((key, tally),) = losses.settle().items()
    assert key[0] == "varying"
    assert (tally.requests, tally.since_ns) == (1, None)


def test_messages_that_moved_forward_were_cut() -> None:
    turns = Turns()
    told = [(each, 10) for each in range(12)]
    assert [turns.add(7, told[:count]) for count in (3, 5)] == [0, 0]
    assert turns.add(7, told[2:7]) == 30  # three of its five messages are known further on
    assert turns.add(7, told[2:9]) == 0  # it grows from there
    assert turns.add(8, told[4:9]) == 0  # other instructions
