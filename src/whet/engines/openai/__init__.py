"""An external server at a URL: its endpoints and counters can be read, its log cannot.

Most such servers are vLLM or export its metrics, so its counter names are read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from whet.core.records.evidence import EngineFacts
from whet.engines import vllm
from whet.engines.openai.engine import RemoteEngine

__all__ = ["ENGINE", "PROFILE"]


ENGINE: Final = RemoteEngine
PROFILE: Final = replace(
    vllm.PROFILE,
    name="openai",
    title="an attached server",
    read_log=lambda _log: EngineFacts(),
    planned_engine=None,
    installation=None,
    plan_deployment=None,
)
