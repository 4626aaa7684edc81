"""Memory plans, preflight checks and advice, before anything starts."""

from whet.core.records import MemoryPlan, Problem
from whet.predict.advice import Traffic, advise, far_beyond, fitting_length
from whet.predict.disk import DiskUse, check_disk, disk_problems, disk_uses
from whet.predict.memory import Demand, plan_memory
from whet.predict.predict import predict_checkpoint
from whet.predict.preflight import longest_request, memory_plans, preflight
from whet.predict.together import group_memory_warnings

__all__ = [
    "Demand",
    "DiskUse",
    "MemoryPlan",
    "Problem",
    "Traffic",
    "advise",
    "check_disk",
    "disk_problems",
    "disk_uses",
    "far_beyond",
    "fitting_length",
    "group_memory_warnings",
    "longest_request",
    "memory_plans",
    "plan_memory",
    "predict_checkpoint",
    "preflight",
]
