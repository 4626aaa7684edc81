"""The table of schemes in words and figures, once for the console and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from whet.core.format import number, percent, plural
from whet.core.records import QuantizedCheckpoint, SchemeRow, SchemeTable, TaskScore
from whet.core.units import human_bytes, human_duration
from whet.report.text import DASH, EMPTY, Shown, millinats, one_line, shown


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemeHeading:
    """A column: its name, its unit, what it means."""

    name: str
    unit: str
    meaning: str


HEADINGS: Final = (
    SchemeHeading(name="Size", unit="", meaning="every tensor on the disk"),
    SchemeHeading(
        name="Bits", unit="a weight", meaning="of the decoder's linear layers, scales included"
    ),
    SchemeHeading(name="Perplexity", unit="", meaning="on the held-out text, by token"),
    SchemeHeading(
        name="vs 16 bit", unit="", meaning="change of perplexity, paired by document; 95% interval"
    ),
    SchemeHeading(
        name="KL", unit="millinats", meaning="mean of KL(16 bit ‖ this) over all positions"
    ),
    SchemeHeading(name="KL p99", unit="millinats", meaning="99th percentile over all positions"),
    SchemeHeading(name="Flips", unit="", meaning="positions whose likeliest token differs"),
    SchemeHeading(name="Tasks", unit="right", meaning="answers that are right, on a real server"),
    SchemeHeading(name="Made in", unit="", meaning="seconds to quantize, shared work included"),
    SchemeHeading(name="Peak", unit="memory", meaning="device memory while quantizing"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemeLine:
    """One row ready to print, ``figures`` in the order of ``HEADINGS``."""

    name: str
    title: str
    figures: tuple[Shown, ...]
    kernel: str


def scheme_lines(table: SchemeTable) -> tuple[SchemeLine, ...]:
    """Every row of the table, in its order."""
    return tuple(
        SchemeLine(
            name=row.name,
            title=row.title,
            figures=_figures(row),
            kernel=_kernel(row),
        )
        for row in table.rows
    )


def _figures(row: SchemeRow) -> tuple[Shown, ...]:
    found, done = row.distances, row.checkpoint
    return (
        EMPTY if row.weight_bytes is None else Shown(text=human_bytes(row.weight_bytes)),
        EMPTY if row.bits_per_weight is None else Shown(text=f"{row.bits_per_weight:.2f}"),
        shown(row.perplexity),
        shown(found.perplexity_ratio, unit="+%") if found else EMPTY,
        shown(millinats(found.kl)) if found else EMPTY,
        shown(millinats(found.kl_p99)) if found else EMPTY,
        shown(found.flips, unit="%") if found else EMPTY,
        _tasks(row.served.tasks if row.served else ()),
        Shown(text=human_duration(done.seconds)) if done else EMPTY,
        _peak(done),
    )


def _tasks(tasks: tuple[TaskScore, ...]) -> Shown:
    asked, right = sum(task.n for task in tasks), sum(task.right for task in tasks)
    if not asked:
        return EMPTY
    paired = [(task.lost, task.gained) for task in tasks if task.lost is not None]
    change = ""
    if paired and any(task.p_value is not None for task in tasks):
        lost, gained = sum(lost or 0 for lost, _ in paired), sum(won or 0 for _, won in paired)
        change = f"−{lost} +{gained}"
    return Shown(text=percent(right / asked), interval=change)


def _peak(done: QuantizedCheckpoint | None) -> Shown:
    if done is None or done.peak_memory_bytes is None:
        return EMPTY
    return Shown(text=human_bytes(done.peak_memory_bytes))


def _kernel(row: SchemeRow) -> str:
    if row.served is None:
        return DASH
    return ", ".join(dict.fromkeys(k.split(" ")[0] for k in row.served.kernels)) or "none named"


def short_kernel(kernel: str) -> str:
    """``Machete`` for ``MacheteLinearKernel``."""
    return one_line(kernel).replace("LinearKernel", "")


def reasons(row: SchemeRow) -> tuple[str, ...]:
    """Why figures are missing, and what the quantizer or the server warned of."""
    told = [
        (f"not made: {row.not_made}", row.not_made),
        (f"not measured: {row.not_measured}", row.not_measured),
        (f"not served: {row.not_served}", row.not_served),
        (
            f"on the server: {row.served.reason if row.served else ''}",
            row.served and row.served.reason,
        ),
    ]
    warned = row.checkpoint.warnings if row.checkpoint else ()
    return (*(sentence for sentence, holds in told if holds), *warned)


def told_reasons(table: SchemeTable) -> tuple[tuple[str, str], ...]:
    """(which rows, what is missing and why): what several rows share is told once."""
    found: dict[str, list[str]] = {}
    for row in table.rows:
        for sentence in reasons(row):
            found.setdefault(sentence, []).append(row.name)
    return tuple(
        ("every row" if len(names) == len(table.rows) else ", ".join(names), sentence)
        for sentence, names in found.items()
    )


def filled_columns(lines: Sequence[SchemeLine]) -> tuple[int, ...]:
    """The columns in which some row has a figure."""
    return tuple(
        at for at in range(len(HEADINGS)) if any(line.figures[at] is not EMPTY for line in lines)
    )


def measured_on(table: SchemeTable) -> str:
    """The held-out text, the tasks and what the forward rounded, in one or two sentences."""
    found = next((row.distances for row in table.rows if row.distances is not None), None)
    parts = []
    if found is not None:
        positions = sum(one.tokens for one in found.documents)
        parts.append(
            f"Perplexity, KL and flips on {plural(len(found.documents), 'document')} "
            f"({number(positions)} positions) of {table.heldout}, both models in float32 with "
            "transformers; activations and FP8 keys and values are rounded as the checkpoint says."
        )
    served = next((row.served for row in table.rows if row.served is not None), None)
    if served is not None:
        asked = sum(task.n for task in served.tasks)
        parts.append(f"Tasks: {plural(asked, 'question')}, answered greedily by {served.engine}.")
    return " ".join(parts)


def task_names(table: SchemeTable) -> tuple[str, ...]:
    """Every task that some row answered."""
    served = [row.served for row in table.rows if row.served is not None]
    return tuple(dict.fromkeys(task.task for one in served for task in one.tasks))
