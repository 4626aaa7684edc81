"""prompts.html, prompts.md, causes.csv and curve.csv."""

from __future__ import annotations

import csv
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.report.prompts_factory import empty, plain, redacted, unlucky, whole
from whet.core.records import PromptAnalysis
from whet.report.prompts_files import CAUSE_COLUMNS, CURVE_COLUMNS, write_prompts

Maker = Callable[[], PromptAnalysis]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class Tags(HTMLParser):
    """Every tag that a browser would see, and whether each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def tags_of(page: str) -> Tags:
    made = Tags()
    made.feed(page)
    return made


@pytest.mark.parametrize("make", [plain, whole, redacted, empty, unlucky])
def test_every_analysis_is_written_whole(make: Maker, tmp_path: Path) -> None:
    write_prompts(make(), tmp_path / "new")
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == ["causes.csv", "curve.csv", "prompts.html", "prompts.md"]
    page = (tmp_path / "new" / "prompts.html").read_text()
    assert page.rstrip().endswith("</html>")
    assert "How it is counted" in page


def test_causes_are_rows_with_their_first_excerpt(tmp_path: Path) -> None:
    write_prompts(whole(), tmp_path)
    space, date, odd = rows_of(tmp_path / "causes.csv")
    assert tuple(space) == CAUSE_COLUMNS
    assert (space["kind"], space["requests"], space["tokens"]) == ("whitespace", "2", "3000")
    assert (space["share"], space["since"]) == ("0.3", "2026-11-20 09:30 UTC")
    assert (space["here"], space["there"]) == ("·⏎", "⏎")
    assert (date["place"], date["other_place"], date["token"]) == (
        "log.jsonl:12",
        "log.jsonl:3",
        "21",
    )
    assert (date["here"], date["since"]) == ("2026-11-20", "")
    assert (odd["cause"], odd["place"]) == ("moon", "")


def test_the_curve_is_a_row_a_point(tmp_path: Path) -> None:
    write_prompts(plain(), tmp_path)
    rows = rows_of(tmp_path / "curve.csv")
    assert tuple(rows[0]) == CURVE_COLUMNS
    assert [row["traffic"] for row in rows] == ["as_is"] * 3 + ["repaired"] * 3
    assert list(rows[1].values()) == ["as_is", "64", "1024", "3200", "10000", "0.32"]
    write_prompts(empty(), tmp_path)
    assert rows_of(tmp_path / "curve.csv")[0]["hit_rate"] == ""


def test_the_page_keeps_text_of_prompts_text(tmp_path: Path) -> None:
    write_prompts(whole(), tmp_path)
    page = (tmp_path / "prompts.html").read_text()
    seen = tags_of(page)
    assert "script" not in seen.seen
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert '<mark class="mine">2026-11-20</mark> | <mark class="other">2026-11-19</mark>' in page
    assert page.count("moved away</em>") == page.count("moved here</em>") == 1
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    for part in ("tree", "size", "causes", "proposals", "replays", "left-out", "method"):
        assert f'id="{part}"' in page


def test_markdown_has_the_tables_and_fences_that_nothing_closes(tmp_path: Path) -> None:
    write_prompts(whole(), tmp_path)
    text = (tmp_path / "prompts.md").read_text()
    assert "| dates and times | the system message | 3 | 1,200 | 12.0% |" in text
    assert "…You help. Today is [2026-11-20 | 2026-11-19]. Answer⏎briefly…" in text
    assert "\n< Today is 2026-11-20.\n" in text
    assert "\n> Today is 2026-11-20.\n" in text
    assert "- a·\n+ a\n  b\n" in text
    assert "| repaired | 10 | 93.4% | 90.0% | -3.4 pt | – |" in text
    assert "- 3 × a torn line (first: log.jsonl:7)" in text
    outside = "".join(part for at, part in enumerate(text.split("```")) if at % 2 == 0)
    assert "<script" not in outside.replace("\\<script", "")


def test_nothing_of_a_prompt_is_written_under_redaction(tmp_path: Path) -> None:
    write_prompts(redacted(), tmp_path)
    for path in tmp_path.iterdir():
        text = path.read_text()
        for piece in ("Today", "2026-11-19", "You help", "alert", "rule 0"):
            assert piece not in text, (path.name, piece)
    assert "(redacted)" in (tmp_path / "prompts.html").read_text()
    assert (tmp_path / "prompts.md").read_text().count("(redacted)") == 4
    assert rows_of(tmp_path / "causes.csv")[0]["here"] == ""


def test_an_empty_log_has_a_page_without_pictures(tmp_path: Path) -> None:
    write_prompts(empty(), tmp_path)
    page = (tmp_path / "prompts.html").read_text()
    assert "No prompt has a token to draw." in page
    assert "There is no cache size to draw." in page
    assert 'id="proposals"' not in page
