"""Traffic of known make-up, sent in a closed loop, with the client's own health on the record."""

from whet.load.plan import Draw, TrialPlan, Workload
from whet.load.trial import TrialInterrupted, TrialLost, run_trial
from whet.load.workload import build_workload, sample_turns

__all__ = [
    "Draw",
    "TrialInterrupted",
    "TrialLost",
    "TrialPlan",
    "Workload",
    "build_workload",
    "run_trial",
    "sample_turns",
]
