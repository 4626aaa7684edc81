"""vLLM: CPU and CUDA, 0.26 and later."""

from __future__ import annotations

from typing import Final

from whet.engines.base import EngineProfile, Installation, Pages, Scoring
from whet.engines.command import model_name
from whet.engines.failures import Failures, read_signs
from whet.engines.vllm import signals
from whet.engines.vllm.deployment import plan_deployment
from whet.engines.vllm.engine import VllmEngine, find_installed, trial_args
from whet.engines.vllm.limits import build_problem, not_installed, scores_alone, scoring_defect
from whet.engines.vllm.log import START_LINE, read_log
from whet.engines.vllm.measuring import sized_pool
from whet.engines.vllm.server_info import read_declared

__all__ = ["ENGINE", "PROFILE", "VllmEngine", "find_installed", "model_name"]


ENGINE: Final = VllmEngine
PROFILE: Final = EngineProfile(
    name="vllm",
    title="vLLM",
    read_log=read_log,
    read_declared=read_declared,
    start_line=START_LINE,
    patterns=signals.PATTERNS,
    kernels=signals.KERNELS,
    pages=Pages(sections=signals.SETTING_SECTIONS),
    failures=Failures(
        signs=read_signs("vllm"),
        lost=(
            "EngineDeadError",
            "EngineCore encountered a fatal error",
            "EngineCore died unexpectedly",
        ),
    ),
    scoring=Scoring(defect=scoring_defect, alone=scores_alone),
    installation=Installation(find=find_installed, missing=not_installed, problem=build_problem),
    planned_engine=lambda planned: VllmEngine(planned=planned),
    plan_deployment=plan_deployment,
    trial_args=trial_args,
    sized_pool=sized_pool,
)
