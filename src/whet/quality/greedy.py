"""Greedy continuations token by token, and where they leave the plain server's.

Two runs of one model agree only up to rounding: another batch shape adds the same numbers in
another order, which decides between two tokens of almost equal probability (a tie). The plain
server is therefore asked twice, and its own differences are the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from whet.client import Failure
from whet.core.records.quality_checks import Divergence, GreedyParity
from whet.core.records.summary import Estimate
from whet.quality.asking import (
    ModelEndpoint,
    Reply,
    ask,
    describe,
    describe_missing,
    first_choice,
)
from whet.quality.paired import mcnemar
from whet.quality.perplexity import document_mean
from whet.quality.prompts import Ids, identity

Tokens = tuple[int, ...] | tuple[str, ...]
Prompts = Mapping[str, Ids]
"""Token ids by the prompt's name."""
Value = TypeVar("Value")

_ID_FIELDS: Final = {"return_token_ids": True, "return_tokens_as_token_ids": True}
_REFUSED: Final = ("http_400", "http_422")
_ID_PREFIX: Final = "token_id:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Continuation:
    """One prompt's greedy tokens: ids where the server gives them, otherwise their text.

    ``margins`` holds, per position, the log-probability of the token written minus that of the
    likeliest other one, in nats; None where the server gives none.
    """

    id: str
    tokens: Tokens
    margins: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Continuations:
    """A server's greedy text after each prompt.

    Failed requests are not in ``answered``, and ``missing`` gives the reason.
    """

    prompts_sha256: str
    max_tokens: int
    answered: tuple[Continuation, ...]
    missing: str | None


def continue_greedily(
    endpoint: ModelEndpoint, prompts: Prompts, tokens: int, *, backwards: bool = False
) -> Continuations:
    """Ask for at most ``tokens`` greedy tokens after each prompt; an end token counts as one."""
    common = {
        "max_tokens": tokens,
        "temperature": 0.0,
        "logprobs": 2,
        **id_fields(endpoint, prompts),
    }
    bodies = [{"prompt": list(ids), **common} for ids in prompts.values()]
    answers, failures = [], []
    for name, reply in zip(prompts, ask(endpoint, bodies, backwards=backwards), strict=True):
        choice = first_choice(reply)
        written = tokens_of(choice)
        if written is None:
            failures.append(no_tokens(reply))
        else:
            answers.append(Continuation(id=name, tokens=written, margins=_margins(choice)))
    return Continuations(
        prompts_sha256=prompts_identity(prompts),
        max_tokens=tokens,
        answered=tuple(answers),
        missing=describe_missing(failures, len(prompts), "greedy continuations were not answered"),
    )


def greedy_parity(
    here: Continuations, plain: Continuations, again: Continuations | None = None
) -> GreedyParity:
    """Count the continuations equal to the plain server's, and locate the first differences.

    ``again`` is the plain server asked a second time in other batches. A prompt is *lost* where the
    plain server agrees with itself and this one does not, *gained* in the reverse case; ``p_value``
    is McNemar's exact test, one-sided toward lost, because agreeing more often than the plain
    server does with itself is not a defect. Under the null this server is one more draw of the
    plain server's rounding. ``common`` resamples prompts.

    All sides were asked the same prompts at the same length. Raises ``ValueError`` unless at least
    one was answered on every side, in the same form (ids or text).
    """
    sides = [here, plain] if again is None else [here, plain, again]
    rows = paired_rows([{one.id: one for one in side.answered} for side in sides])
    if not rows:
        raise ValueError("no prompt was continued on every side")
    refuse_mixed_tokens(one.tokens for row in rows for one in row)
    divergences = [_divergence(row[0], row[1]) for row in rows]
    same = [divergence.at is None for divergence in divergences]
    aa = None if again is None else [row[2].tokens == row[1].tokens for row in rows]
    return GreedyParity(
        prompts=len(rows),
        same=sum(same),
        aa_same=None if aa is None else sum(aa),
        common=_common(rows, divergences),
        p_value=None if aa is None else _more_often_lost(aa, same),
        divergences=tuple(divergences),
    )


