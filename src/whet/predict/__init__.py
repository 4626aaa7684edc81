"""Memory plans and feasibility, before anything starts."""

from whet.core.records.plan import MemoryPlan, Problem
from whet.predict.disk import disk_problems, disk_uses
from whet.predict.feasibility import Feasibility, assess_variants, longest_request, plan_variant
from whet.predict.memory import Demand, plan_memory
from whet.predict.predict import predict_checkpoint

__all__ = [
    "Demand",
    "Feasibility",
    "MemoryPlan",
    "Problem",
    "assess_variants",
    "disk_problems",
    "disk_uses",
    "longest_request",
    "plan_memory",
    "plan_variant",
    "predict_checkpoint",
]
