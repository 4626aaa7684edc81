"""Every variant on a real server: evidence at start, load at each batch size, quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from whet.client import scrape
from whet.core.errors import EngineError, EngineLostError, MeasurementError
from whet.core.protocols import Server
from whet.core.records import (
    EngineFacts,
    QualityRecord,
    ResolvedEngine,
    TrialRecord,
    Verdict,
    VerdictSet,
    WorkloadFacts,
)
from whet.core.units import human_duration
from whet.evidence import judge_start, read_engine_facts
from whet.flow.job import REPEAT_SUFFIX, Job, cells_of, trial_key
from whet.load import TrialPlan, Workload, build_warmup, build_workload, run_trial
from whet.quality import QualityPlan, measure_quality

_RESTARTS = 2
"""A server that dies under load is started again this often before its other cells are given up."""
