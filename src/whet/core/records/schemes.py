"""Every scheme of one model side by side."""

from __future__ import annotations

from dataclasses import dataclass

from whet.core.provenance import Environment
from whet.core.records.distances import Distances
from whet.core.records.model import ModelFacts
from whet.core.records.quality import TaskScore
from whet.core.records.quant import QuantizedCheckpoint
from whet.core.records.summary import Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemeSpeed:
    """Output tokens per second with ``load`` requests in flight, over ``window_s`` seconds.

    One trial on one start of the server, so without an interval. ``reason`` says why it is missing.
    """

    load: int
    output_tps: float | None
    window_s: float | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemeOnServer:
    """Figures of a real server of one checkpoint. ``tasks`` are paired with the 16-bit answers.

    ``kernels`` are those that the engine's log names for its weights.
    ``perplexity`` is the server's own, in its own arithmetic. ``memory_bytes`` is the highest while
    ``speeds`` were measured: of the device on a GPU, resident on a CPU.
    """

    engine: str
    kernels: tuple[str, ...]
    tasks: tuple[TaskScore, ...]
    perplexity: Estimate | None
    reason: str | None
    memory_bytes: int | None = None
    speeds: tuple[SchemeSpeed, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemeRow:
    """One scheme; the row of the 16-bit source has no ``checkpoint``.

    A figure that is missing has its reason: ``not_made``, ``not_measured`` (the distances) and
    ``not_served`` (kernels and tasks) say why in a sentence.
    """

    name: str
    title: str
    weight_bytes: int | None
    bits_per_weight: float | None
    checkpoint: QuantizedCheckpoint | None
    perplexity: Estimate | None
    distances: Distances | None
    served: SchemeOnServer | None
    not_made: str | None = None
    not_measured: str | None = None
    not_served: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemeTable:
    """One model's schemes on the same held-out text and tasks, the 16-bit row first."""

    model: str
    source: ModelFacts
    environment: Environment
    heldout: str
    rows: tuple[SchemeRow, ...]
