"""Inference engines behind one small protocol; a line in the table is all that a new one needs."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.core.protocols import Engine

__all__ = ["engine_names", "get_engine"]

_ENGINES: Final = {
    "vllm": "whet.engines.vllm:VllmEngine",
    "openai": "whet.engines.openai_remote:RemoteEngine",
}


def engine_names() -> tuple[str, ...]:
    """Every engine that a spec may name."""
    return tuple(_ENGINES)


def get_engine(name: str) -> Engine:
    """The engine of that name, imported only now; ``UsageError`` for an unknown one."""
    if name not in _ENGINES:
        known = ", ".join(_ENGINES)
        raise UsageError(f"unknown engine {name!r}{did_you_mean(name, _ENGINES)} (known: {known})")
    module, _, attribute = _ENGINES[name].partition(":")
    engine: Engine = getattr(import_module(module), attribute)()
    return engine
