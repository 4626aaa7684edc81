"""The model, the engine and the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from whet.core.records.engine import Scalar
from whet.core.spec.base import Strict


class ModelSpec(Strict):
    """The 16-bit target and, for speculation, a draft: local folders or hub ids.

    A revision left out is the newest commit of ``main``.
    """

    target: str
    draft: str | None = None
    revision: str | None = None
    draft_revision: str | None = None


class EngineSpec(Strict):
    """The engine and the flags that every variant shares (vLLM's own names)."""

    name: str = "vllm"
    url: Annotated[
        str | None, Field(description="Address of a running server to measure; with name openai.")
    ] = None
    python: Path | None = None
    args: dict[str, Scalar] = {}
    env: dict[str, str] = {}
    ready_timeout_s: Annotated[float, Field(gt=0)] = 900.0


class EvidenceSpec(Strict):
    """Claims that may count without proof, by kind (``weights``, ``prefix_cache`` …).

    A contradicted claim is never accepted.
    """

    accept_unproved: tuple[str, ...] = ()


class HardwareSpec(Strict):
    """The machine and what an hour of it costs."""

    tier: str | None = None
    price_usd_per_hour: Annotated[float, Field(gt=0)]
    price_source: str | None = None
