"""vLLM: CPU and CUDA, 0.26 and later."""

from __future__ import annotations

from typing import Final

from whet.core.protocols import Engine
from whet.engines.base import EngineProfile
from whet.engines.command import model_name
from whet.engines.planned import PlannedMachine
from whet.engines.vllm import signals
from whet.engines.vllm.defects import scores_alone, scoring_defect
from whet.engines.vllm.deployment import plan_deployment
from whet.engines.vllm.engine import VllmEngine, find_installed
from whet.engines.vllm.failures import FAILURES
from whet.engines.vllm.limits import installation_problem
from whet.engines.vllm.log import START_LINE, read_log, read_notices
from whet.engines.vllm.server_info import read_declared

__all__ = ["ENGINE", "PROFILE", "VllmEngine", "find_installed", "model_name"]


def _planned_engine(planned: PlannedMachine) -> Engine:
    return VllmEngine(planned=planned)


ENGINE: Final = VllmEngine
PROFILE: Final = EngineProfile(
    name="vllm",
    title="vLLM",
    read_log=read_log,
    read_notices=read_notices,
    read_declared=read_declared,
    patterns=signals.PATTERNS,
    kernels=signals.KERNELS,
    forced_kernels=signals.FORCED_KERNELS,
    kernel_libraries=signals.KERNEL_LIBRARIES,
    attention_classes=signals.ATTENTION_CLASSES,
    load_time_schemes=signals.LOAD_TIME_SCHEMES,
    setting_sections=signals.SETTING_SECTIONS,
    failures=FAILURES,
    planned_engine=_planned_engine,
    find_installed=find_installed,
    installation_problem=installation_problem,
    plan_deployment=plan_deployment,
    start_line=START_LINE,
    scoring_defect=scoring_defect,
    scores_alone=scores_alone,
)
