"""A request log to what its prompts could share, what they lose and to what, and what to mend."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from whet.checkpoint import locate
from whet.core.errors import UsageError
from whet.core.records import (
    Cause,
    Excerpt,
    HitTokens,
    LeftOut,
    LoggedRequest,
    PromptAnalysis,
    Proposal,
)
from whet.core.redact import starred
from whet.prefix.anonymise import TokenizedRequest
from whet.prefix.cache import PrefixCache
from whet.prefix.causes import Loss, Losses
from whet.prefix.learn import Rules, learn
from whet.prefix.log import LogReader
from whet.prefix.prepared import Prepared
from whet.prefix.render import Ids, PromptEncoder, load_encoder
from whet.prefix.tree import Parting, TokenTree
from whet.prefix.words import CUT_SELDOM, MENDS, PROPOSALS
from whet.prefix.work import Setup, prepare_log, seldom_collected

_SAMPLE: Final = 4_000
_PLACES: Final = 8
"""The first requests of a log, and the places in it from which some more are taken, to learn."""
_EXAMPLES: Final = 3
_AROUND: Final = 24
_DIFFERING: Final = 12
"""Tokens that an excerpt shows around the difference, and of it."""
_LONGEST: Final = 80
_NODE_TOKENS: Final = 32

Progress = Callable[[int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptQuestion:
    """What to analyse. ``target`` is the model's folder, for its tokenizer and chat template.

    ``block_size`` is tokens a KV block; ``cache_blocks`` the cache's size in blocks, None where it
    is not known. ``model`` picks one of a mixed log. ``redacted`` keeps every text out.
    """

    log: Path
    target: str
    block_size: int = 16
    cache_blocks: int | None = None
    model: str | None = None
    max_requests: int | None = None
    chat_template: Path | None = None
    redacted: bool = False


def analyse(
    question: PromptQuestion,
    *,
    progress: Progress = lambda requests: None,
    watch: Callable[[Prepared], None] = lambda request: None,
) -> PromptAnalysis:
    """Read the log twice, a sample to learn from and then the whole, and say what was found.

    ``progress`` is told the requests read so far, ``watch`` gets each. Raises ``UsageError`` for a
    log without requests or with those of several models, ``CheckpointError`` for a tokenizer that
    cannot be read.
    """
    target = locate(question.target)
    encoder = load_encoder(target, chat_template=question.chat_template)
    rules, model = learn_rules(question)
    setup = Setup(
        tokenizer=target,
        chat_template=question.chat_template,
        block_size=question.block_size,
        model=model,
        rules=rules,
    )
    state = _State(question=question, encoder=encoder)
    reader = LogReader(question.log, model=model)
    with seldom_collected():
        for request in islice(_requests(reader, setup, state), question.max_requests):
            state.add(request)
            watch(request)
            if state.count % 1000 == 0:
                progress(state.count)
    if not state.count:
        raise reader.nothing_read()
    state.leave_out(reader.left_out())
    return state.found(model or "")


def learn_rules(question: PromptQuestion) -> tuple[Rules, str | None]:
    """What a sample of the log teaches, and the one model that its requests are for."""
    reader = LogReader(question.log, model=question.model)
    sample = list(islice(reader, min(_SAMPLE, question.max_requests or _SAMPLE)))
    if len(sample) == _SAMPLE and question.max_requests is None:
        sample += reader.spread(_PLACES)  # what changes later is learnt too
    models = Counter(request.model for request in sample if request.model is not None)
    if len(models) > 1:
        told = ", ".join(f"{name} ({count})" for name, count in models.most_common())
        raise UsageError(
            f"{question.log} holds requests for several models: {told}; a cache is never shared "
            f"between them, so choose one: --served-model {models.most_common(1)[0][0]}"
        )
    return learn(sample), next(iter(models), question.model)


def _requests(reader: LogReader, setup: Setup, state: _State) -> Iterator[Prepared]:
    for batch in prepare_log(reader, setup):
        reader.models.update(batch.models)
        state.leave_out(batch.left_out)
        yield from batch.requests


@dataclass(kw_only=True, slots=True)
class _State:
    """What is known so far."""

    question: PromptQuestion
    encoder: PromptEncoder
    count: int = 0
    tokens: int = 0
    mended_tokens: int = 0
    first_at_ns: int | None = None
    last_at_ns: int | None = None
    cache: PrefixCache = field(default_factory=PrefixCache)
    mended_cache: PrefixCache = field(default_factory=PrefixCache)
    tree: TokenTree = field(default_factory=TokenTree)
    losses: Losses = field(init=False)
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    examples: dict[str, list[Excerpt]] = field(default_factory=lambda: defaultdict(list))
    shown: dict[str, tuple[str, str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Judge by the question's block size."""
        self.losses = Losses(self.question.block_size)

    def leave_out(self, told: Sequence[LeftOut]) -> None:
        """Add what was left out."""
        for each in told:
            before = self.left_out.get(each.reason)
            count = each.count + (before.count if before else 0)
            first = before.first if before else each.first
            self.left_out[each.reason] = LeftOut(reason=each.reason, count=count, first=first)

    def add(self, request: Prepared) -> None:
        """Judge one request."""
        size = self.question.block_size
        hits = self.cache.touch(request.sent.hashes, max_hits=request.sent.most) * size
        mended = request.mended
        would = self.mended_cache.touch(mended.hashes, max_hits=mended.most) * size
        loss = self.losses.judge(request.reading, index=self.count, hits=hits, mended=would)
        parting = self.tree.insert(request.sent.ids, request.place, known=hits)
        if loss is not None:
            parting.node.lost[loss.kind] += 1
            self._show(request, parting, loss)
        self.count += 1
        self.tokens += len(request.sent.ids)
        self.mended_tokens += len(mended.ids)
        if request.at_ns is not None:
            self.first_at_ns = self.first_at_ns or request.at_ns
            self.last_at_ns = request.at_ns

    def found(self, model: str) -> PromptAnalysis:
        """The record of everything."""
        size, blocks = self.question.block_size, self.question.cache_blocks
        hits = HitTokens(prompt_tokens=self.tokens, hit_tokens=self.cache.hit_blocks * size)
        causes = self._causes()
        return PromptAnalysis(
            source=self.question.log.name,
            model=model,
            requests=self.count,
            left_out=tuple(self.left_out.values()),
            first_at_ns=self.first_at_ns,
            last_at_ns=self.last_at_ns,
            block_size=size,
            cache_blocks=blocks,
            hits=hits,
            sized=_sized(self.cache, self.tokens, size, blocks),
            repaired=self._repaired(),
            repaired_sized=_sized(self.mended_cache, self.mended_tokens, size, blocks),
            curve=self.cache.curve(size, self.tokens),
            repaired_curve=self.mended_cache.curve(size, self.mended_tokens),
            causes=causes,
            tree=self.tree.record(self._node_text),
            proposals=tuple(self._proposals(causes, hits)),
        )

    def _show(self, request: Prepared, parting: Parting, loss: Loss) -> None:
        told = self.examples[loss.kind]
        if len(told) >= _EXAMPLES or parting.sibling is None:
            return
        ids, at = request.sent.ids, parting.depth
        before, rest, other = ids[:at], ids[at:], parting.sibling.ids
        told.append(
            Excerpt(
                place=request.place,
                other_place=parting.sibling.place,
                token=at,
                before=self._text(before[:-_AROUND], before[-_AROUND:], rest, keep_end=True),
                here=self._text(before, rest[:_DIFFERING], rest[_DIFFERING:]),
                there=self._text(before, other[:_DIFFERING], other[_DIFFERING:]),
                after=self._text(
                    ids[: at + _DIFFERING], rest[_DIFFERING:][:_AROUND],
                    rest[_DIFFERING + _AROUND :],
                ),
            )
        )  # fmt: skip
        if loss.kind not in self.shown and not self.question.redacted:
            texts = (self.encoder.decode(p.ids) for p in (request.sent, request.mended))
            first, second = map(starred, texts)
            self.shown[loss.kind] = (request.place, first, second)

    def _text(self, before: Ids, ids: Ids, after: Ids, *, keep_end: bool = False) -> str | None:
        """The text of ``ids``, without secrets, those that it is only a piece of included."""
        if self.question.redacted:
            return None
        start, own = self.encoder.decode(before), self.encoder.decode(ids)
        whole = starred(start + own + self.encoder.decode(after))
        text = whole[len(start) : len(start) + len(own)]
        if len(text) <= _LONGEST:
            return text
        return "…" + text[1 - _LONGEST :] if keep_end else text[: _LONGEST - 1] + "…"

    def _node_text(self, before: Ids, ids: Ids, after: Ids) -> str | None:
        rest = np.concatenate([ids[_NODE_TOKENS:], after])
        return self._text(before, ids[:_NODE_TOKENS], rest)

    def _causes(self) -> tuple[Cause, ...]:
        found = [
            Cause(
                kind=kind,
                requests=tally.requests,
                tokens=tally.tokens,
                where=where,
                mend=MENDS[kind],
                since_ns=tally.since_ns,
                examples=tuple(self.examples.get(kind, ())),
            )
            for (kind, where), tally in self.losses.settle().items()
        ]
        return tuple(sorted(found, key=lambda cause: (-cause.tokens, cause.kind, cause.where)))

    def _proposals(self, causes: Sequence[Cause], hits: HitTokens) -> Iterator[Proposal]:
        """The mends one after the other; together they are the repaired log.

        What it gains is split by the tokens that each mend's causes cost.
        """
        repaired = self._repaired()
        every = sum(c.tokens for c in causes if any(c.kind in kinds for kinds, _ in PROPOSALS))
        done = 0
        for kinds, title in PROPOSALS:
            here = [cause for cause in causes if cause.kind in kinds]
            if not here:
                continue
            done += sum(cause.tokens for cause in here)
            yield self._proposal(here, title, _between(hits, repaired, done / max(every, 1)))
        cut = [cause for cause in causes if cause.kind == "truncation"]
        if cut:
            spared = repaired.hit_tokens + sum(cause.tokens for cause in cut)
            most = min(spared, repaired.prompt_tokens)
            yield self._proposal(
                cut, CUT_SELDOM, HitTokens(prompt_tokens=repaired.prompt_tokens, hit_tokens=most)
            )

    def _proposal(self, causes: Sequence[Cause], title: str, hits: HitTokens) -> Proposal:
        shown = next((self.shown[c.kind] for c in causes if c.kind in self.shown), None)
        mended = shown is not None and shown[1] != shown[2]
        return Proposal(
            kinds=tuple(dict.fromkeys(cause.kind for cause in causes)),
            title=title,
            requests=sum(cause.requests for cause in causes),
            hits=hits,
            place=shown[0] if shown else "",
            before=shown[1] if shown and mended else None,
            after=shown[2] if shown and mended else None,
        )

    def _repaired(self) -> HitTokens:
        found = self.mended_cache.hit_blocks * self.question.block_size
        return HitTokens(prompt_tokens=self.mended_tokens, hit_tokens=found)


