"""The facts that decide which moves of the playbook apply: model, card, engine, traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from whet.core.provenance import Device
from whet.core.records.model import ModelFacts
from whet.core.spec import RecipeSpec

START_S: Final = {"cpu": 30.0, "cuda": 75.0}
"""Seconds of a server's start by kind of device, before one has been timed."""
RATES: Final = 7
"""Trials of a configuration whose search for the highest rate begins at another's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """A head or draft for the target: how vLLM loads it, and the K that its authors give.

    ``ref`` is a folder or hub id, empty for layers that the model brings (``mtp``). ``problem``
    says why it does not fit the target; None where it does. ``source`` says where it is listed.
    """

    ref: str
    method: str
    num_tokens: int | None
    source: str
    options: Mapping[str, object]
    problem: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A quantized checkpoint of the target that the user names; ``problem`` as of a head."""

    ref: str
    scheme: str
    problem: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficShape:
    """What the traffic is like. Lengths are means in tokens.

    ``hit_rate`` is the share of prompt tokens that an endless prefix cache answers, ``copied`` the
    share of the answers' trigrams that are in their prompts (None: unknown), ``longest`` the tokens
    that 99 in 100 requests do not exceed.
    """

    prompt_tokens: float
    answer_tokens: float
    longest: int
    hit_rate: float
    copied: float | None
    greedy: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """Everything that a move may ask for; nothing of it has been measured by this search.

    ``recipes`` are those that can be made of the model, by name, with their settings.
    ``capability`` is the GPU's, None on a CPU. ``version`` is the engine's. ``in_flight`` is the
    largest number of requests in flight that is measured. ``unmeasured_card``: no campaign of
    whet's was on such a card.
    """

    target: ModelFacts
    device: Device
    capability: tuple[int, int] | None
    engine: str
    version: tuple[int, int, int]
    recipes: Mapping[str, RecipeSpec]
    heads: tuple[Head, ...]
    checkpoints: tuple[Published, ...]
    traffic: TrafficShape
    in_flight: int
    draft: bool
    nvcc: bool
    unmeasured_card: bool
