"""The quantization schemes of a run: size, speed, answers and the time that each took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from whet.core.format import percent
from whet.core.load import Load
from whet.core.records.engine import Variant
from whet.core.records.quality import QualityRecord
from whet.core.run import Run
from whet.core.units import human_bytes, human_duration
from whet.report.document import Cell, Column, Paragraph, Section, figure_cell, table, text_cell
from whet.report.run.common import UNPROVED, quantized_of, weights_size
from whet.report.run.quality import distance_figures, flips_words
from whet.report.text import DASH

ORDER = 26
_FEW: Final = 2
"""Schemes that most runs have; only more of them are a comparison for the console."""
_NOTE: Final = (
    "Variants that differ in nothing but their weights. Bits are those of the decoder's linear "
    "layers, with scales; memory is the highest of all loads; Quality explains KL; tasks are right "
    "answers, with those lost and gained. Work that recipes shared counts for each."
)


def build(run: Run) -> Section | None:
    """One row per variant; None where no two variants differ in their weights alone."""
    names = comparable(run)
    if not names:
        return None
    lines = [list(_cells(run, name)) for name in names]
    filled = [at for at in range(len(lines[0])) if any(line[at].text != DASH for line in lines)]
    columns = _columns(run)
    schemes = table(
        "Schemes",
        [columns[at] for at in filled],
        ([line[at] for at in filled] for line in lines),
    )
    weights = {run.engines[name].variant.model_path for name in names}
    return Section(
        id="schemes",
        title="Quantization schemes",
        group="Decision",
        nodes=[schemes, Paragraph(text=_NOTE, tone="muted")],
        on_console=len(weights) > _FEW,
    )


def _columns(run: Run) -> list[Column]:
    return [
        Column(name="config"),
        Column(name="recipe", drop=7),
        Column(name="size", figure=True, drop=3),
        Column(name="bits", unit="per weight", figure=True),
        *(Column(name="tok/s", unit=f"at {load}", figure=True) for load in run.loads),
        Column(name="memory", unit="GB", figure=True, drop=4),
        Column(name="perplexity", unit="change", figure=True),
        Column(name="KL", unit="millinats", figure=True),
        Column(name="tasks", unit="right", figure=True),
        Column(name="time", unit="to quantize", figure=True, drop=5),
    ]


def comparable(run: Run) -> list[str]:
    """Return the variants for which another one differs in its weights alone."""
    groups: defaultdict[Variant, list[str]] = defaultdict(list)
    for name in run.variants:
        if name in run.engines and name not in run.left_out:
            groups[_without_weights(run.engines[name].variant)].append(name)
    path = {name: item.variant.model_path for name, item in run.engines.items()}
    several = [own for own in groups.values() if len({path[name] for name in own}) > 1]
    return [name for own in several for name in own]


def _without_weights(variant: Variant) -> Variant:
    """Return everything but the weights, and the KV cache that their own scales are for."""
    args = variant.engine_args
    if variant.kv_scales:
        args = tuple(pair for pair in args if pair[0] != "kv_cache_dtype")
    return replace(
        variant,
        name="",
        weights="",
        scheme="",
        model_path="",
        recipe_schemes=(),
        kv_scales=False,
        engine_args=args,
    )


def _cells(run: Run, name: str) -> Iterator[Cell]:
    yield text_cell(name)
    yield from _weights(run, name)
    for load in run.loads:
        yield _speed(run, name, load)
    memory = [cell.memory_gb for cell in run.cells if cell.variant == name and cell.memory_gb]
    yield figure_cell(max(memory, default=None))
    yield from _answers(run.quality.get(name))
    made = quantized_of(run, name)
    yield text_cell(human_duration(made.seconds) if made else None)


def _weights(run: Run, name: str) -> Iterator[Cell]:
    """Recipe, size and bits per weight."""
    variant = run.engines[name].variant
    recipe = run.spec.recipes.get(variant.weights) if run.spec else None
    size, bits = weights_size(run, name) or (None, None)
    yield text_cell(recipe.title if recipe else variant.scheme)
    yield text_cell(None if size is None else human_bytes(size))
    yield text_cell(None if bits is None else f"{bits:.2f}")


def _speed(run: Run, name: str, load: Load) -> Cell:
    cell = run.cell(name, load)
    struck = run.evidence(name, load) in UNPROVED
    return figure_cell(cell.tps_mean if cell else None, tone="struck" if struck else "plain")


def _answers(quality: QualityRecord | None) -> Iterator[Cell]:
    """Change of perplexity, KL and right answers."""
    if quality is None:
        yield from [figure_cell(None)] * 3
        return
    is_baseline = quality.variant == quality.baseline
    yield figure_cell(None if is_baseline else quality.perplexity_ratio, unit="+%")
    yield figure_cell(distance_figures(quality.distances)[0])
    tasks = [task for task in quality.tasks if not task.graded]
    count = sum(task.n for task in tasks)
    paired = [task for task in tasks if task.p_value is not None]
    lost, gained = (sum(getattr(task, key) or 0 for task in paired) for key in ("lost", "gained"))
    yield text_cell(
        percent(sum(task.right for task in tasks) / count) if count else None,
        detail=flips_words(lost, gained) if paired else "",
    )
