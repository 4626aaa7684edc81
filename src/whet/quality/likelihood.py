"""Negative log-likelihood of held-out documents, as the server itself reports it.

``prompt_logprobs`` makes vLLM hold the logits of a whole prompt (about 7.5 GiB at 8,192 tokens of
a 152 k vocabulary), so length and concurrency are bounded, and a server that cannot answer
leaves the perplexity unknown rather than wrong.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from whet.client import Failure
from whet.core.protocols import Progress
from whet.core.units import GIB
from whet.quality.asking import Peer, Reply, ask, why
from whet.quality.prompts import Ids

_LOGITS_BUDGET_BYTES: Final = 4 * GIB
_LOGIT_BYTES: Final = 8  # float32 logits and their log-softmax
_CLAMPED: Final = -9999.0  # vLLM writes minus infinity so
_NOT_A_NUMBER: Final = re.compile(r"not json compliant|\bnan\b", re.IGNORECASE)
_SHORTEST: Final = 2

Nll = tuple[float, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Likelihood:
    """One (Σ −log p, tokens) pair a document, or why there is none.

    ``broken`` says that the server answered and its probabilities are not numbers, which is a
    finding about the variant; ``missing`` that it did not answer, which is none.
    """

    nll: tuple[Nll, ...] = ()
    broken: str | None = None
    missing: str | None = None


class BrokenProbabilities(ValueError):
    """A log-probability that is NaN or minus infinity; only this folder sees it."""


def measure_likelihood(
    peer: Peer,
    documents: Sequence[Ids],
    *,
    vocab_size: int,
    shorten: bool,
    progress: Progress | None = None,
) -> Likelihood:
    """Score every document; ``shorten`` tries at half the length those that fail.

    Only a baseline may be shortened: a variant is measured on the very tokens that the baseline
    was. One document that cannot be scored leaves the whole unknown, because the ones that fail
    are not a random choice (the longest fail first).
    """
    missing = probe(peer, documents[0])
    if missing is not None:
        return Likelihood(missing=missing)
    longest = max(len(document) for document in documents)
    gentle = replace(peer, concurrency=bounded(peer.concurrency, longest, vocab_size))
    replies = ask(gentle, [_body(document) for document in documents], progress=progress)
    asked = list(documents)
    if shorten:
        for index in (i for i, reply in enumerate(replies) if isinstance(reply, Failure)):
            asked[index] = documents[index][: max(_SHORTEST, len(documents[index]) // 2)]
            replies[index] = ask(replace(peer, concurrency=1), [_body(asked[index])])[0]
    return _collect(replies, asked)


def _collect(replies: Sequence[Reply], asked: Sequence[Ids]) -> Likelihood:
    failures = [reply for reply in replies if isinstance(reply, Failure)]
    if any(_NOT_A_NUMBER.search(reply.detail) for reply in failures):
        return Likelihood(broken="the server's log-probabilities are not numbers (NaN)")
    if failures:
        return Likelihood(
            missing=f"{len(failures)} of {len(replies)} held-out documents could not be scored "
            f"({why(failures[0])}); lower quality.max_tokens or quality.concurrency"
        )
    try:
        pairs = [
            nll_of(reply, ids)
            for reply, ids in zip(replies, asked, strict=True)
            if not isinstance(reply, Failure)
        ]
    except BrokenProbabilities as error:
        return Likelihood(broken=str(error))
    unanswered = sum(pair is None for pair in pairs)
    if unanswered:
        return Likelihood(missing=f"{unanswered} of {len(pairs)} replies held no log-probabilities")
    return Likelihood(nll=tuple(pair for pair in pairs if pair is not None))


def probe(peer: Peer, document: Ids) -> str | None:
    """Why this server cannot say how likely a prompt is, or None where it can.

    Asked before anything is scored: some servers accept the request and leave the figures out.
    A broken figure is an answer, and is found again by the measurement itself.
    """
    short = document[: max(_SHORTEST, min(8, len(document)))]
    reply = ask(peer, [_body(short)])[0]
    if isinstance(reply, Failure):
        if _NOT_A_NUMBER.search(reply.detail):
            return None
        return f"the server does not answer a request for prompt_logprobs ({why(reply)})"
    try:
        pair = nll_of(reply, short)
    except BrokenProbabilities:
        return None
    return "the server leaves prompt_logprobs out of its replies" if pair is None else None


def bounded(concurrency: int, tokens: int, vocab_size: int) -> int:
    """How many prompts of ``tokens`` may be scored at a time within 4 GiB of float32 logits."""
    return max(1, min(concurrency, _LOGITS_BUDGET_BYTES // (tokens * vocab_size * _LOGIT_BYTES)))


def _body(ids: Ids) -> dict[str, Any]:
    return {"prompt": list(ids), "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}


def nll_of(reply: dict[str, Any], ids: Ids) -> Nll | None:
    """(Σ −log p, tokens) of a prompt from vLLM's reply; the first token is given, not predicted.

    None where the reply holds no figure for some token. Raises ``BrokenProbabilities`` for NaN or
    minus infinity.
    """
    choices = reply.get("choices") or [{}]
    entries = choices[0].get("prompt_logprobs")
    if not isinstance(entries, list) or len(entries) != len(ids) or len(ids) < _SHORTEST:
        return None
    total = 0.0
    for position, (entry, token) in enumerate(zip(entries, ids, strict=True)):
        if position == 0:
            continue
        found = entry.get(str(token)) if isinstance(entry, dict) else None
        if not isinstance(found, dict) or "logprob" not in found:
            return None
        total -= _checked(found["logprob"], position)
    return total, len(ids) - 1


def _checked(value: object, position: int) -> float:
    """A log-probability as a finite number; JSON writers spell NaN as null or as a string."""
    number = float(value) if isinstance(value, int | float | str) else math.nan
    if math.isnan(number):
        raise BrokenProbabilities(
            f"the log-probability of prompt token {position} is not a number (NaN)"
        )
    if number <= _CLAMPED:
        raise BrokenProbabilities(f"prompt token {position} of held-out text has probability 0")
    return number
