"""The result of ``whet quality``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from whet.core.records.quality import QualityRecord, TaskScore
from whet.core.records.quality_checks import GateVerdict
from whet.flow.gate.baseline import Endpoint

_ORDER: Final = ("fail", "unknown", "pass")


@dataclass(frozen=True, kw_only=True, slots=True)
class GateResult:
    """The measured sides and the verdicts. ``baseline`` is None where the target is one itself.

    ``verdicts`` and ``reason`` are the record's with those of lm-eval's tasks. ``harness`` holds
    the scores of lm-eval, ``baseline_harness`` the baseline's. ``saved`` is the folder of the saved
    baseline.
    """

    target: Endpoint
    record: QualityRecord
    verdicts: tuple[tuple[float, GateVerdict], ...]
    reason: str | None
    baseline: Endpoint | None = None
    baseline_record: QualityRecord | None = None
    harness: tuple[TaskScore, ...] = ()
    baseline_harness: tuple[TaskScore, ...] = ()
    saved: str | None = None

    @property
    def verdict(self) -> GateVerdict:
        """The worst over all tolerances: fail, then unknown, then pass."""
        return min((word for _, word in self.verdicts), key=_ORDER.index)
