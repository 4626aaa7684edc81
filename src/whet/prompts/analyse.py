"""From a request log to its hit rate, causes, and fixes that pay."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from whet.checkpoint import locate_without_weights
from whet.checkpoint.chat import TEMPLATE_REFUSES, TemplateProblem
from whet.checkpoint.encoder import Ids, PromptEncoder, load_encoder
from whet.core.errors import UsageError
from whet.core.format import plural
from whet.load.sharing import chain_hashes
from whet.prompts.cache import PrefixCache, most_hits
from whet.prompts.causes import CauseFinder, Variables
from whet.prompts.fixes import FIXES, apply_fixes, fixable
from whet.prompts.records import CauseKind, Fix, HitTokens, PromptAnalysis
from whet.requests import (
    LeftOut,
    LoggedRequest,
    LogReader,
    count_doubt,
    finding,
    media,
    only_model,
)

_BATCH: Final = 256
"""Requests whose blocks are hashed together."""
_PROGRESS: Final = 1_000

Progress = Callable[[int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptQuestion:
    """What to analyse. ``target`` is the model's folder or hub id, for tokenizer and template.

    ``block_size`` is in tokens; ``cache_blocks`` is the size of the cache, None if unknown.
    ``model`` selects one of a mixed log. ``redacted`` leaves every text out.
    """

    log: Path
    target: str
    block_size: int = 16
    cache_blocks: int | None = None
    model: str | None = None
    max_requests: int | None = None
    chat_template: Path | None = None
    redacted: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request's prompt: token ids, block hashes with the answer's, and the most hits."""

    request: LoggedRequest
    ids: Ids
    hashes: list[int]
    most: int


class PromptLog:
    """The prompts of a log, read anew by each call, one batch in memory."""

    def __init__(self, question: PromptQuestion) -> None:
        """Read the tokenizer; ``UsageError`` for a log of several models and no choice."""
        self.question = question
        folder = locate_without_weights(question.target)
        self.encoder = load_encoder(folder, chat_template=question.chat_template)
        self.model = only_model(question.log, question.model)
        self.reader = LogReader(question.log, model=self.model)
        self.left_out: tuple[LeftOut, ...] = ()

    def prompts(self) -> Iterator[Prompt]:
        """Each request's prompt."""
        return (prompt for batch in self.batches() for prompt in batch)

    def batches(self) -> Iterator[list[Prompt]]:
        """The prompts, as many together as are worked on together."""
        reader = self.reader
        requests = iter(islice(reader, self.question.max_requests))
        count = 0
        while batch := list(islice(requests, _BATCH)):
            rows: list[tuple[LoggedRequest, Ids]] = []
            for request, ids in zip(batch, self.encoder.ids_many(batch), strict=True):
                if isinstance(ids, TemplateProblem):
                    reader.leave_out(str(ids), request.place)
                else:
                    rows.append((request, ids))
            count += len(rows)
            yield self._hashed(rows)
        self.left_out = reader.left_out()
        if not count:
            raise self._nothing(reader)
        reader.refuse_textless()

    def _nothing(self, reader: LogReader) -> UsageError:
        """Return the error for a log without a usable request."""
        reasons = {each.reason for each in self.left_out}
        if refused := sorted(reason for reason in reasons if reason.startswith(TEMPLATE_REFUSES)):
            return UsageError(
                f"{reader.path}: {refused[0]}",
                fix="give the template that the server uses with --chat-template FILE",
            )
        return reader.no_request()

    def fixed(
        self, prompts: Sequence[Prompt], variables: Variables, kinds: Collection[CauseKind]
    ) -> list[Prompt]:
        """The prompts with fixes; the same object where none changes it."""
        requests = [apply_fixes(prompt.request, variables, kinds) for prompt in prompts]
        at = [i for i, request in enumerate(requests) if request is not prompts[i].request]
        encoded = self.encoder.ids_many([requests[i] for i in at])
        rows = [(i, ids) for i, ids in zip(at, encoded, strict=True) if isinstance(ids, np.ndarray)]
        fixed = list(prompts)
        changed = self._hashed([(requests[i], ids) for i, ids in rows])
        for (i, _), prompt in zip(rows, changed, strict=True):
            fixed[i] = prompt
        return fixed

    def _hashed(self, rows: list[tuple[LoggedRequest, Ids]]) -> list[Prompt]:
        size = self.question.block_size
        prompts = []
        for request, ids in rows:
            cached = np.concatenate([ids, answer_ids(self.encoder, request)])
            hashes = chain_hashes(cached, size, salt=request.cache_salt)
            prompts.append(Prompt(request, ids, hashes, most_hits(len(ids), size)))
        return prompts


def answer_ids(encoder: PromptEncoder, request: LoggedRequest) -> Ids:
    """The answer's tokens that stay in the cache: all but the last one.

    Unknown tokens, such as those of a reasoning answer, differ from all others.
    """
    if request.output is not None and request.reasoning is None:
        return encoder.encode(request.output)[:-1]
    unknown = max((request.output_tokens or 0) - 1, 0)
    return np.full(unknown, -1 - (hash(request.place) % (1 << 30)), dtype=np.int32)


