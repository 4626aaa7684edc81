"""Negative log-likelihood and likeliest tokens of held-out documents, from a server.

``prompt_logprobs`` makes vLLM hold the logits of a whole prompt (about 7.5 GiB at 8,192 tokens of
a 152 k vocabulary), so length and concurrency are bounded. Each reply becomes arrays on arrival:
its JSON takes some hundred bytes per token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from whet.client import Failure
from whet.core.protocols import Progress
from whet.core.units import GIB, MIB
from whet.quality.asking import (
    ModelEndpoint,
    ask,
    ask_and_read,
    describe,
    first_choice,
    is_not_a_number,
)
from whet.quality.data import Ids
from whet.quality.distances import TopDocument, pack
from whet.quality.statistics import Nll

_LOGITS_BUDGET_BYTES: Final = 4 * GIB
_LOGIT_BYTES: Final = 8  # float32 logits and their log-softmax
_REPLY_BUDGET_BYTES: Final = 256 * MIB
_NAMED_BYTES: Final = 512  # one token of a parsed reply: an object of three entries and its key
_CLAMPED: Final = -9999.0  # vLLM writes minus infinity so
_SHORTEST: Final = 2
_REFUSED: Final = "(http_4"  # in ``describe``: the server refused the request


@dataclass(frozen=True, kw_only=True, slots=True)
class Likelihood:
    """One (Σ −log p, tokens) pair per document.

    ``broken`` says that the server's probabilities are not numbers, a defect of the variant;
    ``missing`` that it did not answer, which is not evidence against the variant. ``top`` holds the
    likeliest tokens of each document, ``top_missing`` says why the server does not give them.
    """

    nll: tuple[Nll, ...] = ()
    broken: str | None = None
    missing: str | None = None
    top: tuple[TopDocument, ...] = ()
    top_missing: str | None = None


class BrokenProbabilities(ValueError):
    """A log-probability that is NaN or minus infinity; never leaves this package."""


Scored = tuple[Nll, TopDocument | None]
"""One document's figures; the second is None if not requested or if too few were named."""
_Result = Scored | BrokenProbabilities | Failure | None


def measure_likelihood(
    endpoint: ModelEndpoint,
    documents: Sequence[Ids],
    *,
    vocab_size: int,
    top_k: int = 0,
    progress: Progress | None = None,
) -> Likelihood:
    """Score every document with the ``top_k`` likeliest tokens of each position.

    One document that cannot be scored leaves the whole unknown, because failures are not a random
    choice (the longest fail first). A server that refuses to name ``top_k`` tokens is asked for the
    prompt's own tokens only.
    """
    wanted = named = min(top_k, vocab_size)
    missing = _probe(endpoint, documents[0], wanted)
    if wanted and missing is not None and _REFUSED in missing:
        named, missing = 0, _probe(endpoint, documents[0])
    if missing is not None:
        return Likelihood(missing=missing)
    longest = max(len(document) for document in documents)
    limited = replace(endpoint, concurrency=bounded(endpoint.concurrency, longest, vocab_size))
    likelihood = _collect(_score(limited, documents, named, progress), named)
    if named or not wanted or not likelihood.nll:
        return likelihood
    return replace(
        likelihood,
        top_missing=f"the server refuses to name the {wanted} likeliest tokens of a position; "
        "lower quality.top_logprobs, or raise its --max-logprobs",
    )


