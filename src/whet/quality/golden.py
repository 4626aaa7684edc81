"""Golden probes: log-probabilities of single tokens, stored so that a monitor can detect changes.

The log-probability of one output token shows a single step of fine-tuning (arXiv 2512.03816).

- The followed token is chosen by a first pass that is not counted: the likeliest token of the
  counted draws would look likelier than it is, and fall back when asked again.
- Every repetition has its own order and concurrency, because the batch of a request changes its
  numerics, and every request its own cache salt, so that none reads an earlier prefix.
- ``logprob_token_ids`` is not used: vLLM 0.32's sampler applies it to the whole batch, also to
  requests of others that asked for their likeliest tokens.
"""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from whet.client import Failure
from whet.core.errors import MeasurementError, StorageError, UsageError
from whet.core.outside import read_json
from whet.core.records.codec import decode
from whet.core.records.quality_checks import GoldenProbe, GoldenProbes, GoldenToken
from whet.quality.asking import (
    ModelEndpoint,
    ask,
    describe,
    describe_missing,
    first_choice,
    is_not_a_number,
)
from whet.quality.data import Ids
from whet.quality.distances import TopDocument
from whet.quality.likelihood import BrokenProbabilities

TOP: Final = 5
REPETITIONS: Final = 5
_CONCURRENCY: Final = (16, 1, 4, 8, 2)
_ID_PREFIX: Final = "token_id:"
_SHORTEST_CUT: Final = 8
LONGEST_CUT: Final = 256
_AGAIN: Final = "measure the baseline again"
_NAN: Final = "the server's log-probabilities are not numbers (NaN)"

Probe = tuple[str, Ids]
"""A probe's id and its prompt."""
Logprobs = Mapping[int, float]
"""The likeliest next tokens of one prompt with their log-probabilities."""
Entropies = Sequence[float | None]


def choose_probes(
    documents: Sequence[Ids], count: int, *, entropies: Sequence[Entropies] | None = None
) -> list[Probe]:
    """Choose ``count`` different prefixes of held-out documents, spread over the documents.

    ``entropies[d][t]`` is the baseline's uncertainty of token t of document d (``entropies_of``);
    prefixes before the most uncertain tokens come first, because a log-probability then moves most
    with the logits. Without it prefixes are drawn at random. They have 8 to 256 tokens, fewer in
    a shorter document. Raises ``UsageError`` if no document has two tokens.
    """
    rng = random.Random(0)
    queues = [
        [(index, cut) for cut in _ranked_cuts(ids, entropies[index] if entropies else (), rng)]
        for index, ids in enumerate(documents)
    ]
    rng.shuffle(queues)
    chosen: dict[Ids, str] = {}
    while len(chosen) < count and any(queues):
        for queue in queues:
            # Documents may share their openings, and a prompt is asked once.
            while queue and documents[queue[0][0]][: queue[0][1]] in chosen:
                queue.pop(0)
            if queue and len(chosen) < count:
                index, cut = queue.pop(0)
                chosen[documents[index][:cut]] = f"{index}@{cut}"
    if not chosen:
        raise UsageError(
            "no document is long enough for a golden probe", fix="give longer held-out text"
        )
    return [(name, prompt) for prompt, name in chosen.items()]


def _ranked_cuts(ids: Ids, entropies: Entropies, rng: random.Random) -> list[int]:
    """Return the prefix lengths of one document, most uncertain first."""
    last = min(len(ids) - 1, LONGEST_CUT)
    cuts = list(range(max(1, min(_SHORTEST_CUT, last)), last + 1))
    rng.shuffle(cuts)
    known = {cut: value for cut, value in enumerate(entropies) if value is not None}
    return sorted(cuts, key=lambda cut: known.get(cut, -math.inf), reverse=True)


def entropies_of(document: TopDocument) -> list[float | None]:
    """Return the server's uncertainty of each token of a document; None for the first token.

    Entropy in nats of the named tokens and one bucket for the rest, at most the true entropy
    (Cover and Thomas, section 2.7).
    """
    shares = np.exp(np.nan_to_num(document.logprobs.astype(np.float64), nan=-np.inf))
    rest = np.clip(1.0 - shares.sum(axis=1, keepdims=True), 0.0, 1.0)
    whole = np.concatenate([shares, rest], axis=1)
    values = -(whole * np.log(np.where(whole > 0, whole, 1.0))).sum(axis=1)
    return [None, *values.tolist()]


