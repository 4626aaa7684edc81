"""The table of model families is that of the zoo, the recipes and the results."""

from __future__ import annotations

from scripts.docs_models import PAGE, page


def test_the_committed_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: make reference"
