"""One line of a trace of lengths to one row, and the units that all rows together say.

Azure LLM inference trace (2023 and 2024), CSV:
    TIMESTAMP,ContextTokens,GeneratedTokens         2023-11-16 18:15:46.6805900,374,44
BurstGPT, CSV, with further columns in its third part; seconds; failures have 0 response tokens:
    Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
Mooncake, JSONL; milliseconds; one hash id per block of 512 tokens:
    {"timestamp": 277, "input_length": 755, "output_length": 500, "hash_ids": [0, 14]}
Qwen Bailian, JSONL with the same keys and ``chat_id``; seconds; one hash id per 16 tokens.
Times are read as seconds first. Files with the same keys differ in the unit of time and the size
of a block, so neither is taken from the form alone: a reading that the rows contradict, or that
leaves another one open, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from whet.core.errors import UsageError
from whet.core.units import NS_PER_S, TimeUnit
from whet.requests import LoggedRequest
from whet.requests.log_times import clock_ns, exact_number

CSV_FORMATS: Final[Mapping[str, tuple[str, str, str]]] = {
    "Azure LLM inference trace": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "BurstGPT": ("Timestamp", "Request tokens", "Response tokens"),
}
"""Columns of time, input and output; the last two are in no other format."""
MOONCAKE: Final = "Mooncake"
BAILIAN: Final = "Qwen Bailian"
PER_SECOND: Final[Mapping[TimeUnit, int]] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
BLOCK_SIZES: Final = (16, 32, 64, 128, 256, 512, 1024)
_EPOCH: Final = 10**9
"""A first time of more units than this counts from 1970: in seconds it is a time after 2001."""
_LEAST_RPS: Final = 0.01
_MOST_RPS: Final = 100.0
"""Requests per second outside of these are more likely those of another unit."""
_MAX_DIGITS: Final = 12


class BrokenRow(ValueError):
    """A line that is not a row of its format; the message says what is wrong with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceRow:
    """One request of a trace.

    ``at_ns`` counts from the first row; None in a log without times. ``output_tokens`` is what was
    generated or, where a log does not say, the request's own bound. ``prefix_ids`` are hash ids of
    the prompt's blocks, empty where unknown: equal leading ids are an equal beginning. A log also
    has the request itself.
    """

    at_ns: int | None
    input_tokens: int | None
    output_tokens: int | None
    prefix_ids: tuple[int, ...] = ()
    request: LoggedRequest | None = None

    @property
    def failed(self) -> bool:
        """Whether no request can stand for this row: it had no input, or no answer."""
        return self.input_tokens == 0 or self.output_tokens == 0


def read_cells(cells: Mapping[str, str], columns: Sequence[str]) -> TraceRow:
    """The row of a CSV line; ``columns`` are those of time, input and output."""
    time, read, written = columns
    return TraceRow(
        at_ns=_time(cells, time),
        input_tokens=_cell_count(cells, read),
        output_tokens=_cell_count(cells, written),
    )


def _time(item: Mapping[str, Any], key: str) -> int:
    """Nanoseconds of a clock time, or of a number as if it were seconds."""
    value = item[key]
    at_ns = clock_ns(value) if isinstance(value, str) else None
    number = exact_number(value) if at_ns is None else None
    if number is not None:
        at_ns = round(number * NS_PER_S)
    if at_ns is None:
        raise BrokenRow(f"{key} is {value!r}, not a number or a time like 2023-11-16 18:15:46.68")
    return at_ns


def read_mooncake(item: Mapping[str, Any]) -> TraceRow:
    """The row of a line; ``BrokenRow`` says what is wrong with it."""
    if item.get("timestamp") is None and item.get("delay") is not None:
        raise BrokenRow("delay counts from the answer before; give every row a timestamp")
    for key in ("timestamp", "input_length", "output_length"):
        if item.get(key) is None:
            raise BrokenRow(f"{key} is missing")
    ids = item.get("hash_ids", [])
    if not isinstance(ids, list) or not all(_is_count(one) for one in ids):
        raise BrokenRow("hash_ids is not a list of whole numbers")
    return TraceRow(
        at_ns=_time(item, "timestamp"),
        input_tokens=_count(item, "input_length"),
        output_tokens=_count(item, "output_length"),
        prefix_ids=tuple(ids),
    )


def hashed_form(item: object) -> str | None:
    """The form of a first line with keys that only Mooncake's and Bailian's traces have."""
    if not isinstance(item, dict):
        return None
    if {"input_length", "output_length", "hash_ids"}.isdisjoint(item):
        return None
    return MOONCAKE if {"chat_id", "parent_chat_id"}.isdisjoint(item) else BAILIAN


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _count(item: Mapping[str, Any], key: str) -> int | None:
    value = item.get(key)
    if value is None:
        return None
    if not _is_count(value):
        raise BrokenRow(f"{key} is {value!r}, not a whole number of tokens")
    return int(value)


def _cell_count(cells: Mapping[str, str], column: str) -> int:
    text = cells[column]
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise BrokenRow(f"{column} is {text!r}, not a whole number of tokens")
    return int(text)


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


def block_size(
    path: str, rows: Sequence[tuple[str, TraceRow]], form_size: int, given: int | None
) -> int:
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
