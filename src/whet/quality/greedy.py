"""Greedy continuations token by token, and how far they stay with the plain server's.

Two runs of one model agree only up to rounding: another batch shape adds the same numbers in
another order, and where two tokens are all but equally likely that decides (a tie). So the plain
server is asked twice, and what it does to itself is the measure for everybody else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from whet.client import Failure
from whet.core.protocols import Progress
from whet.core.records import Divergence, Estimate, GreedyParity
from whet.quality.asking import ModelEndpoint, Reply, ask, why
from whet.quality.perplexity import document_mean
from whet.quality.prompts import Ids, identity

Tokens = tuple[int, ...] | tuple[str, ...]

_IDS: Final = {"return_token_ids": True, "return_tokens_as_token_ids": True}
_REFUSED: Final = ("http_400", "http_422")
_ID_WORD: Final = "token_id:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Continuation:
    """One prompt's greedy tokens: ids where the server says them, else their text.

    ``margins`` holds, a position, the log-probability of the token written less that of the
    likeliest other one, in nats; None where the server gives none.
    """

    id: str
    tokens: Tokens
    margins: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Continuations:
    """What a server wrote after each of ``asked`` prompts, greedily and to its own end.

    What was not answered is left out of ``answered``, and ``missing`` says why.
    """

    prompts_sha256: str
    max_tokens: int
    asked: int
    answered: tuple[Continuation, ...]
    missing: str | None


def continue_greedily(
    endpoint: ModelEndpoint,
    prompts: Sequence[Ids],
    tokens: int,
    *,
    names: Sequence[str] | None = None,
    backwards: bool = False,
    progress: Progress | None = None,
) -> Continuations:
    """At most ``tokens`` greedy tokens after every prompt; the model's own end counts as one.

    ``names`` are the prompts' ids (their numbers, where left out). ``backwards`` asks them in the
    opposite order and gives them back in this one: other prompts then share a batch.
    """
    extra = id_fields(endpoint, prompts[0])
    common = {"max_tokens": tokens, "temperature": 0.0, "logprobs": 2, **extra}
    bodies = [{"prompt": list(ids), **common} for ids in prompts]
    replies = ask(endpoint, bodies[::-1] if backwards else bodies, progress=progress)
    ordered = replies[::-1] if backwards else replies
    found, trouble = [], []
    for name, reply in zip(names or prompt_names(prompts), ordered, strict=True):
        answer = _continuation(name, reply)
        if answer is None:
            trouble.append(no_tokens(reply))
        else:
            found.append(answer)
    return Continuations(
        prompts_sha256=prompts_identity(prompts),
        max_tokens=tokens,
        asked=len(prompts),
        answered=tuple(found),
        missing=f"{len(trouble)} of {len(prompts)} greedy continuations were not answered "
        f"({trouble[0]})"
        if trouble
        else None,
    )


def greedy_parity(
    here: Continuations, plain: Continuations, again: Continuations | None = None
) -> GreedyParity:
    """How many continuations are the plain server's to the end, and where the others leave it.

    ``again`` is the plain server asked a second time in other batches. With it, a prompt is *lost*
    where the plain server agrees with itself and this one does not, *gained* where the reverse;
    ``p_value`` is McNemar's exact test, one-sided toward lost: P(X ≥ lost), X binomial over lost +
    gained at ½. One-sided, because agreeing more often than the plain server does with itself is
    no defect. Under the null this server is one more draw of the plain one's rounding, so that
    lost and gained are equally likely. ``common`` resamples prompts.

    Any other variant can be put in the place of ``here``: its divergence is then a distance.
    Raises ``ValueError`` unless the same prompts were asked at the same length, and answered in
    the same form (ids or text) at least once.
    """
    sides = [here, plain] if again is None else [here, plain, again]
    rows = paired_rows([_by_name(side) for side in sides])
    if len({(side.prompts_sha256, side.max_tokens) for side in sides}) > 1:
        raise ValueError("the continuations are not of the same prompts at the same length")
    if not rows:
        raise ValueError("no prompt was continued on every side")
    if len({type(token) for row in rows for one in row for token in one.tokens}) > 1:
        raise ValueError("one server says its tokens as ids and the other as text")
    found = [_divergence(row[0], row[1]) for row in rows]
    same = [divergence.at is None for divergence in found]
    aa = None if again is None else [row[2].tokens == row[1].tokens for row in rows]
    return GreedyParity(
        prompts=len(rows),
        same=sum(same),
        aa_same=None if aa is None else sum(aa),
        common=_common(rows, found),
        p_value=None if aa is None else _more_often_lost(aa, same),
        divergences=tuple(found),
    )


def _common(rows: Sequence[Sequence[Continuation]], found: Sequence[Divergence]) -> Estimate:
    """Mean share of the longer continuation that both wrote, one value a prompt."""
    shares = [
        1.0 if one.at is None else one.at / max(len(row[0].tokens), len(row[1].tokens))
        for row, one in zip(rows, found, strict=True)
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
    from scipy.stats import binomtest

    pairs = list(zip(aa, same, strict=True))
    lost = sum(was and not now for was, now in pairs)
    gained = sum(now and not was for was, now in pairs)
    if lost + gained == 0:
        return 1.0
    return float(binomtest(lost, lost + gained, 0.5, alternative="greater").pvalue)


def _by_name(side: Continuations) -> dict[str, Continuation]:
    return {one.id: one for one in side.answered}


def paired_rows(sides: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """The values of those names that every side has, in the first side's order."""
    first, *others = sides
    return [
        [value, *(side[name] for side in others)]
        for name, value in first.items()
        if all(name in side for side in others)
    ]


