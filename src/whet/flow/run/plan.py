"""What the stages of a run pass to each other: the plan, rounds of servers, and the recorder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whet.core.load import Load
from whet.core.protocols import Engine, Observer
from whet.core.provenance import Device
from whet.core.records.engine import ResolvedEngine, Variant
from whet.core.records.model import ModelFacts
from whet.core.spec import Spec, WorkloadSpec
from whet.core.store import RunStore

Engines = Callable[[str], Engine]
"""Makes the engine of a name; each variant may have its own."""
Cells = tuple[tuple[Load, int], ...]
"""(load, trial) pairs in the order of measurement."""
_NUMERIC_ARGS: Final = frozenset(
    {"dtype", "kv_cache_dtype", "quantization", "calculate_kv_scales", "hf_overrides"}
)
"""Engine arguments that change what is computed, and not only in which order."""
RATE_SEARCH: Final = "search"
"""Title of the round in which each server's highest rate is searched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """The data files of a run: the spec's own, or those written to the run directory.

    ``traffic`` is the sample of the user's log; None where requests are generated from ``pool``.
    """

    pool: Path
    traffic: Path | None
    heldout: Path
    tasks: Path
    calibration: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A checked spec with everything resolved; no stage changes it, and nothing has started.

    ``workload`` has the lengths of its requests: the spec's own, or those of its log.
    """

    spec: Spec
    workload: WorkloadSpec
    device: Device
    target: ModelFacts
    inputs: Inputs
    resolved: tuple[ResolvedEngine, ...]

    @property
    def tokenizer(self) -> Path:
        """The folder whose tokenizer makes every prompt."""
        return Path(self.target.path)

    @property
    def tier(self) -> str:
        """The hardware tier of prices and the matrix."""
        return self.spec.hardware.tier or self.device.name

    def baseline(self) -> ResolvedEngine:
        """Return the variant that everything is compared with."""
        return next(r for r in self.resolved if r.variant.name == self.spec.baseline)

    def block_size(self, variant: Variant) -> int:
        """Return the tokens per KV block: the engine flag, else vLLM's default for the device."""
        flagged = dict(variant.engine_args).get("block_size")
        return int(flagged) if flagged is not None else {"cpu": 128}.get(self.device.kind, 16)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorder:
    """Where a run is recorded: its directory, and the observer of its progress."""

    store: RunStore
    observer: Observer


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """Servers that come up one after the other, each with what it measures."""

    servers: tuple[tuple[ResolvedEngine, Cells], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wave:
    """Servers of a search that start together; each is measured at its loads, one server at a time.

    Where rates are searched or a trace sets them, cells are left empty: a server is measured at
    what its search finds, which begins at ``rate``, the highest that another variant met. The
    answers of those that ``check`` names, which is asked when the cells are stored, are checked
    while the servers of the next wave start.
    """

    servers: tuple[tuple[ResolvedEngine, Cells], ...]
    check: Callable[[], Collection[str]] = frozenset
    rate: Load | None = None


def cells_of(points: Iterable[Load], trials: Iterable[int]) -> Iterator[tuple[Load, int]]:
    """Yield every (load, trial) of these trials, one pass over the loads after the other.

    The largest load comes first: a lack of memory shows at once, and the warm-up is done in
    parallel. Passes separate the trials of a cell in time, so that drift shows as spread.
    """
    for trial in trials:
        for point in sorted(points, reverse=True):
            yield point, trial


def quantized_path(root: Path, recipe: str) -> Path:
    """Return the folder of a recipe's checkpoint in the run directory ``root``."""
    return (root / "checkpoints" / recipe).resolve()


def weights_key(resolved: ResolvedEngine) -> tuple[object, ...]:
    """What two variants have in common whose predictions may differ by rounding alone."""
    variant = resolved.variant
    numeric = sorted((k, v) for k, v in variant.engine_args if k in _NUMERIC_ARGS)
    return (variant.model_path, variant.scheme, variant.loras, tuple(numeric), resolved.url)
