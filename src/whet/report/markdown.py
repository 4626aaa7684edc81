"""``report.md``: the whole story as plain Markdown, readable in a terminal and on a forge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from whet.core.store import write_atomic
from whet.core.units import human_bytes, human_duration
from whet.report import rows
from whet.report.costs import COST_HEADS, COSTS_NOTE, cost_lines
from whet.report.factorial import (
    FactorialCell,
    factorial_note,
    factorial_sentences,
    factorial_tables,
)
from whet.report.head_of_line import HEAD_OF_LINE_HEADS, head_of_line_rows, head_of_line_words
from whet.report.markdown_text import fenced, safe, table
from whet.report.quality_markdown import quality_lines
from whet.report.sections import (
    WORKLOAD_HEADS,
    blank_reasons,
    common_env,
    engine_rows,
    env_words,
    evidence_groups,
    exclusions,
    reading_notes,
    sizes_of,
    unit_summary,
    warmup_words,
    workload_rows,
)
from whet.report.text import DASH, moment
from whet.report.view import RunView


def write_markdown(view: RunView, path: Path) -> None:
    """Write the report atomically."""
    write_atomic(path, render_markdown(view).encode())


def render_markdown(view: RunView) -> str:
    """The whole report as text. Foreign text is escaped, or stands in a fence it cannot close."""
    parts = (
        _opening(view),
        _cells(view),
        _decision(view),
        _levers(view),
        _head_of_line(view),
        _costs(view),
        _evidence(view),
        quality_lines(view),
        _quantization(view),
        _serve_lines(view),
        _setup(view),
    )
    return "\n".join(line for part in parts for line in part).rstrip() + "\n"


def _opening(view: RunView) -> Iterator[str]:
    yield f"# {safe(view.name)}\n"
    if view.missing:
        yield "> **This run is incomplete.**"
        yield from (f"> - {safe(item)}" for item in view.missing)
        yield ""
    if view.about_testbed:
        yield f"> {safe(view.about_testbed)}\n"
    title, sentence = rows.headline(view)
    yield f"## {safe(title)}\n"
    yield f"{safe(sentence)}\n"
    chosen = view.decision.recommendation if view.decision else None
    if chosen is None:
        return
    yield from (f"- {safe(reason)}" for reason in chosen.reasons)
    yield from (f"- Caution: {safe(caution)}" for caution in chosen.cautions)
    yield ""
    if chosen.variant in view.engines:
        yield f"{fenced(view.engines[chosen.variant].serve_line)}\n"


def _cells(view: RunView) -> Iterator[str]:
    yield "## Comparison\n"
    heads = [f"{heading.name}, {heading.unit}" for heading in rows.headings()]
    lines = []
    for row in rows.comparison_rows(view):
        figures = [item.full for item in row.figures]
        state = row.state if row.state in ("failed", "interrupted", "missing") else DASH
        status = safe(row.status or state)
        status = f"**{status}**" if row.recommended else status
        size, evidence = str(row.batch_size), row.evidence or DASH
        lines.append([safe(row.variant), size, *map(safe, figures), status, evidence])
    yield from table(["config", "batch size", *heads, "status", "evidence"], lines)
    yield "In brackets: the 95% interval; `?` marks a percentile with too few samples to certify.\n"
    yield from (f"- {safe(note)}" for note in reading_notes(view))
    told = [row for row in rows.comparison_rows(view) if row.note and row.state != "missing"]
    yield from (f"- {safe(row.variant)} @ {row.batch_size}: {safe(row.note or '')}" for row in told)
    yield ""


def _decision(view: RunView) -> Iterator[str]:
    if view.decision is None:
        return
    for matrix in rows.matrix_tables(view.decision):
        yield f"## Decision matrix, {safe(matrix.tier)}\n"
        lines = [
            [
                safe(rows.target_words(target)),
                *(_entry(rows.entry_words(entry)) for entry in entries),
            ]
            for target, entries in matrix.rows
        ]
        heads = ["", *(safe(rows.tolerance_words(limit)) for limit in matrix.tolerances)]
        yield from table(heads, lines, left=len(heads))
    for reason, where in blank_reasons(view.decision):
        yield f"- {safe(', '.join(where))}: {safe(reason)}"
    yield ""
    if view.decision.break_even:
        yield "## Where speculation stops paying\n"
        yield from (f"- {safe(item.sentence)}" for item in view.decision.break_even)
        yield ""
    if view.decision.excluded:
        yield "## Excluded, and why\n"
        for item in exclusions(view.decision):
            yield f"- {safe(item.where)}: {safe(item.reason)}"
        yield ""


def _entry(words: tuple[str, str]) -> str:
    title, second = words
    return f"**{safe(title)}**<br>{safe(second)}" if second else safe(title)


def _levers(view: RunView) -> Iterator[str]:
    tables = factorial_tables(view)
    if not tables:
        return
    yield f"## Levers, alone and together\n\n{safe(factorial_note(view))}\n"
    yield from (f"- {safe(sentence)}" for sentence in factorial_sentences(view))
    yield ""
    for found in tables:
        for title, lines in (("effect", found.effects), ("together", found.interactions)):
            heads = [f"{found.title}, {title}", "company", *map(str, found.sizes)]
            cells = [[safe(x.name), safe(x.company), *map(_ratio, x.cells)] for x in lines]
            yield from table(heads, cells, left=2) if cells else ()


def _ratio(cell: FactorialCell | None) -> str:
    return DASH if cell is None else f"{safe(cell.shown.full)}<br>{safe(cell.verdict)}"


def _head_of_line(view: RunView) -> Iterator[str]:
    rows = head_of_line_rows(view)
    if not rows:
        return
    yield f"## Head of line\n\n{safe(head_of_line_words(view))}\n"
    heads = [f"{name} {unit}" for name, unit in HEAD_OF_LINE_HEADS]
    lines = [[safe(row.variant), *(safe(item.full) for item in row.figures)] for row in rows]
    yield from table(["config", *heads], lines)
    yield from (f"- {safe(row.variant)}: {safe(row.note)}" for row in rows if row.note)
    yield ""


def _costs(view: RunView) -> Iterator[str]:
    lines = cost_lines(view)
    if not lines:
        return
    yield f"## What came along\n\n{safe(COSTS_NOTE)}\n"
    cells = [
        [safe(x.variant), safe(x.reference), safe(x.what), safe(x.detail), x.sizes] for x in lines
    ]
    yield from table(list(COST_HEADS), cells, left=4)


def _evidence(view: RunView) -> Iterator[str]:
    yield "## Evidence\n"
    lines = [
        [
            safe(group.variant),
            safe(group.statement),
            sizes_of(group.verdicts),
            f"**{safe(group.outcome)}**",
            safe(group.verdicts[0].observed),
            "<br>".join(safe(source) for source in group.verdicts[0].sources),
        ]
        for group in evidence_groups(view)
    ]
    heads = ["config", "claim", "batch size", "verdict", "observed", "source"]
    yield from table(heads, lines, left=len(heads))


def _quantization(view: RunView) -> Iterator[str]:
    if not view.quantized:
        return
    yield "## Quantization\n"
    for recipe, done in view.quantized.items():
        method = "" if done.method == recipe else f"{safe(done.method)} "
        yield (
            f"- **{safe(recipe)}**: {method}{safe(done.scheme)}, "
            f"{human_bytes(done.weight_bytes)}, {done.bits_per_weight:.2f} bits a weight, "
            f"in {human_duration(done.seconds)}. {safe(unit_summary(done))}"
        )
    yield ""


def _serve_lines(view: RunView) -> Iterator[str]:
    yield "## Serve lines\n"
    common = common_env(view)
    if common:
        yield f"Set for every server while it was measured:\n\n{fenced(env_words(common))}\n"
    for name in view.variants:
        if name in view.engines:
            excluded = " (excluded, do not deploy)" if view.is_excluded(name) else ""
            yield f"{safe(name)}{excluded}:\n\n{fenced(view.engines[name].serve_line)}\n"


def _setup(view: RunView) -> Iterator[str]:
    yield "## Set-up\n"
    if view.environment is not None:
        env = view.environment
        packages = ", ".join(f"{name} {version}" for name, version in env.packages)
        yield f"- device: {safe(env.device.name)}, {human_bytes(env.device.memory_bytes)}"
        yield f"- host: {safe(env.cpu)}, {env.cpu_count} cores, {human_bytes(env.ram_bytes)}"
        yield f"- system: {safe(env.os)}, Python {safe(env.python)}; {safe(packages)}"
        yield f"- started: {safe(moment(env.started_at))}"
    for role, facts in view.models.items():
        yield (
            f"- {safe(role)}: {safe(facts.architecture)}, {facts.parameters:,} parameters, "
            f"{safe(facts.stored.scheme)}, weights {facts.weights_sha256[:12]}"
        )
    for name, pairs in engine_rows(view):
        if pairs:
            yield f"- {safe(name)}: " + "; ".join(f"{key} {safe(value)}" for key, value in pairs)
    if view.cells:
        yield f"- {warmup_words(view)}"
    yield ""
    lines = [[safe(key), *map(safe, values)] for key, values in workload_rows(view)]
    yield from table(["workload", *WORKLOAD_HEADS], lines)
