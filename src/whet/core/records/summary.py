"""Figures with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Literal, TypeVar

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from whet.core.load import Load

Status = Literal["complete", "interrupted", "failed"]
MemoryKind = Literal["device", "resident"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A figure, its 95 % interval and the samples behind it.

    Figures of a server have an interval from two of its starts on; ``low`` and ``high`` are None
    for one.

    ``enough`` is False for a percentile with fewer samples than the early-stopping floor
    (64 for p90, 130 for p95, 662 for p99).
    """

    value: float
    low: float | None
    high: float | None
    samples: int
    enough: bool = True

    def mapped(self, of: Callable[[float], float], *, falling: bool = False) -> Estimate:
        """The figure and its ends under a monotone function; a ``falling`` one swaps the ends."""
        low, high = (None if end is None else of(end) for end in (self.low, self.high))
        if falling:
            low, high = high, low
        return replace(self, value=of(self.value), low=low, high=high)


Figure = Estimate | float | None
"""A figure with its interval, or a plain one; None where it was not measured."""

F = TypeVar("F")


class _Named(Generic[F]):
    """A figure that code means by name, read from ``figures``."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, cell: CellSummary, owner: type) -> F | None:
        value: F | None = cell.figures.get(self.name)  # type: ignore[assignment]
        return value


@dataclass(frozen=True, kw_only=True, slots=True)
class CellSummary:
    """One variant at one concurrency, over its valid trials. Latencies in ms at this edge.

    ``figures`` holds the metrics of ``whet.metrics.table`` by name; in JSON they are keys of the
    cell itself. Latencies and rates leave out the first wave of a closed loop, a burst on an idle
    server. ``starts`` is how many starts of the server the trials were measured on.

    ``cost_per_1m_tokens`` is USD. ``memory_gb`` is decimal GB of the server's process tree: device
    memory on a GPU, resident memory on a CPU (``memory_kind`` says which).
    ``status`` is complete, interrupted or failed; a failed cell says why in ``failure``.
    ``selected_cost`` is the cost at the first starts, where all other figures are of fresh ones.
    """

    variant: str
    load: Load
    status: Status
    trials: int
    requests: int
    errors: int
    memory_kind: MemoryKind
    expected_hit_rate: float | None = None
    window_s: float | None = None
    warmup_excluded: int = 0
    failure: str | None = None
    starts: int = 1
    selected_cost: Estimate | None = None
    figures: Mapping[str, Figure]

    ttft_p95_ms = _Named[Estimate]()
    tpot_p50_ms = _Named[Estimate]()
    itl_p50_ms = _Named[Estimate]()
    tps_mean = _Named[Estimate]()
    rps_mean = _Named[Estimate]()
    cost_per_1m_tokens = _Named[Estimate]()
    memory_gb = _Named[float]()
    acceptance_length = _Named[float]()
    acceptance_rate = _Named[float]()
    prefix_hit_rate = _Named[float]()

    def estimate(self, name: str) -> Estimate | None:
        """A metric's figure with its interval; None where it has none."""
        value = self.figures.get(name)
        return value if isinstance(value, Estimate) else None

    @model_validator(mode="before")
    @classmethod
    def _nest(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        own = {field.name for field in fields(cls)}
        figures = {name: value for name, value in data.items() if name not in own}
        return {**{name: data[name] for name in data.keys() & own}, "figures": figures}

    @model_serializer(mode="wrap")
    def _flatten(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        figures: dict[str, Any] = data.pop("figures")
        return data | figures


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One variant against the reference on one metric, over the starts of both.

    ``ratio`` is candidate ÷ reference with its 95% interval, simultaneous over the ``family`` of
    tested comparisons, open where the starts cannot give one. A ``family`` of 0 is exploratory:
    the interval is for this ratio alone and nothing is tested. ``different`` where a tested
    interval leaves out 1, and what had to be shown before was. ``starts_needed`` of each in all
    would show a difference of this size with 80% power, None where more than 200. ``detectable`` is
    the smallest difference, as a share, that these starts would have shown with 80% power.
    ``fresh``: the starts are those of a confirmation, whose interval holds at every look.
    """

    metric: str
    reference: str
    reference_load: Load
    candidate: str
    load: Load
    ratio: Estimate
    family: int
    different: bool
    starts_needed: int | None
    detectable: float | None
    fresh: bool = False