def _common(rows: Sequence[Sequence[Continuation]], divergences: Sequence[Divergence]) -> Estimate:
    """Return the mean share of the longer continuation that both wrote."""
    shares = [
        1.0 if one.at is None else one.at / max(len(row[0].tokens), len(row[1].tokens))
        for row, one in zip(rows, divergences, strict=True)
    ]
    return document_mean([(share, 1) for share in shares])


def _divergence(here: Continuation, plain: Continuation) -> Divergence:
    pairs = zip(here.tokens, plain.tokens, strict=False)
    shorter = min(len(here.tokens), len(plain.tokens))
    at = next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), shorter)
    if at == shorter and len(here.tokens) == len(plain.tokens):
        return Divergence(id=plain.id, tokens=len(plain.tokens), at=None, margin=None)
    margin = plain.margins[at] if at < len(plain.margins) else None
    return Divergence(id=plain.id, tokens=len(plain.tokens), at=at, margin=margin)


def _more_often_lost(aa: Sequence[bool], same: Sequence[bool]) -> float:
    pairs = list(zip(aa, same, strict=True))
    lost, gained = pairs.count((True, False)), pairs.count((False, True))
    return mcnemar(lost, gained, alternative="greater")


def paired_rows(sides: Sequence[Mapping[str, Value]]) -> list[list[Value]]:
    """Return the values of the names that every side has, in the first side's order."""
    first, *others = sides
    return [
        [value, *(side[name] for side in others)]
        for name, value in first.items()
        if all(name in side for side in others)
    ]


def refuse_mixed_tokens(texts: Iterable[Tokens]) -> None:
    """Raise ``ValueError`` if some tokens are ids and others text."""
    if len({type(token) for tokens in texts for token in tokens}) > 1:
        raise ValueError("one server gives its tokens as ids and the other as text")


def prompts_identity(prompts: Prompts) -> str:
    """Hash the prompts, so that answers to other prompts are not compared."""
    return identity([], list(prompts.values()), [])


def id_fields(endpoint: ModelEndpoint, prompts: Prompts) -> dict[str, bool]:
    """Return vLLM's fields that ask for token ids; none if the server refuses unknown fields."""
    prompt = list(next(iter(prompts.values())))
    probe = {"prompt": prompt, "max_tokens": 1, "temperature": 0.0, **_ID_FIELDS}
    reply = ask(endpoint, [probe])[0]
    return {} if isinstance(reply, Failure) and reply.error in _REFUSED else dict(_ID_FIELDS)


def tokens_of(choice: Mapping[str, Any]) -> Tokens | None:
    """Return a choice's tokens as ids, otherwise as text; None if it lists none."""
    ids = choice.get("token_ids")
    if isinstance(ids, list):
        return tuple(int(token) for token in ids)
    logprobs = choice.get("logprobs") or {}
    content = logprobs.get("content")
    if isinstance(content, list) and all("id" in each for each in content):  # llama-server
        return tuple(int(each["id"]) for each in content)
    words = logprobs.get("tokens")
    if not isinstance(words, list):
        return None
    if words and all(str(word).startswith(_ID_PREFIX) for word in words):
        return tuple(int(str(word).removeprefix(_ID_PREFIX)) for word in words)
    return tuple(str(word) for word in words)


def no_tokens(reply: Reply) -> str:
    """Return why a reply has no tokens."""
    return describe(reply) if isinstance(reply, Failure) else "a reply that names no tokens"


def _margins(choice: Mapping[str, Any]) -> tuple[float | None, ...]:
    logprobs = choice.get("logprobs") or {}
    words, tops = logprobs.get("tokens") or [], logprobs.get("top_logprobs") or []
    return tuple(_margin(word, top or {}) for word, top in zip(words, tops, strict=False))


def _margin(word: str, top: Mapping[str, float | None]) -> float | None:
    """Return log p of the token written − log p of the likeliest other; None unless finite."""
    own = top.get(word)
    others = [value for other, value in top.items() if other != word and value is not None]
    if own is None or len(others) < len(top) - 1 or not others:
        return None
    margin = own - max(others)
    return margin if math.isfinite(margin) else None
