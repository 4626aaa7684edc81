"""What to deploy: matrix, Pareto front, where speculation stops paying, recommendation."""

from whet.decision.decide import decide
from whet.decision.inputs import DecisionInputs, TierInputs

__all__ = ["DecisionInputs", "TierInputs", "decide"]
