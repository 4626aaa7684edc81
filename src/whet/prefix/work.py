"""What one process does of a log: parse, tokenize, cut into pieces, mend, hash the blocks."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from whet.core.errors import UsageError
from whet.core.records import LeftOut, LoggedRequest
from whet.prefix.blocks import Hashes, chain_hashes_many, most_hits, salt_of
from whet.prefix.canon import Canoniser
from whet.prefix.causes import Reading
from whet.prefix.learn import Rules
from whet.prefix.log import LogReader, of_model, parse_chunk
from whet.prefix.render import Ids, TemplateProblem, load_encoder
from whet.prefix.units import chain, hash_text

_SMALL_BYTES: Final = 16 << 20
"""A log below this is read in this process: others take longer to start."""
_AHEAD: Final = 2
"""Chunks a process that are read ahead of the one that is judged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What every process needs to know. ``block_size`` is tokens a KV block."""

    tokenizer: Path
    chat_template: Path | None
    block_size: int
    model: str | None
    rules: Rules


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The requests of one chunk and what was left out of it."""

    requests: tuple[Prepared, ...]
    left_out: tuple[LeftOut, ...]
    models: Counter[str]


class Preparer:
    """Prepares requests, one process' share of a log."""

    def __init__(self, setup: Setup) -> None:
        """Read the tokenizer."""
        self._setup = setup
        self._encoder = load_encoder(setup.tokenizer, chat_template=setup.chat_template)
        self._canoniser = Canoniser(setup.rules, tools_first=self._encoder.tools_first())

    def chunk(self, form: str, first_line: int, data: bytes, name: str) -> Batch:
        """Everything of some lines of a log."""
        parsed = of_model(parse_chunk(form, first_line, data, name), self._setup.model)
        found: list[Prepared] = []
        refused: dict[str, list[str]] = {}
        for request in parsed.requests:
            try:
                found.append(self.prepare(request))
            except TemplateProblem as problem:
                refused.setdefault(str(problem), []).append(request.place)
        left_out = [
            LeftOut(reason=reason, count=len(places), first=places[0])
            for reason, places in refused.items()
        ]
        return Batch(
            requests=tuple(found),
            left_out=(*parsed.left_out, *left_out),
            models=Counter(parsed.models),
        )

    def prepare(self, request: LoggedRequest) -> Prepared:
        """One request; ``TemplateProblem`` where the chat template does not take it."""
        canon = self._canoniser.apply(request)
        sent = self._prompt(request)
        mended = sent if canon.mended is request else self._prompt(canon.mended)
        units = [piece.canon for piece in canon.pieces]
        lengths = [len(piece.text) for piece in canon.pieces]
        reading = Reading(
            at_ns=request.at_ns,
            raw=chain([piece.raw for piece in canon.pieces]),
            canon=chain(units),
            units=units,
            kinds=[piece.kind for piece in canon.pieces],
            where=canon.where,
            lengths=lengths,
            messages=[(hash_text(text), len(text)) for text in canon.messages],
            characters=sum(lengths),
            tokens=len(sent.ids),
        )
        return Prepared(
            place=request.place,
            at_ns=request.at_ns,
            output_tokens=request.output_tokens,
            session=request.session,
            sent=sent,
            mended=mended,
            reading=reading,
        )

    def _prompt(self, request: LoggedRequest) -> Prompt:
        size = self._setup.block_size
        ids = self._encoder.ids(request)
        held = np.concatenate([ids, self._answer(request)])
        hashes = chain_hashes_many([held], size, salts=[salt_of(request.cache_salt)])[0]
        return Prompt(ids=ids, hashes=hashes, most=most_hits(len(ids), size))

    def _answer(self, request: LoggedRequest) -> Ids:
        """The answer's tokens that stay in the cache; unknown ones are like no others."""
        if request.output is not None:
            return self._encoder.encode(request.output)[:-1]
        unknown = max((request.output_tokens or 0) - 1, 0)
        return np.full(unknown, -1 - hash_text(request.place) % (1 << 30), dtype=np.int32)


def prepare_log(reader: LogReader, setup: Setup) -> Iterator[Batch]:
    """The chunks of a log, prepared, in order; on every core where the log is not small."""
    if reader.path.is_dir() or reader.path.stat().st_size < _SMALL_BYTES:
        preparer = Preparer(setup)
        for chunk in reader.chunks():
            yield preparer.chunk(*chunk)
        return
    workers = os.cpu_count() or 1
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_start, initargs=(setup,)) as pool:
        waiting: deque[Future[Batch]] = deque()
        try:
            for chunk in reader.chunks():
                waiting.append(pool.submit(_work, *chunk))
                if len(waiting) > _AHEAD * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise UsageError(
                "a process that reads the log was ended, most likely for memory; read less of it "
                "with --max-requests"
            ) from error


_PREPARER: Final[list[Preparer]] = []
"""The one of this process, made when it starts."""


def _start(setup: Setup) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process a core is what there is to gain
    _PREPARER.append(Preparer(setup))


def _work(form: str, first_line: int, data: bytes, name: str) -> Batch:
    return _PREPARER[0].chunk(form, first_line, data, name)