def _between(first: HitTokens, last: HitTokens, share: float) -> HitTokens:
    return HitTokens(
        prompt_tokens=round(
            first.prompt_tokens + share * (last.prompt_tokens - first.prompt_tokens)
        ),
        hit_tokens=round(first.hit_tokens + share * (last.hit_tokens - first.hit_tokens)),
    )


def _sized(cache: PrefixCache, tokens: int, size: int, blocks: int | None) -> HitTokens | None:
    if blocks is None:
        return None
    return HitTokens(prompt_tokens=tokens, hit_tokens=cache.hits_at(blocks) * size)


def tokenized_log(question: PromptQuestion) -> Iterator[TokenizedRequest]:
    """The log's prompts as token ids, in order, for a workload without their text."""
    _, model = learn_rules(question)
    setup = Setup(
        tokenizer=locate(question.target),
        chat_template=question.chat_template,
        block_size=question.block_size,
        model=model,
        rules=Rules(),
    )
    requests = (
        request
        for batch in prepare_log(LogReader(question.log, model=model), setup)
        for request in batch.requests
    )
    for request in islice(requests, question.max_requests):
        yield TokenizedRequest(
            ids=request.sent.ids,
            at_ns=request.at_ns,
            output_tokens=request.output_tokens,
            session=request.session,
        )


def mended_log(question: PromptQuestion) -> Iterator[LoggedRequest]:
    """The log's requests with every proposal followed, in order."""
    from whet.prefix.canon import Canoniser

    rules, model = learn_rules(question)
    encoder = load_encoder(locate(question.target), chat_template=question.chat_template)
    canoniser = Canoniser(rules, tools_first=encoder.tools_first())
    reader = LogReader(question.log, model=model)
    for request in islice(reader, question.max_requests):
        yield canoniser.apply(request).mended
