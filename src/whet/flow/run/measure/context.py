"""What every chapter of the story needs to know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from whet.core.load_point import LoadPoint, load_key
from whet.core.protocols import Engine, Observer
from whet.core.provenance import Device
from whet.core.records import ModelFacts, ResolvedEngine, Variant
from whet.core.spec import Spec
from whet.core.store import RunStore


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """The data files of a run: the spec's own, or those written beside the run.

    ``traffic`` is the sample of the user's log; None where requests are generated from ``pool``.
    """

    pool: Path
    traffic: Path | None
    heldout: Path
    tasks: Path
    calibration: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A prepared run: everything is resolved, nothing has started.

    ``engine_for`` makes the engine of a name, as each resolved variant has one.
    """

    spec: Spec
    store: RunStore
    observer: Observer
    engine_for: Callable[[str], Engine]
    device: Device
    target: ModelFacts
    draft: ModelFacts | None
    inputs: Inputs
    resolved: tuple[ResolvedEngine, ...]

    @property
    def tokenizer(self) -> Path:
        """The folder whose tokenizer makes every prompt."""
        return Path(self.target.path)

    @property
    def tier(self) -> str:
        """The hardware tier that prices and the matrix speak of."""
        return self.spec.hardware.tier or self.device.name

    def baseline(self) -> ResolvedEngine:
        """The variant that everything is compared with."""
        return next(r for r in self.resolved if r.variant.name == self.spec.baseline)

    def block_size(self, variant: Variant) -> int:
        """Tokens a KV block: the engine flag where set, else vLLM's default for the device."""
        flagged = dict(variant.engine_args).get("block_size")
        return int(flagged) if flagged is not None else {"cpu": 128}.get(self.device.kind, 16)


def trial_key(variant: str, point: LoadPoint, trial: int) -> str:
    """The store's key of one trial."""
    return f"{cell_key(variant, point)}-t{trial}"


def cell_key(variant: str, point: LoadPoint) -> str:
    """The store's key of one cell."""
    return f"{variant}--{load_key(point)}"


def cells_of(points: Iterable[LoadPoint], trials: Iterable[int]) -> Iterator[tuple[LoadPoint, int]]:
    """Every (load, trial) of these trials, one pass over the loads after the other.

    The largest load comes first: a lack of memory shows at once, and the warm-up is done in
    parallel. Passes set the trials of a cell apart in time, so that drift shows as spread.
    """
    for trial in trials:
        for point in sorted(points, reverse=True):
            yield point, trial
