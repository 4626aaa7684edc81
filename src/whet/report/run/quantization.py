"""The checkpoints that the run wrote, and their output errors."""

from __future__ import annotations

from collections.abc import Iterator

from whet.core.format import number, percent, plural
from whet.core.records.quant import QuantizedCheckpoint
from whet.core.run import Run
from whet.core.units import human_bytes, human_duration
from whet.report.document import Heading, Node, Paragraph, Section
from whet.report.text import short_path

ORDER = 100


def build(run: Run) -> Section | None:
    """One part a recipe."""
    if not run.quantized:
        return None
    nodes = [node for name, done in run.quantized.items() for node in _recipe(run, name, done)]
    return Section(id="quantization", title="Quantization", group="Quality", nodes=nodes)


def _recipe(run: Run, name: str, done: QuantizedCheckpoint) -> Iterator[Node]:
    method = "" if done.method == name else f"{done.method} "
    group = f", group {done.group_size}" if done.group_size else ""
    yield Heading(text=name)
    yield Paragraph(
        text=f"{method}{done.scheme}{group}; {human_bytes(done.weight_bytes)}, "
        f"{number(done.bits_per_weight)} bits a weight; written in "
        f"{human_duration(done.seconds)} on {done.device}. {_summary(done)}"
    )
    if done.choice is not None:
        yield Paragraph(text=f"Chosen: {done.choice.reason}.")
    if done.calibration is not None:
        text = done.calibration
        yield Paragraph(
            text=f"Calibrated on {plural(text.samples, 'sample')} ({number(text.tokens)} tokens) "
            f"from {short_path(text.source, run.root)}, sha256 {text.sha256[:12]}.",
            tone="muted",
        )


def _summary(done: QuantizedCheckpoint) -> str:
    """How much output error the method saves over rounding, in one sentence."""
    if not done.units:
        return "No unit errors were recorded."
    error = sum(unit.error for unit in done.units) / len(done.units)
    rtn = sum(unit.rtn_error for unit in done.units) / len(done.units)
    worst = max(done.units, key=lambda unit: unit.error)
    less = f", {percent(1 - error / rtn)} less than rounding's {percent(rtn)}" if rtn > 0 else ""
    return (
        f"Mean relative output error {percent(error)}{less}; "
        f"the worst unit is {worst.unit} at {percent(worst.error)}."
    )
