"""What one process does of a log: parse, tokenize, cut into pieces, mend, hash the blocks."""

from __future__ import annotations

import gc
import multiprocessing
import os
from array import array
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from whet.core.errors import UsageError
from whet.core.records import LeftOut, LoggedRequest
from whet.prefix.blocks import chain_hashes_many, most_hits, salt_of
from whet.prefix.canon import Canon, Canoniser
from whet.prefix.causes import Reading
from whet.prefix.learn import Rules
from whet.prefix.log import LogReader, of_model, parse_chunk
from whet.prefix.prepared import Batch, Prepared, Prompt
from whet.prefix.render import Ids, TemplateProblem, load_encoder
from whet.prefix.units import hash_text

_SMALL_BYTES: Final = 16 << 20
"""A log below this is read in this process: others take longer to start."""
_RARELY: Final = 100_000
"""Objects made before garbage is looked for."""
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
        read: list[_Read] = []
        refused: dict[str, list[str]] = {}
        for request in parsed.requests:
            try:
                read.append(self._read(request))
            except TemplateProblem as problem:
                refused.setdefault(str(problem), []).append(request.place)
        left_out = [
            LeftOut(reason=reason, count=len(places), first=places[0])
            for reason, places in refused.items()
        ]
        return Batch(
            requests=tuple(self._prepare(read)),
            left_out=(*parsed.left_out, *left_out),
            models=Counter(parsed.models),
        )

    def _read(self, request: LoggedRequest) -> _Read:
        """One request's pieces and tokens; ``TemplateProblem`` where the template refuses it."""
        canon = self._canoniser.apply(request)
        sent = self._tokens(request)
        mended = sent if canon.mended is request else self._tokens(canon.mended)
        return _Read(request=request, canon=canon, sent=sent, mended=mended)

    def _prepare(self, read: Sequence[_Read]) -> Iterator[Prepared]:
        """Hash the blocks of all together, which is many times faster than one by one."""
        size = self._setup.block_size
        told = [tokens for each in read for tokens in each.prompts]
        hashes = iter(
            chain_hashes_many(
                [tokens.held for tokens in told], size, salts=[tokens.salt for tokens in told]
            )
        )
        for each in read:
            prompts = [
                Prompt(ids=tokens.ids, hashes=next(hashes), most=most_hits(len(tokens.ids), size))
                for tokens in each.prompts
            ]
            yield Prepared(
                place=each.request.place,
                at_ns=each.request.at_ns,
                output_tokens=each.request.output_tokens,
                session=each.request.session,
                sent=prompts[0],
                mended=prompts[-1],
                reading=_reading(each),
            )

    def _tokens(self, request: LoggedRequest) -> _Tokens:
        ids, answer = self._encoder.ids(request), self._answer(request)
        held = np.concatenate([ids, answer]) if len(answer) else ids
        return _Tokens(ids=ids, held=held, salt=salt_of(request.cache_salt))

    def _answer(self, request: LoggedRequest) -> Ids:
        """The answer's tokens that stay in the cache; unknown ones are like no others."""
        if request.output is not None:
            return self._encoder.encode(request.output)[:-1]
        unknown = max((request.output_tokens or 0) - 1, 0)
        if not unknown:
            return _NONE
        return np.full(unknown, -1 - hash_text(request.place) % (1 << 30), dtype=np.int32)


@dataclass(frozen=True, slots=True)
class _Tokens:
    """A prompt's ids, the same with the answer's that stay, and the cache salt."""

    ids: Ids
    held: Ids
    salt: int


@dataclass(frozen=True, slots=True)
class _Read:
    """A request before its blocks are hashed."""

    request: LoggedRequest
    canon: Canon
    sent: _Tokens
    mended: _Tokens

    @property
    def prompts(self) -> tuple[_Tokens, ...]:
        """As it was sent, and mended where that is another."""
        return (self.sent,) if self.mended is self.sent else (self.sent, self.mended)


_NONE: Final[Ids] = np.empty(0, dtype=np.int32)


def _reading(read: _Read) -> Reading:
    raw, canon, units, lengths = array("Q"), array("Q"), array("Q"), array("Q")
    kinds: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    characters = 0
    for told in read.canon.told:
        one, two = told.chained(raw[-1] if raw else 0, canon[-1] if canon else 0)
        raw += one
        canon += two
        units += told.canon
        lengths += told.lengths
        kinds += told.kinds
        where += told.places
        characters += told.characters
    return Reading(
        at_ns=read.request.at_ns,
        raw=raw,
        canon=canon,
        units=units,
        kinds=kinds,
        where=where,
        lengths=lengths,
        messages=[(hash_text(text), len(text)) for text in read.canon.messages],
        characters=characters,
        tokens=len(read.sent.ids),
    )


@contextmanager
def seldom_collected() -> Iterator[None]:
    """What is remembered of a log is no garbage, and looking through it again and again costs."""
    before = gc.get_threshold()
    gc.set_threshold(_RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)


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
    gc.set_threshold(_RARELY)


def _work(form: str, first_line: int, data: bytes, name: str) -> Batch:
    return _PREPARER[0].chunk(form, first_line, data, name)
