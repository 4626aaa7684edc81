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
from whet.load.sharing import chain_hashes
from whet.prompts.causes import CauseFinder, Variables
from whet.prompts.fixes import FIXES, apply_fixes, fixable
from whet.prompts.options import PromptsOptions
from whet.prompts.records import CauseKind, Fix, HitTokens, PromptAnalysis
from whet.requests import LeftOut, LoggedRequest, LogReader, TokenCheck, only_model

_BATCH: Final = 256
"""Requests whose blocks are hashed together."""
_PROGRESS: Final = 1_000

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request's prompt: token ids, and block hashes with the answer's."""

    request: LoggedRequest
    ids: Ids
    hashes: list[int]


class PromptLog:
    """The prompts of a log, read anew by each call, one batch in memory."""

    def __init__(self, path: Path, model: str, options: PromptsOptions = PromptsOptions()) -> None:
        """Read the tokenizer of ``model``, a folder or hub id.

        ``UsageError`` for a log of several models and no choice.
        """
        self.path, self.options = path, options
        folder = locate_without_weights(model)
        self.encoder = load_encoder(folder, chat_template=options.chat_template)
        self.model = only_model(path, options.model)
        self.reader = LogReader(path, model=self.model)
        self.left_out: tuple[LeftOut, ...] = ()

    def prompts(self) -> Iterator[Prompt]:
        """Each request's prompt."""
        return (prompt for batch in self.batches() for prompt in batch)

    def batches(self) -> Iterator[list[Prompt]]:
        """The prompts, as many together as are worked on together."""
        reader = self.reader
        requests = iter(islice(reader, self.options.max_requests))
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
        size = self.options.block_size
        prompts = []
        for request, ids in rows:
            cached = np.concatenate([ids, answer_ids(self.encoder, request)])
            hashes = chain_hashes(cached, size, salt=request.cache_salt)
            prompts.append(Prompt(request, ids, hashes))
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
    size = log.options.block_size
    traffic, finder = Replay(size), CauseFinder(size, redacted=log.options.redact)
    count, times, counts = 0, list[int](), TokenCheck(log.encoder.encode)
    for count, prompt in enumerate(log.prompts(), start=1):
        request, tokens = prompt.request, len(prompt.ids)
        finder.judge(request, tokens=tokens, hit_tokens=traffic.add(prompt))
        counts.add(request, tokens)
        if request.at_ns is not None:
            times = [*times[:1], request.at_ns]
        if count % _PROGRESS == 0:
            progress(count)
    left_out, doubts = log.left_out, (*log.reader.check.doubts(), *counts.doubts())
    fixes, together = _check_fixes(log, finder.variables, traffic)
    analysis = PromptAnalysis(
        source=log.path.name,
        model=log.model or "",
        requests=count,
        left_out=left_out,
        first_at_ns=times[0] if times else None,
        last_at_ns=times[-1] if times else None,
        block_size=size,
        hits=traffic.hits,
        causes=finder.result(),
        fixes=fixes,
        together=together,
        doubts=doubts,
    )
    return analysis, finder.variables


class Replay:
    """One replay of the log through a prefix cache of ``block_size`` tokens that never evicts.

    A prompt's last token is always computed, for its logits, so a prompt that fills its last block
    exactly computes that block (vLLM V1, ``KVCacheManager.get_computed_blocks``). ``changed``
    counts what a fix changed.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size, self._known = block_size, set[int]()
        self.tokens = self.hit_tokens = self.changed = 0

    def add(self, prompt: Prompt) -> int:
        """Replay a prompt; returns its hits in tokens."""
        most = max(len(prompt.ids) - 1, 0) // self._block_size
        missed = (at for at in range(most) if prompt.hashes[at] not in self._known)
        hits = next(missed, most) * self._block_size
        self._known.update(prompt.hashes)
        self.tokens += len(prompt.ids)
        self.hit_tokens += hits
        return hits

    @property
    def hits(self) -> HitTokens:
        return HitTokens(prompt_tokens=self.tokens, hit_tokens=self.hit_tokens)

    def beats(self, other: Replay) -> bool:
        """Whether the hit rate is higher and fewer tokens are computed."""
        mine, theirs = self.hits, other.hits
        return mine.rate > theirs.rate and mine.missed < theirs.missed


def _check_fixes(
    log: PromptLog, variables: Variables, traffic: Replay
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
) -> dict[tuple[CauseKind, ...], Replay]:
    """Replay the log once for each set of fixes, side by side."""
    replays = {kinds: Replay(log.options.block_size) for kinds in sets}
    for batch in log.batches():
        for kinds, replay in replays.items():
            for fixed, prompt in zip(log.fixed(batch, variables, kinds), batch, strict=True):
                replay.add(fixed)
                replay.changed += fixed is not prompt
    return replays


def _fix(kinds: tuple[CauseKind, ...], replay: Replay) -> Fix:
    return Fix(
        kinds=kinds,
        title=FIXES[kinds[0]] if len(kinds) == 1 else "All of these together",
        requests=replay.changed,
        hits=replay.hits,
    )
