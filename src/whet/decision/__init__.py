"""What to deploy: matrix and recommendation."""

from whet.decision.eligible import DecisionInputs, TierInputs
from whet.decision.recommend import decide

__all__ = ["DecisionInputs", "TierInputs", "decide"]
