"""Foreign text and tables in Markdown: nothing in them is taken for mark-up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from whet.report.text import clean, one_line

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~$])")


def safe(text: str) -> str:
    """``text`` on one line, with no Markdown or HTML meaning."""
    return _SPECIAL.sub(r"\\\1", one_line(text))


def fenced(text: str, language: str = "text") -> str:
    """``text`` in a code fence that is longer than any run of backticks in it."""
    body = clean(text)
    longest = max((len(run) for run in re.findall("`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{body}\n{fence}"


def table(heads: Sequence[str], lines: Iterable[Sequence[str]], *, left: int = 1) -> Iterator[str]:
    """A Markdown table; the first ``left`` columns read from the left, the others are figures."""
    yield f"| {' | '.join(heads)} |"
    yield "|" + "|".join("---" if at < left else "--:" for at in range(len(heads))) + "|"
    for line in lines:
        yield f"| {' | '.join(line)} |"
    yield ""
