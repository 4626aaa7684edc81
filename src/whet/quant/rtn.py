"""Round to nearest: the reference that every other method must beat. It looks at no input."""

from __future__ import annotations

import torch

from whet.quant.methods import Fitted, UnitProblem


class RoundToNearest:
    """Each group's grid spans its largest weight."""

    needs_inputs = False

    def fit(self, unit: UnitProblem) -> Fitted:
        """The weights as they are, on the full range."""
        ones = torch.ones(unit.weight.shape[1], device=unit.weight.device)
        scale = unit.grid.scales(unit.weight)
        return Fitted(weight=unit.weight, scale=scale, column_scale=ones, ratio=None)


METHOD = RoundToNearest()
