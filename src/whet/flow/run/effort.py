"""How much a run will do and about how long it takes, before anything is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from whet.core.format import plural
from whet.core.load_point import Rate
from whet.core.spec import Spec
from whet.core.units import human_duration

_CPU_START_S: Final = 45.0
_GPU_START_S: Final = 120.0
_TOKEN_S: Final = 0.02
_FINALISTS: Final = 3
_CONFIRMATIONS: Final = 2
_SEARCHED: Final = 8
"""Rates that a search for the highest one tries, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """What a run will do. ``seconds`` assumes the time of a start and of a token that are given."""

    starts: int
    trials: int
    requests: int
    seconds: float
    start_s: float

    @property
    def text(self) -> str:
        """One line for a person."""
        return (
            f"{plural(self.starts, 'server start')}, {plural(self.trials, 'trial')}, "
            f"{self.requests:,} timed requests: about {human_duration(self.seconds)}, if a start "
            f"takes {self.start_s:g} s and a token {1000 * _TOKEN_S:g} ms, and checks of answers"
        )


def effort_of(spec: Spec, variants: int, *, on_cpu: bool) -> Effort:
    """The starts, trials and requests of a run of ``variants``, its confirmation included."""
    load = spec.load
    output = (spec.traffic or spec.workload).max_output_tokens
    rates = tuple(Rate(rate) for rate in load.rates)
    points = rates or load.batch_sizes
    each_s = [
        load.seconds
        if isinstance(point, Rate)
        else load.requests(point) / point * output * _TOKEN_S
        for point in points
    ]
    if load.find is not None:
        points, each_s = points[:1], [_SEARCHED * load.seconds]
    finalists = min(_FINALISTS, variants) * _CONFIRMATIONS if load.confirm and variants > 1 else 0
    rounds = load.trials if load.order == "interleaved" else 1
    starts = variants * rounds + finalists
    trials = variants * load.trials * len(points) + finalists
    start_s = _CPU_START_S if on_cpu else _GPU_START_S
    return Effort(
        starts=starts,
        trials=trials,
        requests=variants * load.trials * sum(map(load.requests, points))
        + finalists * max(map(load.requests, points)),
        seconds=starts * start_s + variants * load.trials * sum(each_s) + finalists * max(each_s),
        start_s=start_s,
    )
