"""Every page of docs/ is in the site's menu, and none begins with code internals."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
FOR_PROGRAMMERS = ("add-a", "python")
"""Pages that are about code may begin with it."""
INTERNALS = re.compile(
    r"\)\s*->\s*\w"  # a signature
    r"|`[a-z_]+\((?:\w+[,):=*]|\))"  # a call in code
    r"|\b(?:src/whet|flow|levers|engines|report|load|quant|client|core)/[\w/]*\.py"
    r"|`[a-z_]+\.py`|\bwhet\.[a-z]+\.[a-z]"
)
FIRST = 12


def menu(entry: object) -> list[str]:
    """The pages of a part of the menu."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in menu(part)]  # type: ignore[attr-defined]


def test_every_page_is_in_the_menu_once() -> None:
    site = tomllib.loads((REPOSITORY / "zensical.toml").read_text(encoding="utf-8"))
    assert sorted(menu(site["project"]["nav"])) == PAGES


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith(FOR_PROGRAMMERS)])
def test_a_page_begins_with_what_a_reader_does(page: str) -> None:
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()[:FIRST]
    assert not [line for line in lines if INTERNALS.search(line)], page


@pytest.mark.parametrize(
    "line",
    [
        "`quantize(source, out, recipe, calibration=…)` turns a checkpoint into",
        "measure_quality(server_url, model, QualityPlan(…)) -> Measured(record, plain)",
        "1. **Check** (`flow/run/check/check.py`). The spec is read",
        "- `wire.py` is the hot path.",
        "from whet.flow.run.options import RunOptions",
    ],
)
def test_internals_are_recognized(line: str) -> None:
    assert INTERNALS.search(line)
