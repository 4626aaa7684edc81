"""Token-exact synthetic traffic whose prefix structure is stated, not hoped for.

The expected hit rates take the engine's cache to hold every shared prefix at once. A cache is
bounded: prefixes that are crowded out before they come again, or a cache that is smaller than
Σ prefix tokens, give less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from whet.checkpoint.files import read_json_if_any
from whet.checkpoint.tokenizer import read_vocabulary
from whet.client import CompletionCall
from whet.core.errors import CheckpointError, UsageError
from whet.core.records.load import PlannedRequest
from whet.load.lengths import DrawPairs
from whet.load.plan import (
    TEMPERATURE,
    Draw,
    PlannedLoad,
    Workload,
    describe_requests,
    to_call,
)
from whet.load.sharing import TokenIds, shared_tokens
from whet.load.texts import TextTokenizer, exact_text, seeded
from whet.requests import LoggedRequest

Form = Literal["text", "chat"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedPrefixes:
    """``count`` prefixes of ``tokens`` tokens each, which equally many requests begin with."""

    count: int
    tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticShape:
    """What to draw. ``lengths`` gives the unique part (after any prefix) and the output."""

    lengths: DrawPairs
    prefixes: SharedPrefixes | None = None
    seed: int = 0


class Writer(Protocol):
    """Writes prompts, and the calls that send them.

    Unique parts begin with a different token for each of ``heads`` heads.
    """

    @property
    def heads(self) -> int: ...

    def write(
        self, prefix: int | None, tokens: int, *, head: int, rng: np.random.Generator
    ) -> _Prompt: ...

    def call(self, request: PlannedRequest, text: str | None) -> CompletionCall: ...


def build_synthetic(shape: SyntheticShape, writer: Writer, *, draw: Draw) -> PlannedLoad:
    """The requests of one trial.

    Unique parts, lengths and order are fresh for every (concurrency, trial), shared prefixes are
    not. The warm-up has each shared prefix once, so that the expected hit rate holds after it.
    """
    rng = seeded(f"draw/{shape.seed}/{draw.load}/{draw.trial}")
    timed = _kinds(shape.prefixes, draw.requests, rng)
    count, _ = _prefix_size(shape)
    first = [*range(count), *[None] * (draw.warmup - count)]
    written = _write_all(shape.lengths, writer, [*timed, *first], rng)
    main, warm = written[: len(timed)], written[len(timed) :]
    prefixes_warm = [prompt.ids for prompt, _ in warm[:count]]
    requests = _plan(timed, main, prefixes_warm, draw.block_size)
    before = _plan(first, warm, [], draw.block_size)
    return PlannedLoad(
        workload=Workload(
            requests=requests,
            facts=describe_requests(requests, block_size=draw.block_size, seed=shape.seed),
        ),
        calls=tuple(writer.call(r, p.text) for r, (p, _) in zip(requests, main, strict=True)),
        warmup=before,
        warmup_calls=tuple(writer.call(r, p.text) for r, (p, _) in zip(before, warm, strict=True)),
    )


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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prompt:
    """``text`` is None where the ids themselves are sent."""

    ids: TokenIds
    text: str | None = None


class IdWriter:
    """Prompts of ids alone: first tokens are dealt out, the others drawn.

    They are drawn as objects, so that equal tokens of all prompts are one number in memory.
    """

    def __init__(self, shape: SyntheticShape, vocabulary: Sequence[int]) -> None:
        """``vocabulary`` are the ids to draw from (see ``ordinary_ids``)."""
        count, tokens = _prefix_size(shape)
        if len(vocabulary) <= count:
            raise UsageError(
                f"{count} shared prefixes need more than {count} ordinary tokens to begin apart, "
                f"and there are {len(vocabulary)}",
                fix="ask for fewer prefixes",
            )
        self._vocabulary = np.asarray(vocabulary, dtype=object)
        order = seeded(f"heads/{shape.seed}").permutation(np.asarray(vocabulary))
        self._firsts = order[count:]
        self._prefixes = [
            self._draw(int(order[k]), tokens, seeded(f"prefix/{shape.seed}/{k}"))
            for k in range(count)
        ]

    @property
    def heads(self) -> int:
        """How many first tokens there are for unique parts."""
        return len(self._firsts)

    def write(
        self, prefix: int | None, tokens: int, *, head: int, rng: np.random.Generator
    ) -> _Prompt:
        """The prefix, if any, and ``tokens`` unique ids."""
        unique = self._draw(int(self._firsts[head]), tokens, rng)
        return _Prompt(ids=unique if prefix is None else self._prefixes[prefix] + unique)

    def call(self, request: PlannedRequest, _: str | None) -> CompletionCall:
        """The ids themselves."""
        return to_call(request)

    def _draw(self, first: int, tokens: int, rng: np.random.Generator) -> TokenIds:
        return (first, *rng.choice(self._vocabulary, tokens - 1).tolist())


class TextWriter:
    """Prompts of words that read back as stated, for a server that takes no token ids.

    What the tokenizer or the template puts before the text counts with the prefix, what it puts
    after with the unique part. Raises ``UsageError`` where a length is too short for that, or
    cannot be met.
    """

    def __init__(self, shape: SyntheticShape, tokenizer: TextTokenizer, form: Form) -> None:
        """``form`` is a plain prompt or a chat of one user message."""
        count, self._prefix_tokens = _prefix_size(shape)
        heads: list[str] = seeded(f"heads/{shape.seed}").permutation(tokenizer.heads).tolist()
        if len(heads) < count + 2:
            raise UsageError(
                f"the tokenizer has {len(heads)} words that begin apart, and {count} shared "
                f"prefixes need {count + 2}",
                fix="send token ids, or ask for fewer prefixes",
            )
        self._tokenizer, self._form = tokenizer, form
        self._firsts = heads[count:]
        self._prefixes = [
            self._shared(heads[k], seeded(f"prefix/{shape.seed}/{k}")) for k in range(count)
        ]

    @property
    def heads(self) -> int:
        """How many first tokens there are for unique parts."""
        return len(self._firsts)

    def write(
        self, prefix: int | None, tokens: int, *, head: int, rng: np.random.Generator
    ) -> _Prompt:
        """The prefix, if any, and words until there are ``tokens`` more."""
        shared = _Prompt(ids=()) if prefix is None else self._prefixes[prefix]
        before = "" if shared.text is None else f"{shared.text} "
        text = before + exact_text(
            len(shared.ids) + tokens,
            head=self._firsts[head],
            words=self._tokenizer.words,
            measure=lambda unique: len(self._read(before + unique)),
            rng=rng,
        )
        ids = self._read(text)
        if ids[: len(shared.ids)] != shared.ids:
            raise UsageError(
                "this tokenizer reads a shared prefix otherwise when other words follow",
                fix="send token ids",
            )
        return _Prompt(ids=ids, text=text)

    def call(self, request: PlannedRequest, text: str | None) -> CompletionCall:
        """The text, as a prompt or a chat."""
        chat = ({"role": "user", "content": text or ""},)
        return CompletionCall(
            prompt=text if self._form == "text" else None,
            messages=chat if self._form == "chat" else None,
            max_tokens=request.max_tokens,
            temperature=TEMPERATURE,
            ignore_eos=True,
        )

    def _shared(self, head: str, rng: np.random.Generator) -> _Prompt:
        """A text with which exactly the stated tokens are common to any two continuations."""

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
        return _Prompt(ids=common(text), text=text)

    def _read(self, text: str) -> TokenIds:
        request = LoggedRequest(place="", prompt=text)
        if self._form == "chat":
            request = LoggedRequest(place="", messages=({"role": "user", "content": text},))
        return self._tokenizer.request_ids(request)


def _prefix_size(shape: SyntheticShape) -> tuple[int, int]:
    return (0, 0) if shape.prefixes is None else (shape.prefixes.count, shape.prefixes.tokens)


def _kinds(
    prefixes: SharedPrefixes | None, count: int, rng: np.random.Generator
) -> list[int | None]:
    """Which prefix each request has, equally often and in mixed order."""
    if prefixes is None:
        return [None] * count
    kinds = sorted(at % prefixes.count for at in range(count))
    return [kinds[at] for at in rng.permutation(count)]


def _write_all(
    lengths: DrawPairs, writer: Writer, kinds: Sequence[int | None], rng: np.random.Generator
) -> list[tuple[_Prompt, int]]:
    """Prompts with their output lengths; heads are dealt out once before any comes again."""
    pairs = lengths(rng, len(kinds)).tolist()
    heads = rng.permutation(writer.heads)
    return [
        (writer.write(kind, unique, head=int(heads[i % len(heads)]), rng=rng), output)
        for i, (kind, (unique, output)) in enumerate(zip(kinds, pairs, strict=True))
    ]


def _plan(
    kinds: Sequence[int | None],
    written: Sequence[tuple[_Prompt, int]],
    warm: Sequence[TokenIds],
    block_size: int,
) -> tuple[PlannedRequest, ...]:
    prompts = [prompt.ids for prompt, _ in written]
    shared = shared_tokens(prompts, warm=warm, block_size=block_size)
    return tuple(
        PlannedRequest(
            index=index,
            prompt_token_ids=prompt.ids,
            max_tokens=output,
            prefix_id=None if kind is None else f"prefix-{kind}",
            shared_tokens=tokens,
        )
        for index, (kind, (prompt, output), tokens) in enumerate(
            zip(kinds, written, shared, strict=True)
        )
    )
