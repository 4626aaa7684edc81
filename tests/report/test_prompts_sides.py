"""Two prompts side by side: what moved, what changed within a line, what is left out."""

from __future__ import annotations

from whet.report.prompts_sides import Row, side_by_side


def told(rows: tuple[Row, ...]) -> list[tuple[str, str | None, str | None]]:
    return [
        (row.kind, row.left.text if row.left else None, row.right.text if row.right else row.note)
        for row in rows
    ]


def test_a_line_that_moves_is_marked_at_both_places() -> None:
    rows = side_by_side("Today\nA\nB\n", "A\nB\nToday\n")
    assert told(rows) == [
        ("moved", "Today", ""),
        ("same", "A", "A"),
        ("same", "B", "B"),
        ("moved", None, "Today"),
        ("same", "", ""),
    ]
    assert [row.left.number for row in rows if row.left] == [1, 2, 3, 4]
    assert [row.right.number for row in rows if row.right] == [1, 2, 3, 4]


def test_a_change_within_a_line_is_marked() -> None:
    [row] = side_by_side("You help in v1.2 only", "You help in v1.3 only")
    assert row.left is not None
    assert row.right is not None
    assert (row.left.head, row.left.mark, row.left.tail) == ("You help in v1.", "2", " only")
    assert row.right.mark == "3"


def test_a_blank_that_goes_is_seen() -> None:
    [row] = side_by_side("a ", "a")
    assert row.left is not None
    assert row.left.mark == "·"


def test_a_part_of_a_line_that_comes_elsewhere_is_moved() -> None:
    rows = side_by_side("Hi on 2026-11-20, friend\nRules", "Hi, friend\nRules\nDate: on 2026-11-20")
    changed, _, added = rows
    assert changed.left is not None
    assert (changed.left.mark, changed.left.moved) == (" on 2026-11-20", True)
    assert added.right is not None
    assert added.right.moved


def test_what_is_the_same_is_told_in_a_line() -> None:
    lines = [f"line {at}" for at in range(100)]
    after = [*lines[:50], "new", *lines[50:]]
    assert told(side_by_side("\n".join(lines), "\n".join(after))) == [
        ("skip", None, "48 lines the same"),
        ("same", "line 48", "line 48"),
        ("same", "line 49", "line 49"),
        ("added", None, "new"),
        ("same", "line 50", "line 50"),
        ("same", "line 51", "line 51"),
        ("skip", None, "48 lines the same"),
    ]


def test_at_most_so_many_rows() -> None:
    before = "\n".join(f"old {at}" for at in range(300))
    after = "\n".join(f"new {at}x" for at in range(500))
    rows = side_by_side(before, after, limit=80)
    assert len(rows) == 81
    assert rows[-1].note == "and so on, up to 420 more lines"


def test_a_huge_prompt_is_compared_in_part() -> None:
    before = "\n".join(f"old {at}" for at in range(5000))
    rows = side_by_side(before, before.replace("old", "new"), limit=10_000)
    assert rows[-1].note == "3,800 more lines not compared"


def test_long_lines_are_cut_around_the_difference() -> None:
    [row] = side_by_side("a" * 5000 + "X" + "b" * 5000, "a" * 5000 + "Y" + "b" * 5000)
    assert row.left is not None
    assert row.left.text == "…" + "a" * 60 + "X" + "b" * 60 + "… (4,940 more characters)"


def test_the_same_prompt_has_no_rows_and_secrets_are_not_shown() -> None:
    assert side_by_side("a\nb", "a\nb") == ()
    [row] = side_by_side("key sk-abcdefgh12345678 a", "key sk-abcdefgh12345678 b")
    assert row.left is not None
    assert row.left.head == "key [redacted] "
