"""Memory plans and feasibility, before anything starts."""

from whet.core.records.plan import MemoryPlan, Problem
from whet.predict.disk import disk_problems, predict_checkpoint
from whet.predict.feasibility import Feasibility, assess_variants, longest_request, plan_variant
from whet.predict.memory import Demand, plan_memory

__all__ = [
    "Demand",
    "Feasibility",
    "MemoryPlan",
    "Problem",
    "assess_variants",
    "disk_problems",
    "longest_request",
    "plan_memory",
    "plan_variant",
    "predict_checkpoint",
]
