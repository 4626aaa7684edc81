"""What to deploy: matrix, Pareto front, recommendation."""

from whet.decision.decide import decide
from whet.decision.inputs import DecisionInputs, TierInputs

__all__ = ["DecisionInputs", "TierInputs", "decide"]
