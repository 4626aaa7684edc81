"""What fits where: memory, preflight, hardware prices; before anything starts."""

from whet.core.records import MemoryPlan, Problem
from whet.plan.advice import Traffic, advise, far_beyond, fitting_length
from whet.plan.disk import check_disk
from whet.plan.hardware import HardwareTier, find_tier
from whet.plan.memory import Demand, plan_memory
from whet.plan.predict import predict_served
from whet.plan.preflight import longest_request, memory_plans, preflight
from whet.plan.together import crowded

__all__ = [
    "Demand",
    "HardwareTier",
    "MemoryPlan",
    "Problem",
    "Traffic",
    "advise",
    "check_disk",
    "crowded",
    "far_beyond",
    "find_tier",
    "fitting_length",
    "longest_request",
    "memory_plans",
    "plan_memory",
    "predict_served",
    "preflight",
]
