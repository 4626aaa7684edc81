"""Predict the size of a quantized checkpoint before it is made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from whet.core.records.model import ModelFacts
from whet.core.spec import GROUPED, SIXTEEN_BIT, RecipeSpec

_SHAPE_BYTES = 16  # the int64 [2] weight_shape of each module


def bits_per_weight(bits: int, group_size: int) -> float:
    """Stored bits a weight: the code and a 16-bit scale a group; 4.125 for 4 bits, group 128."""
    return bits + 16 / group_size


def predict_bits(recipe: RecipeSpec, widths: Sequence[int]) -> float:
    """Bits a weight that a recipe will come to; ``widths`` are the input widths K of the linears.

    A mixed recipe is counted at its budget.
    """
    narrow = _scheme_bits(recipe.scheme, recipe.group_size, widths)
    return narrow if recipe.mixed is None else max(narrow, recipe.mixed.bits_per_weight)


def _scheme_bits(scheme: str, group_size: int, widths: Sequence[int]) -> float:
    if scheme == SIXTEEN_BIT:
        return 16.0
    if scheme == "FP8":
        return 8.0  # one scale a matrix
    if scheme not in GROUPED:
        return bits_per_weight(8, min(widths, default=group_size))  # one scale a row
    return bits_per_weight(int(scheme[1]), group_size)


def predict_checkpoint(target: ModelFacts, recipe: RecipeSpec, path: Path) -> ModelFacts:
    """The facts of ``target`` once its linear layers are stored by ``recipe``; the rest stays."""
    linear = target.linear_parameters or 0
    modules = target.stored.unquantized_modules
    bits = predict_bits(recipe, target.linear_inputs)
    saved = linear * (target.stored.bits_per_weight - bits) / 8
    stored = replace(
        target.stored,
        scheme=recipe.stored_scheme,
        group_size=recipe.group_size if recipe.scheme in GROUPED else None,
        bits_per_weight=bits,
        quantized_modules=modules,
        unquantized_modules=0,
    )
    return replace(
        target,
        path=str(path),
        weight_bytes=math.ceil(target.weight_bytes - saved) + _SHAPE_BYTES * modules,
        stored=stored,
        hub_id=None,
        commit=None,
    )
