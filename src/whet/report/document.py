"""What a report consists of. Sections yield these nodes; every writer walks the same document."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from whet.core.records.summary import Estimate
from whet.report.text import DASH, Shown, shown

if TYPE_CHECKING:
    from whet.metrics.metric import Metric

Tone = Literal["plain", "good", "bad", "warn", "muted", "struck", "strong"]
"""``struck`` is a figure that does not count, ``muted`` what matters less."""
_GOOD: Final = ("proved", "pass", "met", "better", "complete", "recommended", "available")
_BAD: Final = ("contradicted", "fail", "missed", "worse", "failed", "not available here")
_WARN: Final = ("unproved", "accepted", "unknown", "undecided", "interrupted", "slow", "doubtful")
_TONES: Final[dict[str, Tone]] = {
    **dict.fromkeys((*_GOOD, "adopted"), "good"),
    **dict.fromkeys((*_BAD, "wrong answers"), "bad"),
    **dict.fromkeys((*_WARN, "misses"), "warn"),
    **dict.fromkeys(("no difference", "not known here"), "muted"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One field of a table. ``detail`` is a second, smaller line."""

    text: str
    tone: Tone = "plain"
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column of a table. Figures are aligned to the right.

    A narrow console leaves out columns by ``drop``, highest first; 0 always stays.
    """

    name: str
    unit: str = ""
    figure: bool = False
    drop: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of a table; ``tone`` holds for its cells that have none of their own."""

    cells: Sequence[Cell]
    tone: Tone = "plain"


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table with a caption. ``details`` shows the second lines of figures on a console too."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    details: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Heading:
    """A heading within a section."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Paragraph:
    """A paragraph."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bullets:
    """A list of sentences."""

    items: Sequence[str]
    tone: Tone = "plain"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """A figure of a headline: its name, its value with an interval, and what to hold it against."""

    name: str
    value: Shown
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Headline figures side by side."""

    items: Sequence[Fact]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """A chart. ``description`` says what it shows, ``picture`` gives it as Vega-Lite.

    ``choice`` has the data of the page's limit: another limit names another cell.
    """

    name: str
    title: str
    description: str
    picture: Callable[[], dict[str, Any]]
    choice: Mapping[str, Any] | None = None

    @property
    def file_name(self) -> str:
        """``name`` as a file name of plain characters."""
        return f"{re.sub('[^a-z0-9]+', '-', self.name.lower()).strip('-')}.svg"


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """Text that is shown as it is."""

    text: str
    language: str = "text"


@dataclass(frozen=True, kw_only=True, slots=True)
class Folded:
    """Details behind a summary."""

    summary: str
    nodes: Sequence[Node]
    is_open: bool = False


Node = Heading | Paragraph | Bullets | Facts | Table | Chart | Code | Folded


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the report. The navigation has one entry a ``group``, to its first section.

    ``on_console`` prints it at the end of a run; the files have every section.
    """

    id: str
    title: str
    group: str
    nodes: Sequence[Node]
    tone: Tone = "plain"
    on_console: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A whole report. ``facts`` is one line below the title."""

    title: str
    facts: Sequence[str]
    sections: Sequence[Section]
    tags: Sequence[tuple[str, Tone]] = ()

    @property
    def navigation(self) -> dict[str, str]:
        """The first section's id of each group, in order."""
        firsts: dict[str, str] = {}
        for section in self.sections:
            firsts.setdefault(section.group, section.id)
        return firsts


def text_cell(value: object, tone: Tone = "plain", detail: str = "") -> Cell:
    """A cell of any value; None is a dash."""
    return Cell(text=DASH if value is None or value == "" else str(value), tone=tone, detail=detail)


def tone_of(word: str) -> Tone:
    """The tone of an outcome, verdict or status."""
    return _TONES.get(word.partition(":")[0], "plain")


def verdict_cell(word: str | None) -> Cell:
    """An outcome, verdict or status in its tone; None is a dash."""
    return text_cell(word, tone=tone_of(word or ""))


def figure_cell(
    value: Estimate | float | Shown | None, *, unit: str = "", tone: Tone = "plain"
) -> Cell:
    """A figure with its interval as the second line; one that is not certain carries a ``?``."""
    item = value if isinstance(value, Shown) else shown(value, unit=unit)
    return Cell(text=item.marked, tone=tone, detail=item.interval)


def figure_columns(*heads: str | tuple[str, str]) -> tuple[Column, ...]:
    """Columns of figures from names or (name, unit) pairs."""
    pairs = ((head, "") if isinstance(head, str) else head for head in heads)
    return tuple(Column(name=name, unit=unit, figure=True) for name, unit in pairs)


def metric_column(metric: Metric) -> Column:
    """The column of a metric."""
    return Column(name=metric.heading, unit=metric.unit, figure=True, drop=metric.drop)


def table(
    caption: str,
    columns: Iterable[Column | str],
    rows: Iterable[Row | Iterable[object]],
    *,
    details: bool = False,
) -> Table:
    """A table of plain values: a name is a column of words, any value becomes a cell."""
    return Table(
        caption=caption,
        details=details,
        columns=[each if isinstance(each, Column) else Column(name=each) for each in columns],
        rows=[each if isinstance(each, Row) else row(each) for each in rows],
    )


def row(values: Iterable[object], tone: Tone = "plain") -> Row:
    """A row of cells, estimates, figures and texts; None is a dash."""
    return Row(cells=[_cell(value) for value in values], tone=tone)


def _cell(value: object) -> Cell:
    if isinstance(value, Cell):
        return value
    return figure_cell(value) if isinstance(value, Estimate | Shown) else text_cell(value)