def analyse(
    log: PromptLog, *, progress: Progress = lambda requests: None
) -> tuple[PromptAnalysis, Variables]:
    """Read the log, find causes, and replay it with each fix.

    Also returns what the fixes need. Raises ``UsageError`` for a log without requests or with
    those of several models, ``CheckpointError`` for a tokenizer that cannot be read.
    """
    question = log.question
    first = _FirstPass(question)
    for prompt in log.prompts():
        first.add(prompt)
        if first.count % _PROGRESS == 0:
            progress(first.count)
    left_out = log.left_out
    doubts = (*log.reader.check.doubts(), *first.doubts())
    finder, times, traffic = first.finder, first.times, first.traffic
    fixes, together = _check_fixes(log, finder.variables, traffic)
    analysis = PromptAnalysis(
        source=question.log.name,
        model=log.model or "",
        requests=first.count,
        left_out=left_out,
        first_at_ns=times[0] if times else None,
        last_at_ns=times[-1] if times else None,
        block_size=question.block_size,
        cache_blocks=question.cache_blocks,
        hits=traffic.hits,
        sized=traffic.sized,
        causes=finder.result(),
        fixes=fixes,
        together=together,
        doubts=doubts,
    )
    return analysis, finder.variables


class _FirstPass:
    """The log as it is: its replay, causes and counts; ``times`` are the first and the last one."""

    def __init__(self, question: PromptQuestion) -> None:
        self._block_size = question.block_size
        self.traffic = _Replayed(question)
        self.finder = CauseFinder(question.block_size, redacted=question.redacted)
        self.count = 0
        self.times: list[int] = []
        self.counted: list[tuple[int | None, int]] = []

    def add(self, prompt: Prompt) -> None:
        request, tokens = prompt.request, len(prompt.ids)
        hits = self.traffic.add(prompt) * self._block_size
        self.finder.judge(request, tokens=tokens, hit_tokens=hits)
        if not media(request):
            self.counted.append((request.prompt_tokens, tokens))
        if request.at_ns is not None:
            self.times = [*self.times[:1], request.at_ns]
        self.count += 1

    def doubts(self) -> Iterator[str]:
        """What is odd about the counts."""
        yield from filter(None, [count_doubt(self.counted)])
        if other := self.count - len(self.counted):
            count = f"{other:,} of {plural(self.count, 'request')}"
            yield finding("media", f"{count} hold images or sound: their text alone is counted")


class _Replayed:
    """One replay of the log through the cache model; ``changed`` counts what a fix changed."""

    def __init__(self, question: PromptQuestion) -> None:
        self.question, self.cache = question, PrefixCache(None)
        blocks = question.cache_blocks
        self.sized_cache = None if blocks is None else PrefixCache(blocks)
        self.tokens = self.changed = 0

    def add(self, prompt: Prompt) -> int:
        """Replay a prompt; returns its hits in blocks."""
        self.tokens += len(prompt.ids)
        if self.sized_cache is not None:
            self.sized_cache.touch(prompt.hashes, prompt.most)
        return self.cache.touch(prompt.hashes, prompt.most)

    @property
    def hits(self) -> HitTokens:
        return self._hits(self.cache)

    @property
    def sized(self) -> HitTokens | None:
        return None if self.sized_cache is None else self._hits(self.sized_cache)

    def _hits(self, cache: PrefixCache) -> HitTokens:
        hits = cache.hit_blocks * self.question.block_size
        return HitTokens(prompt_tokens=self.tokens, hit_tokens=hits)

    def beats(self, other: _Replayed) -> bool:
        """Whether the hit rate is higher and fewer tokens are computed, at the given size too."""
        pairs = [(self.hits, other.hits)]
        if self.sized is not None and other.sized is not None:
            pairs.append((self.sized, other.sized))
        return all(
            mine.rate > theirs.rate and mine.missed < theirs.missed for mine, theirs in pairs
        )


def _check_fixes(
    log: PromptLog, variables: Variables, traffic: _Replayed
) -> tuple[tuple[Fix, ...], Fix | None]:
    """The fixes that raise the hit rate, the best first; all together."""
    kinds = fixable(variables)
    if not kinds:
        return (), None
    alone = _replay(log, variables, [(kind,) for kind in kinds])
    winners = [(kind, replay) for kind, replay in alone.items() if replay.beats(traffic)]
    winners.sort(key=lambda each: each[1].hits.missed)
    fixes = tuple(_fix(kinds, replay) for kinds, replay in winners)
    if len(winners) < 2:
        return fixes, None
    every = tuple(kind for kinds, _ in winners for kind in kinds)
    both = _replay(log, variables, [every])[every]
    return fixes, _fix(every, both) if both.beats(winners[0][1]) else None


def _replay(
    log: PromptLog, variables: Variables, sets: list[tuple[CauseKind, ...]]
) -> dict[tuple[CauseKind, ...], _Replayed]:
    """Replay the log once for each set of fixes, side by side."""
    replays = {kinds: _Replayed(log.question) for kinds in sets}
    for batch in log.batches():
        for kinds, replay in replays.items():
            for fixed, prompt in zip(log.fixed(batch, variables, kinds), batch, strict=True):
                replay.add(fixed)
                replay.changed += fixed is not prompt
    return replays


def _fix(kinds: tuple[CauseKind, ...], replay: _Replayed) -> Fix:
    return Fix(
        kinds=kinds,
        title=FIXES[kinds[0]] if len(kinds) == 1 else "All of these together",
        requests=replay.changed,
        hits=replay.hits,
        sized=replay.sized,
    )