def _score(
    endpoint: ModelEndpoint, documents: Sequence[Ids], top_k: int, progress: Progress | None
) -> list[_Result]:
    """Read each reply on arrival, so that few whole replies are in memory at a time."""

    def read(index: int, reply: dict[str, Any]) -> Scored | BrokenProbabilities | None:
        try:
            return read_scores(reply, documents[index], top_k)
        except BrokenProbabilities as error:
            return error

    longest = max(len(document) for document in documents)
    step = max(1, _REPLY_BUDGET_BYTES // (longest * (top_k + 1) * _NAMED_BYTES))
    bodies = [_body(document, top_k) for document in documents]
    return [*ask_and_read(endpoint, bodies, read, step=step, progress=progress)]


def _collect(results: Sequence[_Result], top_k: int) -> Likelihood:
    failures = [result for result in results if isinstance(result, Failure)]
    if wrong := sum(is_not_a_number(failure) for failure in failures):
        return Likelihood(
            broken=f"the server's log-probabilities are not numbers (NaN) in {wrong} of "
            f"{len(results)} documents"
        )
    if failures:
        return Likelihood(
            missing=f"{len(failures)} of {len(results)} held-out documents could not be scored "
            f"({describe(failures[0])}); lower quality.max_tokens or quality.concurrency, or "
            "raise max_model_len"
        )
    broken = [result for result in results if isinstance(result, BrokenProbabilities)]
    if broken:
        return Likelihood(broken=str(broken[0]))
    scored = [result for result in results if isinstance(result, tuple)]
    if len(scored) < len(results):
        return Likelihood(
            missing=f"{len(results) - len(scored)} of {len(results)} replies held no "
            "log-probabilities"
        )
    top = tuple(document for _, document in scored if document is not None)
    short = len(scored) - len(top) if top_k else 0
    return Likelihood(
        nll=tuple(nll for nll, _ in scored),
        top=() if short else top,
        top_missing=f"the server names fewer likeliest tokens than it was asked for in {short} of "
        f"{len(scored)} documents"
        if short
        else None,
    )


def _probe(endpoint: ModelEndpoint, document: Ids, top_k: int = 0) -> str | None:
    """Return why this server cannot score a prompt, or None if it can.

    Some servers accept the request and leave the figures out. A figure that is not a number counts
    as an answer here; the measurement finds it again.
    """
    short = document[: max(_SHORTEST, min(8, len(document)))]
    reply = ask(endpoint, [_body(short, top_k)])[0]
    if isinstance(reply, Failure):
        if is_not_a_number(reply):
            return None
        return f"the server does not answer a request for prompt_logprobs ({describe(reply)})"
    try:
        scores = read_scores(reply, short)
    except BrokenProbabilities:
        return None
    return "the server leaves prompt_logprobs out of its replies" if scores is None else None


def bounded(concurrency: int, tokens: int, vocab_size: int) -> int:
    """Return how many prompts of ``tokens`` fit into 4 GiB of float32 logits at a time."""
    return max(1, min(concurrency, _LOGITS_BUDGET_BYTES // (tokens * vocab_size * _LOGIT_BYTES)))


def _body(ids: Ids, top_k: int) -> dict[str, Any]:
    return {"prompt": list(ids), "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": top_k}


def read_scores(reply: dict[str, Any], ids: Ids, top_k: int = 0) -> Scored | None:
    """Return (Σ −log p, tokens) of a document without its first token, and its likeliest tokens.

    None if the reply lacks the figure of some token. Raises ``BrokenProbabilities`` for NaN or
    minus infinity.
    """
    entries = first_choice(reply).get("prompt_logprobs")
    if not isinstance(entries, list) or len(entries) != len(ids) or len(ids) < _SHORTEST:
        return None
    own: list[float] = []
    positions: list[list[tuple[int, float]]] = []
    for position, (entry, token) in enumerate(zip(entries[1:], ids[1:], strict=True), start=1):
        figures = entry.get(str(token)) if isinstance(entry, dict) else None
        if not isinstance(figures, dict) or "logprob" not in figures:
            return None
        own.append(_number(figures["logprob"], position))
        if own[-1] <= _CLAMPED:
            raise BrokenProbabilities(f"prompt token {position} of held-out text has probability 0")
        if top_k:
            positions.append(_named(entry, position))
    complete = top_k > 0 and all(len(named) >= top_k for named in positions)
    top = pack(positions, top_k) if complete else None
    return (-math.fsum(own), len(own)), top


def _named(entry: dict[str, Any], position: int) -> list[tuple[int, float]]:
    """Return every token named at a position, including those of probability 0."""
    return [
        (int(token), max(_number(value["logprob"], position), _CLAMPED))
        for token, value in entry.items()
        if isinstance(value, dict) and "logprob" in value and token.isdecimal()
    ]


def _number(value: object, position: int) -> float:
    """Read a log-probability; JSON writers spell NaN as null or as a string."""
    number = float(value) if isinstance(value, int | float | str) else math.nan
    if math.isnan(number):
        raise BrokenProbabilities(
            f"the log-probability of prompt token {position} is not a number (NaN)"
        )
    return number
