"""An external server at a URL: its endpoints and counters can be read, its log cannot.

Most such servers are vLLM or export its metrics, so its counter names are read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from whet.core.records import EngineFacts
from whet.engines import vllm
from whet.engines.openai.engine import RemoteEngine

__all__ = ["ENGINE", "PROFILE"]


def _no_facts(log: str) -> EngineFacts:
    return EngineFacts()


def _no_notices(log: str) -> tuple[str, ...]:
    return ()


ENGINE: Final = RemoteEngine
PROFILE: Final = replace(
    vllm.PROFILE,
    name="openai",
    title="an attached server",
    read_log=_no_facts,
    read_notices=_no_notices,
    planned_engine=None,
    find_installed=None,
    plan_deployment=None,
)
