"""What the quantizer did."""

from __future__ import annotations

import math
from dataclasses import dataclass

from whet.core.records.summary import Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationFacts:
    """The text that the scales were fitted on. ``warnings`` are sentences for a person."""

    source: str
    sha256: str
    samples: int
    tokens: int
    max_tokens: int
    seed: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitError:
    """Relative output error ‖X(W−Ŵ)ᵀ‖² / ‖XWᵀ‖² of one fused unit, beside round-to-nearest's.

    ``unit`` is ``layers.<i>.{qkv,o,gate_up,down}``; ``ratio`` is the chosen exponent of the scale
    grid. ``kept`` says that a mixed recipe stores the unit in its wider form; ``wide_error`` is the
    error of that form, and ``layer_error`` the mean over tokens of ‖Δy‖² / ‖y‖² for the layer's
    output y with this unit alone quantized; both are None where the recipe is not mixed.
    """

    unit: str
    error: float
    rtn_error: float
    ratio: float | None
    weights: int = 0
    wide_error: float | None = None
    layer_error: float | None = None
    kept: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """Seconds spent in one part of the work: ``read``, ``forward``, ``fit``, ``write``, …"""

    name: str
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodChoice:
    """Why ``method: auto`` stores the weights of one method.

    ``kl`` is the KL divergence per token to the 16-bit model, in nats by method, the least first;
    ``difference`` the second's minus the first's, paired over the held-out documents.
    """

    kl: dict[str, Estimate]
    difference: Estimate

    @property
    def reason(self) -> str:
        """Both figures, and whether the documents distinguish the methods."""
        (chosen, least), (other, most) = self.kl.items()
        ends = self.difference.low, self.difference.high
        low, high = (math.nan if end is None else 1e3 * end for end in ends)
        spread = "" if low > 0 else "; the difference is within their spread"
        return (
            f"{chosen}, not {other}: KL to 16 bit {1e3 * least.value:.3f} against "
            f"{1e3 * most.value:.3f} ×10⁻³ on {least.samples} held-out documents (difference "
            f"[{low:.3f}, {high:.3f}]){spread}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedCheckpoint:
    """One written checkpoint. ``path`` is whole: it was staged, verified, then renamed.

    ``kv_cache`` is ``fp8`` where scales of keys and values were stored. ``choice`` says why
    ``method`` was chosen, None where the recipe names it. ``warnings`` are sentences for a person.
    """

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
    phases: tuple[Phase, ...] = ()
    kv_cache: str | None = None
    choice: MethodChoice | None = None
    warnings: tuple[str, ...] = ()
