"""Mixed precision: the units that change their layer's output most keep more bits.

A unit's error relative to its own output says little: the same error of a unit that adds little to
the residual stream is lost in it. So units are ranked by the change of the layer's output with one
unit quantized (docs/quant.md compares it with the model's loss).

Units are chosen once all errors are known. A selected unit keeps the column scales that were folded
for it, so nothing else in the checkpoint changes and no layer has to be measured again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from whet.checkpoint.shards import ShardWriter, TensorReader
from whet.core.errors import QuantizationError
from whet.core.records.quant import UnitError
from whet.quant.fold import LinearScales


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitCost:
    """The errors of one unit, and its bits on the disk in the scheme."""

    error: UnitError
    bits: int

    @property
    def more_bits(self) -> int:
        """Further bits on the disk in 16 bit."""
        return 16 * self.error.weights - self.bits

    @property
    def gain(self) -> float:
        """Reduction of the layer's output change per additional bit."""
        error = self.error
        assert error.wide_error is not None
        assert error.layer_error is not None
        saved = 1 - error.wide_error / error.error if error.error else 0.0
        return error.layer_error * saved / max(1, self.more_bits)


def choose_units(costs: Sequence[UnitCost], bits_per_weight: float) -> frozenset[str]:
    """The names of the units to keep: those of the greatest gain per bit within the budget.

    ``QuantizationError`` for a budget below the scheme's own bits.
    """
    weights = sum(item.error.weights for item in costs)
    room = bits_per_weight * weights - sum(item.bits for item in costs)
    if room < 0:
        least = sum(item.bits for item in costs) / weights
        raise QuantizationError(
            f"mixed.bits_per_weight must be at least {least:.3f}, the scheme's own bits (got "
            f"{bits_per_weight:g})",
            fix="raise the budget or leave mixed out",
        )
    selected = set()
    for item in sorted(costs, key=lambda item: item.gain, reverse=True):
        if item.more_bits <= room and item.gain > 0:
            room -= item.more_bits
            selected.add(item.error.unit)
    return frozenset(selected)


def mark_wider(errors: Sequence[UnitError], selected: frozenset[str]) -> tuple[UnitError, ...]:
    """Return the units' errors with the selected units in the wider format."""
    return tuple(
        replace(item, kept=True, error=item.wide_error)
        if item.unit in selected and item.wide_error is not None
        else item
        for item in errors
    )


@torch.no_grad()
def rewrite(
    narrow: Path,
    folder: Path,
    source: TensorReader,
    selected: Mapping[str, LinearScales],
    dtype: torch.dtype,
) -> None:
    """Write the tensors of ``narrow`` to ``folder``, those of ``selected`` as ``dtype``."""
    before, writer = TensorReader(narrow), ShardWriter(folder)
    for name in before.headers:
        linear = name.rpartition(".")[0]
        if linear not in selected or name.endswith(".bias"):
            writer.add(name, before.read(name))
    for linear, scales in selected.items():
        weight = source.read(f"{linear}.weight").float()
        writer.add(f"{linear}.weight", scales.apply(weight).to(dtype))
    writer.finish()