def prompt_names(prompts: Sequence[Ids]) -> list[str]:
    """The prompts' numbers, as ids."""
    return [str(index) for index in range(len(prompts))]


def prompts_identity(prompts: Sequence[Ids]) -> str:
    """Hash of the prompts: answers to others are no pair."""
    return identity([], prompts, [])


def id_fields(endpoint: ModelEndpoint, prompt: Ids) -> dict[str, bool]:
    """vLLM's fields that make it say token ids; none for a server that refuses unknown fields."""
    probe = {"prompt": list(prompt), "max_tokens": 1, "temperature": 0.0, **_IDS}
    reply = ask(endpoint, [probe])[0]
    return {} if isinstance(reply, Failure) and reply.error in _REFUSED else dict(_IDS)


def tokens_of(choice: dict[str, Any]) -> Tokens | None:
    """A choice's tokens as ids, as text where it says no ids, None where it names none at all."""
    ids = choice.get("token_ids")
    if isinstance(ids, list):
        return tuple(int(token) for token in ids)
    words = (choice.get("logprobs") or {}).get("tokens")
    if not isinstance(words, list):
        return None
    if words and all(str(word).startswith(_ID_WORD) for word in words):
        return tuple(int(str(word).removeprefix(_ID_WORD)) for word in words)
    return tuple(str(word) for word in words)


def no_tokens(reply: Reply) -> str:
    """Why a reply holds no tokens, in words."""
    return why(reply) if isinstance(reply, Failure) else "a reply that names no tokens"


def _continuation(name: str, reply: Reply) -> Continuation | None:
    if isinstance(reply, Failure):
        return None
    choice: dict[str, Any] = (reply.get("choices") or [{}])[0]
    tokens = tokens_of(choice)
    if tokens is None:
        return None
    said = choice.get("logprobs") or {}
    words, tops = said.get("tokens") or [], said.get("top_logprobs") or []
    margins = tuple(_margin(word, top) for word, top in zip(words, tops, strict=False))
    return Continuation(id=name, tokens=tokens, margins=margins)


def _margin(word: str, top: dict[str, float | None] | None) -> float | None:
    """log p of the token written − log p of the likeliest other; None unless both are finite."""
    own = (top or {}).get(word)
    others = [value for other, value in (top or {}).items() if other != word]
    if own is None or not others or any(value is None for value in others):
        return None
    margin = own - max(value for value in others if value is not None)
    return margin if math.isfinite(margin) else None