def take_golden(
    endpoint: ModelEndpoint,
    probes: Sequence[Probe],
    variant: str,
    *,
    follow: Sequence[int] | None = None,
    repetitions: int = REPETITIONS,
) -> GoldenProbes:
    """Ask one greedy token of every probe, once to choose the token to follow, then repeatedly.

    ``follow`` are token ids that an earlier call chose; use the same concurrency as there, so that
    the batches are alike. Without an answer ``probes`` is empty and ``missing`` says why;
    ``broken`` says that probabilities are not numbers.
    """
    prompts = [prompt for _, prompt in probes]
    try:
        if follow is None:
            first = _ask(endpoint, prompts, 0)
            follow = [max(logprobs, key=lambda token: logprobs[token]) for logprobs in first]
        turns = [_ask(endpoint, prompts, turn + 1) for turn in range(repetitions)]
    except MeasurementError as error:
        return GoldenProbes(variant=variant, probes=(), draws=(), missing=str(error))
    except BrokenProbabilities as error:
        return GoldenProbes(variant=variant, probes=(), draws=(), broken=str(error))
    draws = [
        # A token that is not listed has at most the smallest log-probability that is.
        tuple(one.get(token, min(one.values())) for token, one in zip(follow, turn, strict=True))
        for turn in turns
    ]
    columns = zip(probes, follow, zip(*draws, strict=True), strict=True)
    chosen = []
    for (name, prompt), token, values in columns:
        mean = min(max(values), max(min(values), math.fsum(values) / len(values)))
        tokens = (GoldenToken(token_id=token, mean=mean),)
        chosen.append(GoldenProbe(id=name, prompt=prompt, tokens=tokens))
    return GoldenProbes(variant=variant, probes=tuple(chosen), draws=tuple(draws))


def _ask(endpoint: ModelEndpoint, prompts: Sequence[Ids], turn: int) -> list[Logprobs]:
    """Ask all prompts once, in the order and at the concurrency of this turn."""
    order = list(range(len(prompts)))
    random.Random(f"0/{turn}").shuffle(order)
    concurrency = min(endpoint.concurrency, _CONCURRENCY[turn % len(_CONCURRENCY)])
    limited = replace(endpoint, concurrency=concurrency)
    replies = ask(limited, [_body(prompts[index]) for index in order])
    if any(is_not_a_number(reply) for reply in replies):
        raise BrokenProbabilities(_NAN)
    failures = [describe(reply) for reply in replies if isinstance(reply, Failure)]
    missing = describe_missing(failures, len(replies), "golden probes failed")
    if missing is not None:
        raise MeasurementError(missing)
    answers = {index: _logprobs(first_choice(r)) for index, r in zip(order, replies, strict=True)}
    return [answers[index] for index in range(len(prompts))]


def _body(prompt: Ids) -> dict[str, Any]:
    named = {"logprobs": TOP, "return_tokens_as_token_ids": True, "cache_salt": uuid.uuid4().hex}
    return {"prompt": list(prompt), "max_tokens": 1, "temperature": 0.0, **named}


def _logprobs(choice: Mapping[str, Any]) -> Logprobs:
    """Read the tokens of ``logprobs.top_logprobs[0]`` by id."""
    top = ((choice.get("logprobs") or {}).get("top_logprobs") or [None])[0]
    if not isinstance(top, dict) or not top:
        raise MeasurementError("the server leaves logprobs out of its replies")
    logprobs: dict[int, float] = {}
    for name, value in top.items():
        number = name.removeprefix(_ID_PREFIX)
        if number == name or not number.isdecimal():
            raise MeasurementError(
                "the server names tokens by their text and not by id "
                "(it does not know return_tokens_as_token_ids)"
            )
        logprobs[int(number)] = float(value) if isinstance(value, int | float) else math.nan
    if not all(math.isfinite(value) for value in logprobs.values()):
        raise BrokenProbabilities(_NAN)
    return logprobs


def read_golden(path: Path) -> GoldenProbes:
    """Read a golden file; ``StorageError`` if it is missing or damaged."""
    try:
        golden = decode(GoldenProbes, read_json(path))
        if {len(row) for row in golden.draws} == {len(golden.probes)} != {0}:
            return golden
        problem = "probes and draws do not match"
    except (OSError, ValueError, StorageError) as error:
        problem = str(error)
    raise StorageError(f"no golden probes can be read from {path} ({problem})", fix=_AGAIN)
