"""How much a run will do and about how long it takes, before anything is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from whet.core.format import plural
from whet.core.spec import SearchSpec, Spec
from whet.core.units import human_duration
from whet.metrics.significance import looks_at

_START_S: Final = {"cpu": 45.0, "cuda": 120.0}
_TOKEN_S: Final = 0.01
_SEARCHED: Final = 8
"""Rates that a search for the highest one tries, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """What a run will do; ``seconds`` is a rough figure without the checks of answers."""

    starts: int
    trials: int
    seconds: float

    @property
    def text(self) -> str:
        """One line for a person."""
        return (
            f"{plural(self.starts, 'server start')}, {plural(self.trials, 'trial')}: about "
            f"{math.ceil(self.seconds / 60)} min and the checks of answers, if a token takes "
            f"{1000 * _TOKEN_S:g} ms"
        )


def search_words(spec: SearchSpec) -> str:
    """What a run with a search takes, in one line for a person."""
    return (
        f"search: {human_duration(spec.time)} for everything, with quantizing, checks of answers "
        "and the confirmation"
    )


def effort_of(spec: Spec, names: list[str], *, device: str, answer_tokens: float) -> Effort:
    """What measuring the variants ``names`` takes, the confirmation included.

    ``device`` is ``cpu`` or ``cuda``, ``answer_tokens`` the mean length of an answer.
    """
    load = spec.load
    each_s = [
        load.seconds
        if point.is_open
        else load.requests(point) / point.value * answer_tokens * _TOKEN_S
        for point in load.points
    ]
    if load.find is not None or load.trace is not None:
        each_s = [_SEARCHED * load.seconds if load.find else load.seconds]
    rounds = load.trials if load.order == "interleaved" else 1
    # The cheapest and the default are measured again, until the first look at the least.
    again = 2 * looks_at(load.max_starts)[0] if load.confirm and names[1:] else 0
    attached = all(each.url is not None for each in spec.engines_used)
    starts, measured = rounds * len(names) + again, len(names) * load.trials
    start_s = 0.0 if attached else _START_S[device]
    return Effort(
        starts=starts,
        trials=measured * len(each_s) + again,
        seconds=starts * start_s + measured * sum(each_s) + again * max(each_s),
    )
