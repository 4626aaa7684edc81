"""Round to nearest: the reference that every other method must beat. It looks at no input."""

from __future__ import annotations

from whet.quant.methods import Fitted, UnitProblem, unscaled


class RoundToNearest:
    """Each group's grid spans its largest weight."""

    needs_inputs = False
    nearest = True

    def fit(self, unit: UnitProblem) -> Fitted:
        """The weights as they are, on the full range."""
        return Fitted(
            weight=unit.weight,
            span=unit.grid.span(unit.weight),
            column_scale=unscaled(unit.weight),
            ratio=None,
        )


RTN = RoundToNearest()
