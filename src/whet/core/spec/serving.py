"""The model, the engine and the machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, model_validator

from whet.core.gpus import SOURCE, typical_price
from whet.core.quote import EnvName
from whet.core.records.engine import Scalar
from whet.core.spec.base import Checkpoint, Strict

_SEVERAL: Final = re.compile(r"(?:(\d{1,4}) ?x )?(.+)")


class ModelSpec(Strict):
    """The target and, for speculation, a draft: local folders or hub ids.

    Recipes need a 16-bit target. One that is quantized already is served as it is stored.

    A revision left out is the newest commit of ``main``. ``chat_template_kwargs`` are variables for
    the chat template, such as ``enable_thinking: false``, in every prompt that whet makes.
    """

    target: Checkpoint
    draft: Checkpoint | None = None
    revision: str | None = None
    draft_revision: str | None = None
    chat_template_kwargs: dict[str, Scalar] = {}

    @property
    def variables(self) -> tuple[tuple[str, Scalar], ...]:
        """``chat_template_kwargs`` in an order, as a key."""
        return tuple(sorted(self.chat_template_kwargs.items()))


class EngineSpec(Strict):
    """An engine and the flags that all of its variants share (the engine's own names)."""

    name: Annotated[str, Field(description="Engine that serves (docs: Engines).")] = "vllm"
    url: Annotated[
        str | None, Field(description="Address of a running server to measure; with name openai.")
    ] = None
    python: Annotated[
        Path | None, Field(description="Python that has the engine, if it is a Python package.")
    ] = None
    args: Annotated[
        dict[str, Scalar], Field(description="Flags of the engine for all of its variants.")
    ] = {}
    env: Annotated[dict[EnvName, str], Field(description="Environment of the server.")] = {}
    ready_timeout_s: Annotated[
        float, Field(gt=0, description="Seconds until a server has to be ready.")
    ] = 900.0


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

    @model_validator(mode="before")
    @classmethod
    def _price_of_the_tier(cls, data: Any) -> Any:
        """``tier`` alone takes the price of the table; ``2x L4`` twice that of one."""
        if not isinstance(data, dict) or "price_usd_per_hour" in data:
            return data
        several = _SEVERAL.fullmatch(str(data.get("tier") or ""))
        one = typical_price(several[2]) if several else None
        if several is None or one is None:
            return data
        return {"price_source": SOURCE, **data, "price_usd_per_hour": one * int(several[1] or 1)}
