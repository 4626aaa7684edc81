"""Token-exact synthetic traffic whose prefix structure is stated, not hoped for.

The expected hit rates take the engine's cache to hold every shared prefix at once. A cache is
bounded: prefixes that are crowded out before they come again, or a cache that is smaller than
Σ prefix tokens, give less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np
import psutil

from whet.checkpoint.files import read_json_if_any
from whet.checkpoint.tokenizer import read_vocabulary
from whet.client import CompletionCall
from whet.core.errors import CheckpointError, UsageError
from whet.core.load import Load
from whet.core.records.load import PlannedRequest
from whet.core.units import GB
from whet.load.lengths import NO_PREFIXES, DrawPairs, SharedPrefixes
from whet.load.plan import Draw, PlannedLoad, Workload, describe_requests, plan_requests, to_call
from whet.load.sharing import TokenIds
from whet.load.sources.request import BenchRequest, Target
from whet.load.texts import TextTokenizer, exact_text, load_text_tokenizer, seeded
from whet.requests import LoggedRequest

Form = Literal["text", "chat"]
_Prompt = tuple[TokenIds, LoggedRequest | None]
"""Token ids, and the text that they are read from unless they are sent themselves."""
_BYTES_A_TOKEN: Final = 32
"""A reference of 8 bytes, and up to 8 of JSON: here, at a process that sends, and on the way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticShape:
    """What to draw. ``lengths`` gives the unique part (after any prefix) and the output."""

    lengths: DrawPairs
    prefixes: SharedPrefixes = NO_PREFIXES
    seed: int = 0


def build_synthetic(
    shape: SyntheticShape, writer: IdWriter | TextWriter, *, draw: Draw
) -> PlannedLoad:
    """The requests of one trial.

    Unique parts, lengths and order are fresh for every (concurrency, trial), shared prefixes are
    not. The warm-up has each shared prefix once, so that the expected hit rate holds after it.
    Heads are dealt out once before any comes again.
    """
    rng, count = seeded(f"draw/{shape.seed}/{draw.load}/{draw.trial}"), shape.prefixes.count
    kinds = _kinds(shape.prefixes, draw.requests, rng)
    kinds += [*range(count), *[None] * (draw.warmup - count)]
    lengths = shape.lengths(rng, len(kinds)).tolist()
    heads = rng.permutation(writer.heads)
    written = [
        writer.write(kind, unique, head=int(heads[i % len(heads)]), rng=rng)
        for i, (kind, (unique, _)) in enumerate(zip(kinds, lengths, strict=True))
    ]

    def planned(
        part: slice, warm: Sequence[TokenIds]
    ) -> tuple[tuple[PlannedRequest, ...], tuple[CompletionCall, ...]]:
        requests = plan_requests(
            [ids for ids, _ in written[part]],
            [output for _, output in lengths[part]],
            block_size=draw.block_size,
            warm=warm,
            prefix_ids=[None if kind is None else f"prefix-{kind}" for kind in kinds[part]],
        )
        pairs = zip(requests, written[part], strict=True)
        return requests, tuple(_call(request, text) for request, (_, text) in pairs)

    main, before = slice(draw.requests), slice(draw.requests, None)
    requests, calls = planned(main, [ids for ids, _ in written[before][:count]])
    warmup, warmup_calls = planned(before, [])
    facts = describe_requests(requests, block_size=draw.block_size, seed=shape.seed)
    workload = Workload(requests=requests, facts=facts)
    return PlannedLoad(workload=workload, calls=calls, warmup=warmup, warmup_calls=warmup_calls)


