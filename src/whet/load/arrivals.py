"""When requests arrive: a description in a few numbers becomes offsets in ns, the same each time.

Every schedule begins with a request at 0, so that a window holds no idle lead. Kinds and the
numbers they take:

    constant  rate_rps              equal gaps
    poisson   rate_rps              exponential gaps
    bursty    rate_rps, burstiness  gamma gaps: 1 is Poisson, below 1 bursty
    at_once   none                  an infinite rate
    trace     speed                 the times of a trace; 2 plays it twice as fast
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from whet.core.errors import UsageError
from whet.core.units import NS_PER_S

_NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "constant": ("rate_rps",),
    "poisson": ("rate_rps",),
    "bursty": ("rate_rps", "burstiness"),
    "at_once": (),
    "trace": ("speed",),
}
KINDS: Final = tuple(_NEEDS)

_NUMBERS: Final = ("rate_rps", "burstiness", "speed")
_LONGEST_S: Final = 10 * 365 * 86_400
"""No load test lasts ten years: a schedule that does comes from a rate in the wrong unit."""

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrivals:
    """An arrival process. The module's docstring says which kind takes which numbers.

    Raises ``UsageError`` for an unknown kind and for a number that is missing, not above 0 and
    finite, or of no meaning for the kind.
    """

    kind: str
    rate_rps: float | None = None
    burstiness: float | None = None
    speed: float | None = None

    def __post_init__(self) -> None:
        """Raise ``UsageError`` for an unknown kind or numbers that do not fit it."""
        if self.kind not in _NEEDS:
            raise UsageError(
                f"unknown arrivals {self.kind!r}", fix=f"choose one of {', '.join(KINDS)}"
            )
        for name in _NUMBERS:
            self._check(name, getattr(self, name))

    @classmethod
    def at_rate(cls, rate_rps: float, *, burstiness: float = 1.0) -> Arrivals:
        """What ``--request-rate`` and ``--burstiness`` mean in ``vllm bench serve``.

        An infinite rate is all at once, a burstiness of 1 is Poisson.
        """
        if rate_rps == math.inf:
            return cls(kind="at_once")
        if burstiness == 1.0:
            return cls(kind="poisson", rate_rps=rate_rps)
        return cls(kind="bursty", rate_rps=rate_rps, burstiness=burstiness)

    def _check(self, name: str, value: float | None) -> None:
        needed = name in _NEEDS[self.kind]
        if needed and value is None:
            raise UsageError(f"arrivals of kind {self.kind!r} need {name}", fix="give it a number")
        if not needed and value is not None:
            raise UsageError(f"arrivals of kind {self.kind!r} take no {name}", fix="leave it out")
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{name} is {value}", fix="give a finite number above 0")


def arrival_offsets_ns(
    arrivals: Arrivals, *, requests: int, seed: int, times_ns: Sequence[int] = ()
) -> tuple[int, ...]:
    """Offsets of ``requests`` arrivals from the start of the window, in ns, never decreasing.

    ``times_ns`` are a trace's own times: the kind ``trace`` takes the first ``requests`` of them,
    and the other kinds ignore them. Equal arguments give equal offsets. Gamma gaps have the shape
    ``burstiness`` and the scale 1 ÷ (rate × burstiness) as in ``vllm bench serve``, but are not
    stretched afterwards to a fixed total, which would no longer be the process that was asked for.
    Raises ``UsageError`` for counts and times that make no schedule.
    """
    if requests < 1:
        raise UsageError(f"{requests} requests make no load", fix="send at least 1")
    if seed < 0:
        raise UsageError(f"the seed is {seed}", fix="give a whole number of 0 or more")
    if arrivals.kind == "trace":
        return _replay(_number(arrivals.speed), times_ns, requests)
    if arrivals.kind == "at_once":
        return (0,) * requests
    with np.errstate(over="ignore"):  # refused below, in words
        seconds = _unit_times(arrivals, requests, seed) / _number(arrivals.rate_rps)
    if not seconds[-1] < _LONGEST_S:
        raise UsageError(
            f"{requests} requests at this rate take more than ten years",
            fix="raise the rate (it is in requests a second) or send fewer",
        )
    return tuple(np.rint(seconds * NS_PER_S).astype(np.int64).tolist())


def logged_offsets_ns(
    times_ns: Sequence[int], *, requests: int, rate_rps: float, seed: int
) -> tuple[int, ...]:
    """A stretch of a log's arrivals, played at such a speed that its mean rate is ``rate_rps``.

    ``times_ns`` never decrease. The stretch is drawn by ``seed`` from the busier half of all that
    are ``requests`` long, so that no night is in it; gaps of a shorter log come again and again.
    """
    times = np.asarray(times_ns, dtype=np.int64)
    steps = requests - 1
    if len(times) < requests:
        gaps = np.resize(np.diff(times), steps)
        times = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(gaps)])
    lasting = times[steps:] - times[: len(times) - steps]
    busy = np.flatnonzero((lasting > 0) & (lasting <= np.median(lasting)))
    if not len(busy):
        raise UsageError(
            "the log's times are all the same", fix="take them out, or set load.burstiness"
        )
    start = int(np.random.default_rng(seed).choice(busy))
    stretch = (times[start : start + requests] - times[start]).astype(np.float64)
    scaled = stretch * (steps / rate_rps * NS_PER_S / stretch[-1])
    return tuple(np.rint(scaled).astype(np.int64).tolist())


def _number(value: float | None) -> float:
    assert value is not None, "Arrivals checks that its kind has its numbers"
    return value


def _unit_times(arrivals: Arrivals, requests: int, seed: int) -> _Floats:
    """Arrival times of the process at one request a second, the first at 0; shape (requests,)."""
    generator = np.random.default_rng(seed)
    count = requests - 1
    if arrivals.kind == "poisson":
        gaps = generator.exponential(size=count)
    elif arrivals.kind == "bursty":
        shape = _number(arrivals.burstiness)
        gaps = generator.gamma(shape, 1 / shape, size=count)
    else:
        gaps = np.ones(count)
    return np.concatenate([np.zeros(1), np.cumsum(gaps)])


def _replay(speed: float, times_ns: Sequence[int], requests: int) -> tuple[int, ...]:
    if len(times_ns) < requests:
        raise UsageError(
            f"the trace has {len(times_ns)} times and {requests} requests are asked for",
            fix="send fewer, or give a longer trace",
        )
    taken = times_ns[:requests]
    for number, (before, after) in enumerate(pairwise(taken), start=2):
        if after < before:
            raise UsageError(
                f"time goes backwards at request {number} of the trace ({after} ns after "
                f"{before} ns)",
                fix="sort the trace by time",
            )
    if (taken[-1] - taken[0]) / speed >= _LONGEST_S * NS_PER_S:
        raise UsageError("the trace takes more than ten years at this speed", fix="raise the speed")
    return tuple(round((at - taken[0]) / speed) for at in taken)
