"""A request of a log, prepared to be judged, and how many are handed from process to process."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from whet.core.records import LeftOut
from whet.prefix.blocks import Hashes
from whet.prefix.causes import Reading
from whet.prefix.render import Ids

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A prompt as a cache sees it: token ids, block hashes with the answer's, the most hits."""

    ids: Ids
    hashes: Hashes
    most: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A request, as it was sent and mended: the same object where nothing had to be done."""

    place: str
    at_ns: int | None
    output_tokens: int | None
    session: str | None
    sent: Prompt
    mended: Prompt
    reading: Reading


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The requests of one chunk and what was left out of it."""

    requests: tuple[Prepared, ...]
    left_out: tuple[LeftOut, ...]
    models: Counter[str]

    def __reduce__(self) -> tuple[Callable[..., Batch], tuple[Any, ...]]:
        """Between processes the arrays of all requests travel as one: a request has eight."""
        return _unpack, (_pack(self.requests), self.left_out, self.models)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Packed:
    """Requests side by side: a column for each field, rows that many have told once."""

    plain: list[tuple[str, int | None, int | None, str | None]]
    mended: list[bool]
    ids: _Rows
    hashes: _Rows
    most: list[int]
    pieces: dict[str, array[int]]
    counts: list[int]
    forms: list[tuple[tuple[str, ...], tuple[str, ...]]]
    form_of: list[int]
    others: list[tuple[Sequence[tuple[int, int]], int, int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rows:
    """Arrays one after another."""

    flat: NDArray[Any]
    counts: list[int]

    @classmethod
    def of(cls, rows: Sequence[NDArray[Any]]) -> _Rows:
        return cls(flat=np.concatenate(rows) if rows else np.empty(0), counts=[*map(len, rows)])

    def __iter__(self) -> Iterator[NDArray[Any]]:
        self.flat.setflags(write=False)
        return (self.flat[start:end] for start, end in _stretches(self.counts))


_COLUMNS = ("raw", "canon", "units", "lengths")


def _pack(requests: Sequence[Prepared]) -> _Packed:
    prompts = [
        prompt
        for each in requests
        for prompt in ((each.sent,) if each.mended is each.sent else (each.sent, each.mended))
    ]
    readings = [each.reading for each in requests]
    forms: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
    return _Packed(
        plain=[(each.place, each.at_ns, each.output_tokens, each.session) for each in requests],
        mended=[each.mended is not each.sent for each in requests],
        ids=_Rows.of([prompt.ids for prompt in prompts]),
        hashes=_Rows.of([prompt.hashes for prompt in prompts]),
        most=[prompt.most for prompt in prompts],
        pieces={name: _joined(getattr(each, name) for each in readings) for name in _COLUMNS},
        counts=[len(each.kinds) for each in readings],
        form_of=[forms.setdefault((each.kinds, each.where), len(forms)) for each in readings],
        forms=list(forms),
        others=[(each.messages, each.characters, each.tokens) for each in readings],
    )


def _unpack(packed: _Packed, left_out: tuple[LeftOut, ...], models: Counter[str]) -> Batch:
    prompts = (
        Prompt(ids=ids, hashes=hashes, most=most)
        for ids, hashes, most in zip(packed.ids, packed.hashes, packed.most, strict=True)
    )
    requests = []
    for plain, is_mended, reading in zip(
        packed.plain, packed.mended, _readings(packed), strict=True
    ):
        place, at_ns, output_tokens, session = plain
        sent = next(prompts)
        requests.append(
            Prepared(
                place=place,
                at_ns=at_ns,
                output_tokens=output_tokens,
                session=session,
                sent=sent,
                mended=next(prompts) if is_mended else sent,
                reading=reading,
            )
        )
    return Batch(requests=tuple(requests), left_out=left_out, models=models)


def _readings(packed: _Packed) -> Iterator[Reading]:
    raw, canon, units, lengths = (packed.pieces[name] for name in _COLUMNS)
    for at, (start, end) in enumerate(_stretches(packed.counts)):
        kinds, where = packed.forms[packed.form_of[at]]
        messages, characters, tokens = packed.others[at]
        yield Reading(
            at_ns=packed.plain[at][1],
            raw=raw[start:end],
            canon=canon[start:end],
            units=units[start:end],
            kinds=kinds,
            where=where,
            lengths=lengths[start:end],
            messages=messages,
            characters=characters,
            tokens=tokens,
        )


def _stretches(counts: Iterable[int]) -> Iterator[tuple[int, int]]:
    return pairwise(accumulate(counts, initial=0))


def _joined(rows: Iterable[array[int]]) -> array[int]:
    whole = array("Q")
    for row in rows:
        whole += row
    return whole