def ordinary_ids(folder: Path) -> tuple[int, ...]:
    """The token ids of a checkpoint that stand for text: none special or added, all embedded.

    Raises ``CheckpointError`` where tokenizer.json cannot be read or nothing is left.
    """
    vocabulary = read_vocabulary(folder)
    config = read_json_if_any(folder / "config.json")
    config = config.get("text_config") or config  # the language model inside a larger one
    rows = config.get("vocab_size")
    special = {*vocabulary.added, *vocabulary.roles.values()}
    ids = {index for token, index in vocabulary.ids.items() if token not in special}
    ids -= {vocabulary.ids[token] for token in vocabulary.added}
    ordinary = tuple(sorted(index for index in ids if not isinstance(rows, int) or index < rows))
    if not ordinary:
        raise CheckpointError(
            f"{folder} has no ordinary token below its vocab_size ({rows})",
            fix="check that config.json and tokenizer.json are of one model",
        )
    return ordinary


class IdWriter:
    """Prompts of ids alone: first tokens are dealt out, the others drawn.

    Unique parts begin with a different token for each of ``heads`` heads.

    They are drawn as objects, so that equal tokens of all prompts are one number in memory.
    """

    def __init__(self, shape: SyntheticShape, vocabulary: Sequence[int]) -> None:
        """``vocabulary`` are the ids to draw from (see ``ordinary_ids``)."""
        count, tokens = shape.prefixes.count, shape.prefixes.tokens
        if len(vocabulary) <= count:
            raise UsageError(
                f"{count} shared prefixes need more than {count} ordinary tokens to begin apart, "
                f"and there are {len(vocabulary)}",
                fix="ask for fewer prefixes",
            )
        self._vocabulary = np.asarray(vocabulary, dtype=object)
        order = seeded(f"heads/{shape.seed}").permutation(np.asarray(vocabulary))
        self._firsts = order[count:]
        self.heads = len(self._firsts)
        self._prefixes = [
            self._draw(int(order[k]), tokens, seeded(f"prefix/{shape.seed}/{k}"))
            for k in range(count)
        ]

    def write(
        self, prefix: int | None, tokens: int, *, head: int, rng: np.random.Generator
    ) -> _Prompt:
        """The prefix, if any, and ``tokens`` unique ids."""
        unique = self._draw(int(self._firsts[head]), tokens, rng)
        return unique if prefix is None else self._prefixes[prefix] + unique, None

    def _draw(self, first: int, tokens: int, rng: np.random.Generator) -> TokenIds:
        return (first, *rng.choice(self._vocabulary, tokens - 1).tolist())


class TextWriter:
    """Prompts of words that read back as stated, for a server that takes no token ids.

    Unique parts begin with a different token for each of ``heads`` heads.

    What the tokenizer or the template puts before the text counts with the prefix, what it puts
    after with the unique part. Raises ``UsageError`` where a length is too short for that, or
    cannot be met.
    """

    def __init__(self, shape: SyntheticShape, tokenizer: TextTokenizer, form: Form) -> None:
        """``form`` is a plain prompt or a chat of one user message."""
        count, self._prefix_tokens = shape.prefixes.count, shape.prefixes.tokens
        heads: list[str] = seeded(f"heads/{shape.seed}").permutation(tokenizer.heads).tolist()
        if len(heads) < count + 2:
            raise UsageError(
                f"the tokenizer has {len(heads)} words that begin apart, and {count} shared "
                f"prefixes need {count + 2}",
                fix="send token ids, or ask for fewer prefixes",
            )
        self._tokenizer, self._form = tokenizer, form
        self._firsts = heads[count:]
        self.heads = len(self._firsts)
        self._prefixes = [
            self._shared(heads[k], seeded(f"prefix/{shape.seed}/{k}")) for k in range(count)
        ]

    def write(
        self, prefix: int | None, tokens: int, *, head: int, rng: np.random.Generator
    ) -> _Prompt:
        """The prefix, if any, and words until there are ``tokens`` more."""
        shared, before = ((), "") if prefix is None else self._prefixes[prefix]
        text = before + exact_text(
            len(shared) + tokens,
            head=self._firsts[head],
            words=self._tokenizer.words,
            measure=lambda unique: len(self._read(before + unique)),
            rng=rng,
        )
        ids = self._read(text)
        if ids[: len(shared)] != shared:
            raise UsageError(
                "this tokenizer reads a shared prefix otherwise when other words follow",
                fix="send token ids",
            )
        return ids, self._request(text)

    def _shared(self, head: str, rng: np.random.Generator) -> tuple[TokenIds, str]:
        """A text with which exactly the stated tokens are common to any two continuations.

        Returned with these, and with the space that is behind it.
        """

        def common(text: str) -> TokenIds:
            one, other = (self._read(f"{text} {word}") for word in self._firsts[:2])
            pairs = enumerate(zip(one, other, strict=False))
            return one[: next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))]

        text = exact_text(
            self._prefix_tokens,
            head=head,
            words=self._tokenizer.words,
            measure=lambda text: len(common(text)),
            rng=rng,
        )
        return common(text), f"{text} "

    def _request(self, text: str) -> LoggedRequest:
        if self._form == "chat":
            return LoggedRequest(place="", messages=({"role": "user", "content": text},))
        return LoggedRequest(place="", prompt=text)

    def _read(self, text: str) -> TokenIds:
        return self._tokenizer.request_ids(self._request(text))


