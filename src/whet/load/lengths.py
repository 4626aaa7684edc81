"""How many tokens: drawn from a stated distribution, and met by a text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from whet.core.errors import UsageError
from whet.core.names import did_you_mean

Counts = NDArray[np.int64]

LONGEST: Final = 10_000_000
"""No context is longer; it keeps a heavy tail inside 64 bits."""


FORMS: Final = (
    "512, uniform:256-1024, uniform:512,0.5 (512 ± 50%), normal:512,100 or "
    "lognormal:p50=300,p99=4000 (the last two also with bounds: normal:512,100,64-1024)"
)


class Lengths(Protocol):
    """Whole numbers by a stated distribution: tokens, turns or ms, as the field that holds it says.

    ``text`` is the short form that ``parse_lengths`` reads back; ``draw`` gives shape (count,).
    """

    @property
    def smallest(self) -> int:
        """No draw is below."""
        ...

    @property
    def text(self) -> str:
        """The short form."""
        ...

    def draw(self, rng: np.random.Generator, count: int) -> Counts:
        """``count`` draws; equal generators give equal draws."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Fixed:
    """Always the same."""

    value: int

    def __post_init__(self) -> None:
        """Refuse what cannot be a length."""
        _require_bounds(self.value, self.value)

    @property
    def smallest(self) -> int:
        """The value."""
        return self.value

    @property
    def text(self) -> str:
        """``512``."""
        return str(self.value)

    def draw(self, rng: np.random.Generator, count: int) -> Counts:
        """Nothing is left to chance."""
        return np.full(count, self.value, dtype=np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Uniform:
    """Every whole number from ``low`` to ``high`` equally often, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        """Refuse bounds in the wrong order."""
        _require_bounds(self.low, self.high)

    @classmethod
    def around(cls, centre: int, ratio: float) -> Uniform:
        """``vllm bench serve --random-range-ratio``: [⌊n(1−r)⌋, ⌈n(1+r)⌉], at least 1."""
        if not 0 <= ratio < 1:
            raise UsageError(f"a range ratio of {ratio:g} cannot be used; give 0 or more, below 1")
        low = max(1, math.floor(centre * (1 - ratio)))
        return cls(low=low, high=math.ceil(centre * (1 + ratio)))

    @property
    def smallest(self) -> int:
        """The lower end."""
        return self.low

    @property
    def text(self) -> str:
        """``uniform:256-1024``."""
        return f"uniform:{self.low}-{self.high}"

    def draw(self, rng: np.random.Generator, count: int) -> Counts:
        """Both ends occur."""
        return rng.integers(self.low, self.high, size=count, endpoint=True, dtype=np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Normal:
    """A normal curve cut at its bounds, not heaped on them, and rounded.

    ``mean`` and ``std`` are those of the uncut curve.
    """

    mean: float
    std: float
    low: int = 1
    high: int = LONGEST

    def __post_init__(self) -> None:
        """Refuse a curve without width, or with its middle outside of the bounds."""
        _require_bounds(self.low, self.high)
        if not 0 < self.std <= LONGEST:
            raise UsageError(
                f"a standard deviation of {self.std:g} cannot be used; give more than 0 and at "
                f"most {LONGEST:,}, or a fixed length"
            )
        _require_middle("the mean", self.mean, self.low, self.high)

    @property
    def smallest(self) -> int:
        """The lower bound."""
        return self.low

    @property
    def text(self) -> str:
        """``normal:512,100``, with bounds where they are not the usual ones."""
        bounds = _bounds_text(self.low, self.high)
        return f"normal:{_number_text(self.mean)},{_number_text(self.std)}{bounds}"

    def draw(self, rng: np.random.Generator, count: int) -> Counts:
        """By the inverse of the cut distribution."""
        from scipy import stats

        return _draw_cut(stats.norm(loc=self.mean, scale=self.std), self.low, self.high, rng, count)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lognormal:
    """The long right tail of real traffic, given by its median and 99th percentile.

    ln X ~ N(ln p50, σ), σ = ln(p99 ÷ p50) ÷ z₀.₉₉; cut at the bounds and rounded. ``p50`` and
    ``p99`` are those of the uncut curve.
    """

    p50: float
    p99: float
    low: int = 1
    high: int = LONGEST

    def __post_init__(self) -> None:
        """Refuse percentiles that no curve has."""
        _require_bounds(self.low, self.high)
        if not 0 < self.p50 <= LONGEST:
            raise UsageError(f"a p50 of {self.p50:g} cannot be used; give more than 0")
        if not self.p50 < self.p99 <= 1000 * LONGEST:
            raise UsageError(
                f"p99 ({self.p99:g}) must lie above p50 ({self.p50:g}); for equal lengths give a "
                "fixed one"
            )
        _require_middle("p50", self.p50, self.low, self.high)

    @property
    def smallest(self) -> int:
        """The lower bound."""
        return self.low

    @property
    def text(self) -> str:
        """``lognormal:p50=300,p99=4000``, with bounds where they are not the usual ones."""
        bounds = _bounds_text(self.low, self.high)
        return f"lognormal:p50={_number_text(self.p50)},p99={_number_text(self.p99)}{bounds}"

    def draw(self, rng: np.random.Generator, count: int) -> Counts:
        """By the inverse of the cut distribution."""
        from scipy import stats

        sigma = math.log(self.p99 / self.p50) / float(stats.norm.ppf(0.99))
        curve = stats.lognorm(s=sigma, scale=self.p50)
        return _draw_cut(curve, self.low, self.high, rng, count)


class LengthPairs(Protocol):
    """Input and output lengths of requests; ``draw_pairs`` gives shape (count, 2)."""

    def draw_pairs(self, rng: np.random.Generator, count: int) -> Counts:
        """Column 0 is the input, column 1 the output, both at least 1."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Independent:
    """Input and output drawn apart: a long prompt says nothing about its answer."""

    input: Lengths
    output: Lengths

    def __post_init__(self) -> None:
        """A request has at least one token in and one out."""
        require_at_least("input", self.input, 1)
        require_at_least("output", self.output, 1)

    def draw_pairs(self, rng: np.random.Generator, count: int) -> Counts:
        """From a stream each, so that one may change without the other."""
        streams = rng.spawn(2)
        both = zip((self.input, self.output), streams, strict=True)
        return np.column_stack([lengths.draw(stream, count) for lengths, stream in both])


@dataclass(frozen=True, kw_only=True, slots=True)
class Empirical:
    """(input, output) pairs that were seen, drawn whole and with replacement: ties are kept."""

    pairs: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        """Refuse an empty list and lengths below one."""
        if not self.pairs:
            raise UsageError("there is no pair of lengths to draw from; give at least one")
        for number, pair in enumerate(self.pairs, start=1):
            if not all(1 <= length <= LONGEST for length in pair):
                raise UsageError(
                    f"pair {number} of the lengths is {pair}; leave out requests that have no "
                    "token in or out"
                )

    def draw_pairs(self, rng: np.random.Generator, count: int) -> Counts:
        """Every pair is as likely as any other."""
        table = np.asarray(self.pairs, dtype=np.int64)
        return table[rng.integers(len(table), size=count)]


def parse_lengths(text: str, *, name: str = "length") -> Lengths:
    """Read a short form; ``UsageError`` begins with ``name`` and shows the forms that there are."""
    kind, colon, rest = text.strip().partition(":")
    forms = _PARSERS.get(kind if colon else "", ())
    for pattern, make in forms:
        match = re.fullmatch(pattern, rest if colon else kind)
        if match is not None:
            try:
                return make(match)
            except UsageError as error:
                raise UsageError(f"{name} {text.strip()!r}: {error}") from error
    guess = did_you_mean(kind, [known for known in _PARSERS if known]) if colon else ""
    raise UsageError(f"{name} {text[:80]!r} cannot be read{guess}; write {FORMS}")


def require_at_least(name: str, lengths: Lengths, least: int) -> None:
    """``UsageError`` where a draw could fall below ``least``."""
    if lengths.smallest < least:
        raise UsageError(
            f"the {name} length {lengths.text} can be {lengths.smallest}; it must be at least "
            f"{least}"
        )


def _draw_cut(curve: Any, low: int, high: int, rng: np.random.Generator, count: int) -> Counts:
    """P(k) is the curve's mass in [k − ½, k + ½), scaled to what lies between the bounds."""
    below, above = curve.cdf(low - 0.5), curve.cdf(high + 0.5)
    values = curve.ppf(rng.uniform(below, above, size=count))
    whole: Counts = np.clip(np.rint(values), low, high).astype(np.int64)
    return whole


def _require_bounds(low: int, high: int) -> None:
    if low < 0:
        raise UsageError(f"a length of {low} is negative; give 0 or more")
    if low > high:
        raise UsageError(f"the bounds {low}-{high} are the wrong way round; give the lower first")
    if high > LONGEST:
        raise UsageError(f"a length of {high:,} is beyond any context; give at most {LONGEST:,}")


def _require_middle(what: str, value: float, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(f"{what} ({value:g}) must lie between the bounds {low} and {high}")


def _bounds_text(low: int, high: int) -> str:
    return "" if (low, high) == (1, LONGEST) else f",{low}-{high}"


def _number_text(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


_WHOLE = r"([0-9]{1,12})"
_REAL = r"([0-9]{1,12}(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,3})?)"
_BOUNDS = rf"(?:,{_WHOLE}-{_WHOLE})?"


def _bounds(low: str | None, high: str | None) -> dict[str, int]:
    return {} if low is None or high is None else {"low": int(low), "high": int(high)}


_Maker = Callable[[re.Match[str]], Lengths]
_PARSERS: Final[Mapping[str, tuple[tuple[str, _Maker], ...]]] = {
    "": ((_WHOLE, lambda m: Fixed(value=int(m[1]))),),
    "uniform": (
        (f"{_WHOLE}-{_WHOLE}", lambda m: Uniform(low=int(m[1]), high=int(m[2]))),
        (f"{_WHOLE},{_REAL}", lambda m: Uniform.around(int(m[1]), float(m[2]))),
    ),
    "normal": (
        (
            f"{_REAL},{_REAL}{_BOUNDS}",
            lambda m: Normal(mean=float(m[1]), std=float(m[2]), **_bounds(m[3], m[4])),
        ),
    ),
    "lognormal": (
        (
            f"p50={_REAL},p99={_REAL}{_BOUNDS}",
            lambda m: Lognormal(p50=float(m[1]), p99=float(m[2]), **_bounds(m[3], m[4])),
        ),
    ),
}
