"""What a quantized checkpoint will weigh, before it is made."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from whet.core.errors import QuantizationError
from whet.core.records import ModelFacts

_SHAPE_BYTES = 16  # the int64 [2] weight_shape of each module


def bits_per_weight(bits: int, group_size: int, *, zero_points: bool = False) -> float:
    """Stored bits a weight: the code, a 16-bit scale a group, and a zero point where there is one.

    4 bits at group 128: 4.125 symmetric, 4.15625 (0.5195 bytes) with zero points.
    """
    return bits + (16 + (bits if zero_points else 0)) / group_size


def predict_served(
    target: ModelFacts, *, group_size: int, path: Path, scheme: str = "W4A16"
) -> ModelFacts:
    """The facts of ``target`` once its linear layers are stored as ``scheme``; the rest stays.

    Only symmetric integer weights (``W4A16``, ``W8A16``) can be predicted.
    """
    if scheme not in ("W4A16", "W8A16"):
        raise QuantizationError(f"whet cannot foresee the size of {scheme!r}; use W4A16 or W8A16")
    linear = target.linear_parameters or 0
    modules = target.stored.unquantized_modules
    bits = bits_per_weight(int(scheme[1]), group_size)
    saved = linear * (target.stored.bits_per_weight - bits) / 8
    stored = replace(
        target.stored,
        scheme=scheme,
        group_size=group_size,
        bits_per_weight=bits,
        quantized_modules=modules,
        unquantized_modules=0,
    )
    return replace(
        target,
        path=str(path),
        weight_bytes=math.ceil(target.weight_bytes - saved) + _SHAPE_BYTES * modules,
        stored=stored,
    )
