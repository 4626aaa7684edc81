"""When requests arrive: a description in a few numbers becomes offsets in ns, the same each time.

Every schedule begins with a request at 0, so that a window holds no idle lead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from whet.core.errors import UsageError
from whet.core.units import NS_PER_S

_LONGEST_S: Final = 10 * 365 * 86_400
"""No load test lasts ten years: a schedule that does comes from a rate in the wrong unit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrivals:
    """Gamma gaps at a mean rate, or a trace's own times where ``speed`` is given.

    ``rate_rps`` is infinite where all arrive at once. ``burstiness`` is the gaps' shape: 1 is
    Poisson, below 1 bursty, infinite equal gaps. ``speed`` 2 plays a trace twice as fast. Raises
    ``UsageError`` for a number that is not above 0.
    """

    rate_rps: float = math.inf
    burstiness: float = 1.0
    speed: float | None = None

    def __post_init__(self) -> None:
        """Raise ``UsageError`` for a number that is not above 0."""
        for name in ("rate_rps", "burstiness", "speed"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name} is {value}", fix="give a number above 0")


def arrival_offsets_ns(
    arrivals: Arrivals, *, requests: int, seed: int, times_ns: Sequence[int] = ()
) -> tuple[int, ...]:
    """Offsets of ``requests`` arrivals from the start of the window, in ns, never decreasing.

    ``times_ns`` are a trace's own times, ascending; the first ``requests`` of them are taken where
    ``arrivals`` has a speed. Equal arguments give equal offsets. Gaps have the shape ``burstiness``
    and the scale 1 ÷ (rate × burstiness) as in ``vllm bench serve``, but are not stretched
    afterwards to a fixed total, which would no longer be the process that was asked for.
    Raises ``UsageError`` for a schedule of more than ten years.
    """
    if (speed := arrivals.speed) is not None:
        first, last = times_ns[0], times_ns[requests - 1]
        if (last - first) / speed >= _LONGEST_S * NS_PER_S:
            raise UsageError(
                "the trace takes more than ten years at this speed", fix="raise the speed"
            )
        return tuple(round((at - first) / speed) for at in times_ns[:requests])
    shape, gaps = arrivals.burstiness, np.ones(requests - 1)
    if math.isfinite(shape):
        gaps = np.random.default_rng(seed).gamma(shape, 1 / shape, size=requests - 1)
    with np.errstate(over="ignore"):  # refused below, in words
        seconds = np.concatenate([np.zeros(1), np.cumsum(gaps)]) / arrivals.rate_rps
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
