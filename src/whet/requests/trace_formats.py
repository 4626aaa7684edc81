"""Rows of traces of lengths, and the tokens of a hash id that all rows together say.

Azure LLM inference trace (2023 and 2024), CSV:
    TIMESTAMP,ContextTokens,GeneratedTokens         2023-11-16 18:15:46.6805900,374,44
BurstGPT, CSV, with further columns in its third part; seconds; failures have 0 response tokens:
    Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
Mooncake, JSONL; milliseconds; one hash id per block of 512 tokens; AIPerf also has text_input:
    {"timestamp": 277, "input_length": 755, "output_length": 500, "hash_ids": [0, 14]}
Qwen Bailian, JSONL with the same keys and ``chat_id``; seconds; one hash id per 16 tokens.
Vidur and Splitwise, CSV; seconds. Files with the same keys differ in the unit of time and the size
of a block, so neither is taken from the form alone: a reading that the rows contradict, or that
leaves another one open, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from whet.core.errors import UsageError
from whet.core.units import TimeUnit
from whet.requests.log_times import Json, time_ns
from whet.requests.records import REQUEST_LOG, Broken, LoggedRequest
from whet.requests.vendors import whole

MOONCAKE: Final = "Mooncake"
BAILIAN: Final = "Qwen Bailian"
_COLUMNS: Final[Mapping[str, tuple[str, str, str]]] = {
    "Azure LLM inference trace": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "BurstGPT": ("Timestamp", "Request tokens", "Response tokens"),
    "Vidur": ("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    "Splitwise": ("arrival_timestamp", "prompt_size", "token_size"),
    MOONCAKE: ("timestamp", "input_length", "output_length"),
    BAILIAN: ("timestamp", "input_length", "output_length"),
}
"""Keys of time, input and output; the last two are in no other form."""
FORM_UNITS: Final[Mapping[str, TimeUnit]] = {MOONCAKE: "ms"}
"""The unit of times where a form's own description does not say seconds."""
_FORM_SIZES: Final[Mapping[str, int]] = {BAILIAN: 16}
_USUAL_SIZE: Final = 512
BLOCK_SIZES: Final = (16, 32, 64, 128, 256, 512, 1024)


def form_of(item: Json) -> str:
    """The form of a line, by keys that no other form has."""
    hashed = not {"hash_ids", "text_input", "input_length", "output_length"}.isdisjoint(item)
    if hashed:
        return MOONCAKE if {"chat_id", "parent_chat_id"}.isdisjoint(item) else BAILIAN
    forms = (form for form, keys in _COLUMNS.items() if not {*keys[1:]}.isdisjoint(item))
    return next(forms, REQUEST_LOG)


def lengths_row(item: Json, place: str, form: str) -> LoggedRequest:
    """The row of a trace of lengths; ``Broken`` says what is wrong with it."""
    keys = _COLUMNS[form]
    if item.get(keys[0]) is None and item.get("delay") is not None:
        raise Broken("delay counts from the answer before; give every row a timestamp")
    if missing := [key for key in keys if item.get(key) is None]:
        raise Broken(f"a row ({form}) without {', '.join(missing)}")
    at_ns, given, written = time_ns(item[keys[0]]), whole(item[keys[1]]), whole(item[keys[2]])
    if at_ns is None:
        raise Broken(f"{keys[0]} that is neither a number nor a time")
    if given is None or written is None:
        raise Broken(f"{keys[1 if given is None else 2]} that is not a whole number of tokens")
    return LoggedRequest(
        place=place,
        form=form,
        at_ns=at_ns,
        prompt_tokens=given,
        output_tokens=written,
        hash_ids=hash_ids(item),
    )


def hash_ids(item: Json) -> tuple[int, ...]:
    """The names of a prompt's blocks; empty where the line has none."""
    ids = item.get("hash_ids") or []
    if isinstance(ids, list) and all(type(each) is int and each >= 0 for each in ids):
        return tuple(ids)
    raise Broken("hash_ids that are not a list of whole numbers")


def block_size(path: str, rows: Sequence[LoggedRequest], given: int | None) -> int:
    """The tokens of a hash id: the one size that all rows agree with.

    A row has an id for each block that it begins, or for each that it fills. ``UsageError``, with a
    row, where no size agrees with all, or several do and the form's own is not among them.
    """
    hashed = [
        (row.place, row.input_tokens, len(row.hash_ids))
        for row in rows
        if row.input_tokens and row.hash_ids
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
    form_size = _FORM_SIZES.get(rows[0].form, _USUAL_SIZE)
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
