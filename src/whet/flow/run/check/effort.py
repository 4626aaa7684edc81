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
    """What a run will do; ``seconds`` is a rough figure without the checks of answers.

    ``most_starts`` where the confirmation takes all that it may.
    """

    starts: int
    most_starts: int
    trials: int
    seconds: float
    start_s: float

    @property
    def text(self) -> str:
        """One line for a person."""
        start = f"a start takes {self.start_s:g} s and " if self.start_s else ""
        most = f" (at most {self.most_starts})" if self.most_starts > self.starts else ""
        return (
            f"{plural(self.starts, 'server start')}{most}, {plural(self.trials, 'trial')}: about "
            f"{math.ceil(self.seconds / 60)} min and the checks of answers, if {start}a token "
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
    arms = 2 if load.confirm and names[1:] else 0  # the cheapest and the default, measured again
    again, more = arms * looks_at(load.max_starts)[0], arms * load.max_starts
    attached = all(each.url is not None for each in spec.engines_used)
    start_s = 0.0 if attached else _START_S[device]
    waited = rounds * len(names) + again
    return Effort(
        starts=len(names) * rounds + again,
        most_starts=len(names) * rounds + more,
        trials=len(names) * load.trials * len(each_s) + again,
        seconds=waited * start_s + len(names) * load.trials * sum(each_s) + again * max(each_s),
        start_s=start_s,
    )
