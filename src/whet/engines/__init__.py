"""Inference engines, a folder each: a process to serve from and a profile that says how to read it.

To add one: a folder with ``ENGINE`` and ``PROFILE``, and a line in ``ENGINES``
(docs/add-an-engine.md).
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Final

from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.core.protocols import Engine
from whet.engines.base import EngineProfile, SchemeKernels

__all__ = [
    "ENGINES",
    "EngineProfile",
    "SchemeKernels",
    "get_engine",
    "get_profile",
]

ENGINES: Final[dict[str, str]] = {
    "vllm": "whet.engines.vllm",
    "sglang": "whet.engines.sglang",
    "openai": "whet.engines.openai",
}


def get_engine(name: str) -> Engine:
    """The engine of that name, imported only now; ``UsageError`` for an unknown one."""
    engine: Engine = _module(name).ENGINE()
    return engine


def get_profile(name: str) -> EngineProfile:
    """How the engine of that name is read; ``UsageError`` for an unknown one."""
    profile: EngineProfile = _module(name).PROFILE
    return profile


def _module(name: str) -> ModuleType:
    if name not in ENGINES:
        known = ", ".join(ENGINES)
        raise UsageError(
            f"unknown engine {name!r}{did_you_mean(name, ENGINES)} (known: {known})",
            fix="start the server of another one yourself: name openai, with its url",
        )
    return import_module(ENGINES[name])
