"""What to deploy: matrix and recommendation."""

from whet.decision.decide import decide
from whet.decision.eligible import DecisionInputs, TierInputs

__all__ = ["DecisionInputs", "TierInputs", "decide"]
