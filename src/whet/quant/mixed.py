"""Mixed precision: the units that lose most keep more bits, as many as a budget allows.

Which ones is known when every unit's error is. A kept unit keeps the column scales that were folded
for it, so nothing else in the checkpoint changes and no layer has to be measured again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from whet.core.errors import QuantizationError
from whet.core.records import UnitError
from whet.core.spec import MixedSpec
from whet.quant.layer import Basis, Wider
from whet.quant.source import Source
from whet.quant.writer import ShardWriter


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One unit's two forms: its error in either, and the bits that each takes on the disk."""

    error: UnitError
    bits: int
    wide_bits: int

    @property
    def gain(self) -> float:
        """Error saved for each further bit."""
        wide = self.error.wide_error
        assert wide is not None
        return (self.error.error - wide) / max(1, self.wide_bits - self.bits)


def choose_units(choices: Sequence[Choice], budget: MixedSpec) -> frozenset[str]:
    """The units to keep, by the names in their errors.

    With ``bits_per_weight`` those of the greatest gain a bit, as long as the average stays within
    it; with ``max_error`` all above it. Raises ``QuantizationError`` for a budget below what the
    narrow form takes already.
    """
    if budget.max_error is not None:
        return frozenset(item.error.unit for item in choices if item.error.error > budget.max_error)
    assert budget.bits_per_weight is not None
    weights = sum(item.error.weights for item in choices)
    room = budget.bits_per_weight * weights - sum(item.bits for item in choices)
    if room < 0:
        least = sum(item.bits for item in choices) / weights
        raise QuantizationError(
            f"{budget.bits_per_weight:g} bits a weight are fewer than the scheme takes with no "
            f"unit kept ({least:.3f}); raise the budget or leave mixed out"
        )
    kept = set()
    for item in sorted(choices, key=lambda item: item.gain, reverse=True):
        if item.wide_bits - item.bits <= room and item.gain > 0:
            room -= item.wide_bits - item.bits
            kept.add(item.error.unit)
    return frozenset(kept)


def mark_kept(errors: Sequence[UnitError], kept: frozenset[str]) -> tuple[UnitError, ...]:
    """The errors of what is stored in the end."""
    return tuple(
        replace(item, kept=True, error=item.wide_error)
        if item.unit in kept and item.wide_error is not None
        else item
        for item in errors
    )


@torch.no_grad()
def rewrite(
    narrow: Path, folder: Path, source: Source, kept: Mapping[str, Basis], wider: Wider
) -> None:
    """Write ``narrow``'s tensors to ``folder`` with the linears of ``kept`` in the wider form."""
    before, writer = Source(narrow), ShardWriter(folder)
    for name in before.headers:
        linear = name.rpartition(".")[0]
        if linear not in kept or name.endswith(".bias"):
            writer.add(name, before.read(name))
    for linear, basis in kept.items():
        weight = source.read(f"{linear}.weight").float()
        for part, tensor in wider.store(basis.scaled(weight)).items():
            writer.add(f"{linear}.{part}", tensor)
    writer.finish()
