"""One line of a trace of lengths to one row, in the four formats that are read.

Azure LLM inference trace (2023 and 2024), CSV:
    TIMESTAMP,ContextTokens,GeneratedTokens         2023-11-16 18:15:46.6805900,374,44
BurstGPT, CSV, with further columns in its third part; seconds; failures have 0 response tokens:
    Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
Mooncake, JSONL; milliseconds; one hash id per block of 512 tokens:
    {"timestamp": 277, "input_length": 755, "output_length": 500, "hash_ids": [0, 14]}
Qwen Bailian, JSONL with the same keys and ``chat_id``; seconds; one hash id per 16 tokens.
Times are read as seconds here; ``trace_units`` finds their unit and the size of a block from all
rows. Logs of requests with their prompts are read by ``whet.requests``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from whet.core.units import NS_PER_S
from whet.requests import LoggedRequest
from whet.requests.log_times import clock_ns, exact_number

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


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvFormat:
    """A format with a header. ``marks`` are the columns that only this format has."""

    name: str
    columns: tuple[str, ...]
    marks: frozenset[str]
    read: Callable[[Mapping[str, str]], TraceRow]


def _azure(cells: Mapping[str, str]) -> TraceRow:
    return TraceRow(
        at_ns=_time(cells, "TIMESTAMP"),
        input_tokens=_cell_count(cells, "ContextTokens"),
        output_tokens=_cell_count(cells, "GeneratedTokens"),
    )


def _burstgpt(cells: Mapping[str, str]) -> TraceRow:
    return TraceRow(
        at_ns=_time(cells, "Timestamp"),
        input_tokens=_cell_count(cells, "Request tokens"),
        output_tokens=_cell_count(cells, "Response tokens"),
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


CSV_FORMATS: Final = (
    CsvFormat(
        name="Azure LLM inference trace",
        columns=("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
        marks=frozenset({"ContextTokens", "GeneratedTokens"}),
        read=_azure,
    ),
    CsvFormat(
        name="BurstGPT",
        columns=("Timestamp", "Request tokens", "Response tokens"),
        marks=frozenset({"Request tokens", "Response tokens"}),
        read=_burstgpt,
    ),
)
MOONCAKE: Final = "Mooncake"
BAILIAN: Final = "Qwen Bailian"