def _call(request: PlannedRequest, text: LoggedRequest | None) -> CompletionCall:
    """The text, as a prompt or a chat; the token ids themselves without one."""
    call = to_call(request)
    if text is None:
        return call
    return replace(call, prompt_token_ids=None, prompt=text.prompt, messages=text.messages)


def _kinds(prefixes: SharedPrefixes, count: int, rng: np.random.Generator) -> list[int | None]:
    """Which prefix each request has, equally often and in mixed order."""
    if not prefixes.count:
        return [None] * count
    kinds = sorted(at % prefixes.count for at in range(count))
    return [kinds[at] for at in rng.permutation(count)]


def require_memory(tokens: int) -> None:
    """``UsageError`` where prompts of so many tokens in all do not fit into what is free."""
    needed, free = tokens * _BYTES_A_TOKEN, psutil.virtual_memory().available
    if needed > free:
        raise UsageError(
            f"prompts of {tokens:,} tokens in all need about {needed / GB:.3g} GB of memory, and "
            f"{free / GB:.3g} GB are free",
            fix="send less of a trace with --trace-duration, or fewer requests",
        )


def draw_of(request: BenchRequest, target: Target, number: int) -> Draw:
    """The draw of run ``number``."""
    return Draw(
        requests=request.requests,
        load=Load.at(request.concurrency),
        trial=number,
        block_size=target.block_size,
        warmup=request.load.num_warmups,
    )


def write_synthetic(
    request: BenchRequest, lengths: DrawPairs, target: Target, number: int
) -> PlannedLoad:
    """Prompts of these lengths in the request's form, and its warm-up after them.

    Raises ``UsageError`` as ``require_memory`` does: the lengths are drawn once for their sum.
    """
    rng = seeded(f"memory/{request.load.seed}/{number}")
    unique = int(lengths(rng, request.requests)[:, 0].sum())
    require_memory(unique + request.requests * request.prefixes.tokens)
    shape = SyntheticShape(lengths=lengths, prefixes=request.prefixes, seed=request.load.seed)
    writer: IdWriter | TextWriter
    if request.form == "ids":
        writer = IdWriter(shape, ordinary_ids(target.tokenizer))
    else:
        writer = TextWriter(shape, load_text_tokenizer(target.tokenizer), request.form)
    return build_synthetic(shape, writer, draw=draw_of(request, target, number))


def warmed(
    load: PlannedLoad, request: BenchRequest, lengths: DrawPairs, target: Target, number: int
) -> PlannedLoad:
    """``load`` after a warm-up of synthetic prompts, which share nothing with it."""
    warm = write_synthetic(replace(request, requests=1), lengths, target, number)
    return replace(load, warmup=warm.warmup, warmup_calls=warm.warmup_calls)
