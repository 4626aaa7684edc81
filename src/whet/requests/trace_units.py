"""In which unit a trace's times are and how many tokens a hash id stands for, by all of its rows.

Files with the same keys differ in both, so neither is taken from the form alone: a reading that
the rows contradict, or that leaves another one open, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from whet.core.errors import UsageError
from whet.core.units import NS_PER_S, TimeUnit
from whet.requests.trace_formats import TraceRow

PlacedRows = Sequence[tuple[str, TraceRow]]

PER_SECOND: Final[Mapping[TimeUnit, int]] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
BLOCK_SIZES: Final = (16, 32, 64, 128, 256, 512, 1024)
_EPOCH: Final = 10**9
"""A first time of more units than this counts from 1970: in seconds it is a time after 2001."""
_LEAST_RPS: Final = 0.01
_MOST_RPS: Final = 100.0
"""Requests per second outside of these are more likely those of another unit."""


def time_unit(
    path: str, times: Sequence[tuple[int, str]], form_unit: TimeUnit, given: TimeUnit | None = None
) -> TimeUnit:
    """The unit of times, each with its row, that were read as seconds, in nanoseconds.

    ``given`` replaces that of relative times. ``UsageError``, with a row, where the requests per
    second contradict the form's unit.
    """
    if not times:
        return form_unit
    first, last = min(times), max(times)
    if (since_1970 := first[0] // NS_PER_S // _EPOCH) > 0:
        unit = next(unit for unit, count in PER_SECOND.items() if since_1970 < 1000 * count)
        if given not in (None, unit):
            raise UsageError(
                f"{path}: its times count from 1970 in {unit}", fix="leave out --trace-unit"
            )
        return unit
    if given is not None or first[0] == last[0]:
        return given or form_unit
    rps = (len(times) - 1) * NS_PER_S / (last[0] - first[0])  # if it is seconds
    fraction = next((place for at_ns, place in times if at_ns % NS_PER_S), None)
    if form_unit != "ms" and rps >= _LEAST_RPS:
        return form_unit
    if form_unit == "ms" and fraction is None and _LEAST_RPS <= 1000 * rps <= _MOST_RPS:
        return "ms"
    if form_unit == "ms" and fraction is not None and 1000 * rps > _MOST_RPS:
        return "s"
    raise UsageError(
        f"{path}, {fraction or last[1]}: its time is not clear: {len(times):,} rows are "
        f"{rps:.3g} requests per second if it is in s and {1000 * rps:.3g} if it is in ms",
        fix="write all times in one unit, and say which with --trace-unit",
    )


def block_size(path: str, rows: PlacedRows, form_size: int, given: int | None) -> int:
    """The tokens of a hash id: the one size that all rows agree with.

    A row has an id for each block that it begins, or for each that it fills. ``UsageError``, with a
    row, where no size agrees with all, or several do and ``form_size`` is not among them.
    """
    hashed = [
        (place, row.input_tokens, len(row.prefix_ids))
        for place, row in rows
        if row.input_tokens and row.prefix_ids
    ]
    if given is not None:
        for place, tokens, ids in hashed:
            if (ids - 1) * given >= tokens:
                raise UsageError(
                    f"{path}, {place}: {ids:,} hash ids of {given} tokens are more than its "
                    f"{tokens:,} prompt tokens",
                    fix="correct the row or --trace-block-size",
                )
        return given
    if not hashed:
        return form_size
    misfits = {
        (rounded_up, size): [
            place
            for place, tokens, ids in hashed
            if ids != (tokens + rounded_up * (size - 1)) // size
        ]
        for rounded_up in (1, 0)
        for size in BLOCK_SIZES
    }
    fits = [size for (_, size), places in misfits.items() if not places]
    if form_size in fits or len(set(fits)) == 1:
        return form_size if form_size in fits else fits[0]
    raise UsageError(
        f"{path}, {_disagreement(hashed, misfits)}",
        fix="correct the row or say the tokens per hash id with --trace-block-size",
    )


def _disagreement(
    hashed: Sequence[tuple[str, int, int]], misfits: Mapping[tuple[int, int], Sequence[str]]
) -> str:
    """The first row that contradicts the size most rows agree with; the first, if several fit."""
    fits = sorted({size for (_, size), places in misfits.items() if not places})
    (_, nearest), places = min(misfits.items(), key=lambda each: len(each[1]))
    if fits:
        why = f"fit blocks of {' and '.join(map(str, fits))} tokens"
    elif len(places) == len(hashed):
        why = f"fit no block of {', '.join(map(str, BLOCK_SIZES))} tokens"
    else:
        agree = f"{len(hashed) - len(places):,} of {len(hashed):,} rows"
        why = f"do not fit blocks of {nearest} tokens, as {agree} do"
    odd = places[0] if places else hashed[0][0]
    place, tokens, ids = next(each for each in hashed if each[0] == odd)
    return f"{place}: {tokens:,} prompt tokens and {ids:,} hash ids {why}"
