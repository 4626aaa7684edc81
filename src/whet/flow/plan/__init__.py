"""``whet plan``: which GPUs and configurations meet an objective, predicted without a GPU."""

from whet.flow.plan.options import PlanOptions
from whet.flow.plan.plan import Plan, make_plan

__all__ = ["Plan", "PlanOptions", "make_plan"]
