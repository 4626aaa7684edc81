"""Hand-made records with known answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests import records
from whet.core.load import Load
from whet.core.records.decision import Decision, MatrixEntry
from whet.core.records.evidence import Claim, Verdict
from whet.core.records.quality import QualityRecord
from whet.core.records.quality_checks import DegenerateTraffic
from whet.core.records.summary import CellSummary, Estimate, Figure
from whet.core.spec import ObjectiveSpec
from whet.decision import DecisionInputs, TierInputs, decide
from whet.metrics import METRICS
from whet.metrics.pooled import StartTable


def estimate(value: float, width: float = 0.01, *, enough: bool = True) -> Estimate:
    """A figure with limits ``width`` (as a share) to either side."""
    return Estimate(
        value=value,
        low=value * (1 - width),
        high=value * (1 + width),
        samples=200 if enough else 40,
        enough=enough,
    )


def cell(variant: str, batch: int, cost: float, ttft: float, **changes: Any) -> CellSummary:
    """A finished cell; throughput follows from the cost at 1 USD an hour."""
    fields: dict[str, Any] = {
        "variant": variant,
        "load": Load.at(batch),
        "status": "complete",
        "trials": 3,
        "starts": 3,
        "requests": 200,
        "errors": 0,
        "memory_kind": "device",
        "window_s": 30.0,
        "warmup_excluded": 20,
    }
    figures: dict[str, Figure] = {
        "ttft_p50_ms": estimate(ttft / 2),
        "ttft_p95_ms": estimate(ttft),
        "tps_mean": estimate(1e6 / 3600 / cost),
        "cost_per_1m_tokens": estimate(cost),
        "memory_gb": 10.0,
    }
    figures |= {name: changes.pop(name) for name in METRICS if name in changes}
    return CellSummary(**(fields | changes), figures=figures)


def with_figures(item: CellSummary, **figures: Figure) -> CellSummary:
    """The cell with some figures replaced."""
    return replace(item, figures={**item.figures, **figures})


def quality(
    variant: str,
    words: Sequence[str] = ("pass",) * 3,
    ratio: float | None = 1.005,
    reason: str | None = None,
) -> QualityRecord:
    """A record whose verdicts at 1, 2 and 5 % are ``words``."""
    return records.quality(
        variant=variant,
        perplexity_ratio=None if ratio is None else estimate(ratio, 0.001),
        verdicts=tuple(zip((0.01, 0.02, 0.05), words, strict=True)),
        reason=reason,
    )


def timed(variant: str, word: str, reason: str | None) -> DegenerateTraffic:
    """What the timed answers of ``variant`` were found to be."""
    return DegenerateTraffic(
        variant=variant,
        answers=80,
        found=(("loop", 12),) if word == "fail" else (),
        baseline_share=0.0,
        p_value=None,
        examples=(),
        verdict=word,
        reason=reason,
    )


def verdict(
    variant: str, outcome: str = "proved", batch: int | None = None, kind: str = "weights"
) -> Verdict:
    claim = Claim(
        kind=kind,
        statement=f"{kind} as claimed",
        expected=f"a line about {kind}, batch {batch}",
        per_cell=batch is not None,
    )
    return Verdict(
        variant=variant,
        load=None if batch is None else Load.at(batch),
        claim=claim,
        outcome=outcome,
        observed=f"what was seen of {kind}",
        sources=(),
    )


def starts(
    cells: Sequence[CellSummary], metric: str = "tps_mean", *, count: int = 3, sd: float = 0.005
) -> StartTable:
    """``count`` starts of each cell around its figure, apart by about ``sd`` on the log scale."""
    figures = {}
    for at, item in enumerate(cells):
        value = item.estimate(metric)
        logs = sd * np.linspace(1, -1, count) * (-1) ** at if count > 1 else [0.0]
        logs = logs if value is not None else []
        figures[item.variant, item.load] = {
            number: value.value * math.exp(log) for number, log in enumerate(logs)
        }
    return StartTable.of(metric, {place: each for place, each in figures.items() if each})


def tier(cells: Sequence[CellSummary], **changes: Any) -> TierInputs:
    """One tier in which every variant is proved and passes, unless ``changes`` say otherwise."""
    variants = list(dict.fromkeys(item.variant for item in cells))
    fields: dict[str, Any] = {
        "tier": "L4",
        "cells": cells,
        "quality": {name: quality(name) for name in variants},
        "verdicts": [verdict(name) for name in variants],
        "tables": tables(cells),
    }
    return TierInputs(**(fields | changes))


def tables(cells: Sequence[CellSummary], **changes: Any) -> dict[str, StartTable]:
    """The starts of throughput and TTFT p95."""
    return {name: starts(cells, name, **changes) for name in ("tps_mean", "ttft_p95_ms")}


def decided(
    *tiers: TierInputs,
    reference: str = "fp16",
    **objective: Any,
) -> Decision:
    return decide(
        DecisionInputs(
            baseline="fp16",
            reference=reference,
            tiers=tiers,
            objective=ObjectiveSpec(**objective),
        )
    )


def entry(decision: Decision, ttft: float = 500.0, tolerance: float = 0.01) -> MatrixEntry:
    [found] = [
        item
        for item in decision.matrix
        if (item.ttft_target_ms, item.quality_tolerance) == (ttft, tolerance)
    ]
    return found
