"""What the quantizer did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationFacts:
    """The text that the scales were fitted on."""

    source: str
    sha256: str
    samples: int
    tokens: int
    max_tokens: int
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitError:
    """Relative output error ‖X(W−Ŵ)ᵀ‖² / ‖XWᵀ‖² of one fused unit, beside round-to-nearest's.

    ``unit`` is ``layers.<i>.{qkv,o,gate_up,down}``; ``ratio`` is the chosen exponent of AWQ's grid.
    """

    unit: str
    error: float
    rtn_error: float
    ratio: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedCheckpoint:
    """One written checkpoint. ``path`` is whole: it was staged, verified, then renamed."""

    path: str
    method: str
    scheme: str
    group_size: int | None
    source_weights_sha256: str
    weights_sha256: str
    weight_bytes: int
    bits_per_weight: float
    calibration: CalibrationFacts | None
    units: tuple[UnitError, ...]
    seconds: float
    peak_memory_bytes: int | None
    device: str
