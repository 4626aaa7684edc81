"""What fits where: memory, preflight, hardware prices; before anything starts."""

from whet.core.records import MemoryPlan, Problem
from whet.predict.advice import Traffic, advise, far_beyond, fitting_length
from whet.predict.disk import check_disk
from whet.predict.hardware import HardwareTier, find_tier
from whet.predict.memory import Demand, plan_memory
from whet.predict.predict import predict_served
from whet.predict.preflight import longest_request, memory_plans, preflight
from whet.predict.together import crowded

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
