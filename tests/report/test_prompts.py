"""``print_prompts``: at 80 columns, with texts that would like to be mark-up."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from tests.report.prompts_factory import empty, plain, redacted, unlucky, whole
from whet.core.records import PromptAnalysis
from whet.report.prompts import print_prompts

Maker = Callable[[], PromptAnalysis]


def printed(analysis: PromptAnalysis, width: int = 80, *, colour: bool = False) -> str:
    out = io.StringIO()
    print_prompts(analysis, Console(file=out, width=width, force_terminal=colour))
    return out.getvalue()


@pytest.mark.parametrize("make", [plain, whole, redacted, empty, unlucky])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_analysis_fits_the_width(make: Maker, width: int) -> None:
    lines = printed(make(), width).splitlines()
    assert lines
    assert max(map(len, lines)) <= width


def test_it_tells_causes_excerpts_proposals_replays_and_what_is_left_out() -> None:
    out = printed(whole(), 160)
    assert "61.2% again as the traffic is" in out
    assert "1. white space: Take the trailing blank out." in out
    assert "…You help. Today is [2026-11-20 | 2026-11-19]. Answer⏎briefly…" in out
    assert "…You help.··[·⏎ | ⏎]→Rules" in out
    assert "3,220 tokens, 3.2 s" in out
    assert "-3.4 pt" in out
    assert "repaired: Two requests ran at once [/]." in out
    assert "left out: 3 × a torn line (first: log.jsonl:7)" in out


def test_text_of_prompts_is_no_markup_and_sends_no_escape_code() -> None:
    out = printed(whole(), 300)
    assert "<script>alert(1)</script> [bold]x[/] [/] :smile:" in out
    assert "\x1b" not in out
    assert "\u202e" not in out
    coloured = printed(whole(), 300, colour=True)
    assert "\x1b[31m\u202e" not in coloured
    assert "\x1b[1;31m2026-11-20\x1b[0m" in coloured
    assert "\x1b[1;32m2026-11-19\x1b[0m" in coloured


def test_without_a_speed_there_is_no_column_of_ttft() -> None:
    assert "mean TTFT" in printed(whole())
    assert "TTFT" not in printed(plain())


def test_redacted_prints_no_text() -> None:
    out = printed(redacted())
    assert out.count("(redacted)") == 2
    assert "Today" not in out


def test_nothing_found_is_said() -> None:
    assert "No cause was found that keeps requests from sharing." in printed(unlucky())
