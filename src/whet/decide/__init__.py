"""What to deploy: matrix, Pareto front, where speculation stops paying, recommendation."""

from whet.decide.decide import decide
from whet.decide.inputs import DecisionInputs, TierInputs

__all__ = ["DecisionInputs", "TierInputs", "decide"]
