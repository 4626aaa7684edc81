"""What each lever brings alone, in company, and what company does to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whet.core.records.summary import Estimate

EffectVerdict = Literal["better", "worse", "no difference", "undecided"]
InteractionVerdict = Literal["fight", "help", "multiplicative", "undecided"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LeverEffect:
    """``candidate`` over ``reference``, which differ in ``lever`` alone, at one batch size.

    ``context`` names the levers that both have; empty where the lever stands alone. ``ratio`` is
    turned so that above 1 is better, of latencies too. ``verdict`` is ``better``, ``worse``,
    ``no difference`` or, without an interval (one start), ``undecided``.
    """

    lever: str
    context: tuple[str, ...]
    batch_size: int
    metric: str
    reference: str
    candidate: str
    ratio: Estimate
    noise_floor: float | None
    verdict: EffectVerdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Interaction:
    """What levers bring together, beside the product of what each of them brings alone.

    All three figures are over the cell that has ``context`` and none of ``levers``, turned so
    that above 1 is better. ``ratio`` is ``observed`` over ``product``. ``noise_floor`` is the
    share within which it means nothing, None where the run knows no noise. ``verdict`` is
    ``fight`` (below 1), ``help`` (above 1), ``multiplicative`` or, where an interaction large
    enough to matter could go unseen or there is no interval, ``undecided``.
    """

    levers: tuple[str, ...]
    context: tuple[str, ...]
    batch_size: int
    metric: str
    variant: str
    observed: Estimate
    product: Estimate
    ratio: Estimate
    noise_floor: float | None
    verdict: InteractionVerdict
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FactorialView:
    """Every effect and interaction that the cells of a run determine.

    ``levers`` are labels of ``whet.levers.labels``, in the order of the variants; levers that
    always occur together are merged (``weights=x + kv_cache_dtype=fp8``). ``unmeasured`` names, in
    sentences, the pairs of levers whose interaction lacks a cell.
    """

    baseline: str
    levers: tuple[str, ...]
    effects: tuple[LeverEffect, ...]
    interactions: tuple[Interaction, ...]
    unmeasured: tuple[str, ...]
