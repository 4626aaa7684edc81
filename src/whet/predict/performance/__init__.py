"""Latency and throughput without a GPU: step times, and the scheduler that puts them together."""

from whet.predict.performance.coefficients import Calibration, Coefficients, calibration_of
from whet.predict.performance.simulator import Limits, Request, Simulated, simulate
from whet.predict.performance.step import Draft, StepModel
from whet.predict.performance.work import Work, head_work, work_of

__all__ = [
    "Calibration",
    "Coefficients",
    "Draft",
    "Limits",
    "Request",
    "Simulated",
    "StepModel",
    "Work",
    "calibration_of",
    "head_work",
    "simulate",
    "work_of",
]
