"""What ``whet quality`` is asked to do, and what it found."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from whet.core.errors import UsageError
from whet.core.records import GateVerdict, HarnessRun, HarnessScore, QualityRecord
from whet.core.spec import EngineSpec, QualitySpec

if TYPE_CHECKING:
    from whet.flow.gate.baseline import Endpoint

_ORDER: Final = ("fail", "unknown", "pass")


@dataclass(frozen=True, kw_only=True, slots=True)
class HarnessRequest:
    """Tasks of lm-evaluation-harness, run on both sides."""

    tasks: tuple[str, ...]
    limit: int | None = None
    num_fewshot: int | None = None
    include_path: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GateRequest:
    """Who is asked, what, and what is kept. Sides are a server's URL or a checkpoint.

    ``baseline`` is measured first, ``against`` is the folder of a kept one; without either the
    target is itself a baseline. ``save`` keeps the baseline that was measured. ``speculative`` says
    that the target serves the baseline's weights and speculates.
    """

    target: str
    quality: QualitySpec
    tolerances: tuple[float, ...] = (0.01,)
    baseline: str | None = None
    against: Path | None = None
    save: Path | None = None
    model: str | None = None
    baseline_model: str | None = None
    tokenizer: str | None = None
    speculative: bool = False
    harness: HarnessRequest | None = None
    engine: EngineSpec = field(default_factory=EngineSpec)


@dataclass(frozen=True, kw_only=True, slots=True)
class GateResult:
    """What was found. ``baseline`` is None where the target is a baseline itself.

    ``verdicts`` and ``reason`` are the record's with what lm-eval's tasks add. ``saved`` is the
    folder of the baseline that was kept.
    """

    target: Endpoint
    record: QualityRecord
    verdicts: tuple[tuple[float, GateVerdict], ...]
    reason: str | None
    baseline: Endpoint | None = None
    baseline_record: QualityRecord | None = None
    harness: HarnessRun | None = None
    harness_scores: tuple[HarnessScore, ...] = ()
    saved: str | None = None

    @property
    def verdict(self) -> GateVerdict:
        """The worst over all tolerances: fail, then unknown, then pass."""
        return min((word for _, word in self.verdicts), key=_ORDER.index)


def refuse_misfits(request: GateRequest) -> None:
    """``UsageError`` for words that do not go together, ``StorageError`` for a filled folder."""
    if request.baseline is not None and request.against is not None:
        raise UsageError("--baseline measures one and --against reads a kept one; give one of them")
    if request.against is not None and request.save is not None:
        raise UsageError("--save keeps a baseline that is measured now; leave --against out")
    alone = request.baseline is None and request.against is None
    if request.speculative and alone:
        raise UsageError(
            "--speculative holds the target to the plain server of its weights; name that one with "
            "--baseline or --against"
        )
    for tolerance in request.tolerances:
        if not 0 < tolerance < 1:
            raise UsageError(f"--tolerance {tolerance:g}: give a share, as 0.01 for 1 %")
    if request.save is not None:
        from whet.flow.gate.baseline import refuse_filled

        refuse_filled(request.save)
