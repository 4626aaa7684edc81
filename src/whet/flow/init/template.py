"""The commented spec without a log, fitted to a model that is on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from whet.checkpoint import read_facts
from whet.core.records.engine import UNQUANTIZED
from whet.core.redact import one_line
from whet.flow.init.variants import fitting_recipe
from whet.quant.suitability import settings_text


def fit_template(text: str, folder: Path) -> tuple[str, str | None]:
    """The template with a recipe that can be made of the model, and a sentence if that changed it.

    A model that is quantized already gets no recipe. ``CheckpointError`` for a folder that cannot
    be read.
    """
    scheme = one_line(read_facts(folder).stored.scheme)
    if scheme not in UNQUANTIZED:
        why = f"the model is quantized already ({scheme}) and measured as stored"
        lines = "\n".join(_without_recipes(text.splitlines(), why))
        return f"{lines.replace('fp16', 'stored')}\n", f"No recipes: {why}."
    fitting = fitting_recipe("awq", folder)
    if fitting is None:
        why = "the model cannot be quantized to 4 bits (whet quantize says why)"
        return "\n".join(_without_recipes(text.splitlines(), why)) + "\n", f"No recipes: {why}."
    name, recipe = fitting
    old = "method: awq\n    scheme: W4A16\n    group_size: 128"
    if old.replace("\n    ", ", ") == settings_text(recipe):
        return text, None
    text = text.replace(old, settings_text(recipe).replace(", ", "\n    "))
    sentence = f"The recipe is {settings_text(recipe)}: this model takes no AWQ in groups of 128."
    return text.replace("  awq:\n", f"  {name}:\n").replace(
        "weights: awq", f"weights: {name}"
    ).replace("  awq+", f"  {name}+"), sentence


def _without_recipes(lines: Iterable[str], why: str) -> Iterator[str]:
    inside = False
    for line in lines:
        inside = line.startswith("recipes:") or (inside and line.startswith("  "))
        if line.startswith("recipes:"):
            yield f"recipes: {{}}                        # {why}"
        elif not inside and "weights: awq" not in line:
            yield line
