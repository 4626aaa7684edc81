"""Golden probes: what a deployment said of one token, kept so that a monitor can see it change.

The log-probability of a single output token is enough to see one step of fine-tuning (arXiv
2512.03816). Three things keep the comparison honest:

- The token followed is chosen by a first pass that counts for nothing: the likeliest token of the
  very draws would look likelier than it is, and fall back when asked again.
- Every repetition has its own order and its own concurrency, because the batch that a request
  shares changes its numerics, and every request its own cache salt, so that none reads a prefix
  that an earlier one computed.
- ``logprob_token_ids`` is not used: vLLM 0.32's sampler answers a whole batch by it, also the
  requests of others that asked for their likeliest tokens.
"""

from __future__ import annotations

import json
import math
import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from whet.client import Failure
from whet.core.errors import StorageError, UsageError
from whet.core.provenance import now
from whet.core.records.codec import decode
from whet.core.records.quality_checks import GoldenProbe, GoldenProbes, GoldenToken
from whet.core.store import write_json
from whet.quality.asking import ModelEndpoint, ask, is_not_a_number, why
from whet.quality.prompts import Ids
from whet.quality.top_logprobs import TopDocument

TOP: Final = 5
REPETITIONS: Final = 5
_CONCURRENCY: Final = (16, 1, 4, 8, 2)
_ID_PREFIX: Final = "token_id:"
_SHORTEST_CUT: Final = 8
_LONGEST_CUT: Final = 256

Listed = Mapping[int, float]
"""The likeliest next tokens of one prompt with their log-probabilities."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldenSource:
    """What is served at the time: the variant's name, the engine's version, the weights' hash."""

    variant: str
    engine_version: str | None = None
    model_sha256: str | None = None


class _Missing(Exception):
    """The server did not say it; the text says why."""


class _Broken(Exception):
    """The server said something that is no probability."""


def choose_probes(
    documents: Sequence[Ids],
    count: int,
    *,
    entropies: Sequence[Sequence[float | None]] | None = None,
    seed: int = 0,
) -> list[tuple[str, Ids]]:
    """``count`` different prefixes of held-out documents, spread evenly over the documents.

    ``entropies[d][t]`` says how unsure the baseline is of token t of document d given those before
    (``entropies_of``): a log-probability moves with the logits the more, the less sure it is, so
    unsure cuts are the sensitive ones. Where it is None, cuts are drawn by ``seed``. Prefixes have
    8 to 256 tokens, shorter where the document is. Fewer come back where the documents hold fewer.
    Raises ``UsageError`` where no document has two tokens.
    """
    rng = random.Random(seed)
    queues = [
        [(index, cut) for cut in _ranked_cuts(ids, entropies[index] if entropies else None, rng)]
        for index, ids in enumerate(documents)
    ]
    rng.shuffle(queues)
    chosen: dict[Ids, str] = {}
    while len(chosen) < count and any(queues):
        for queue in queues:
            # Documents share their openings; a prompt asked twice says nothing new.
            while queue and documents[queue[0][0]][: queue[0][1]] in chosen:
                queue.pop(0)
            if queue and len(chosen) < count:
                index, cut = queue.pop(0)
                chosen[documents[index][:cut]] = f"{index}@{cut}"
    if not chosen:
        raise UsageError("no document is long enough for a golden probe; give longer held-out text")
    return [(name, prompt) for prompt, name in chosen.items()]


def _ranked_cuts(
    ids: Ids, entropies: Sequence[float | None] | None, rng: random.Random
) -> list[int]:
    """Prefix lengths of one document, the best first."""
    last = min(len(ids) - 1, _LONGEST_CUT)
    cuts = list(range(max(1, min(_SHORTEST_CUT, last)), last + 1))
    rng.shuffle(cuts)
    if entropies is None:
        return cuts
    known = dict(enumerate(entropies))

    def unsure(cut: int) -> float:
        found = known.get(cut)
        return -math.inf if found is None else found

    return sorted(cuts, key=unsure, reverse=True)


def entropies_of(document: TopDocument) -> list[float | None]:
    """How unsure the server was of each token of a document; None for the first, which is given.

    Entropy in nats of the tokens named and one bucket for the rest, which is at most the true one
    (Cover and Thomas, section 2.7: merging outcomes adds none).
    """
    shares = np.exp(np.nan_to_num(document.logprobs.astype(np.float64), nan=-np.inf))
    rest = np.clip(1.0 - shares.sum(axis=1, keepdims=True), 0.0, 1.0)
    whole = np.concatenate([shares, rest], axis=1)
    found = -(whole * np.log(np.where(whole > 0, whole, 1.0))).sum(axis=1)
    return [None, *found.tolist()]


def take_golden(
    endpoint: ModelEndpoint,
    probes: Sequence[tuple[str, Ids]],
    source: GoldenSource,
    *,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> GoldenProbes:
    """Ask one greedy token of every probe, once to choose what to follow and then ``repetitions``.

    Each token's interval is the least and greatest of its draws: they come from different batches,
    which no bell curve describes; one more draw lies within with probability (R − 1) ÷ (R + 1). A
    server that does not answer leaves ``probes`` empty and says why in ``missing``; probabilities
    that are not numbers in ``broken``. ``UsageError`` without probes, or for an id that is twice.
    """
    _refuse(probes, repetitions)
    try:
        first = _ask(endpoint, [prompt for _, prompt in probes], seed, 0)
        follow = [sorted(listed, key=lambda token: -listed[token])[:TOP] for listed in first]
        return _take(endpoint, probes, follow, _empty(source, repetitions), seed)
    except _Missing as error:
        return replace(_empty(source, repetitions), missing=str(error))
    except _Broken as error:
        return replace(_empty(source, repetitions), broken=str(error))


def retake_golden(
    endpoint: ModelEndpoint,
    before: GoldenProbes,
    source: GoldenSource,
    *,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> GoldenProbes:
    """The probes of ``before`` asked again, following the tokens that it followed.

    Give ``endpoint`` the same concurrency as then, so that the batches are alike. Otherwise as
    ``take_golden``.
    """
    probes = [(probe.id, probe.prompt) for probe in before.probes]
    _refuse(probes, repetitions)
    follow = [[token.token_id for token in probe.tokens] for probe in before.probes]
    try:
        return _take(endpoint, probes, follow, _empty(source, repetitions), seed)
    except _Missing as error:
        return replace(_empty(source, repetitions), missing=str(error))
    except _Broken as error:
        return replace(_empty(source, repetitions), broken=str(error))


def _refuse(probes: Sequence[tuple[str, Ids]], repetitions: int) -> None:
    if not probes:
        raise UsageError("there are no golden probes to ask; choose some from held-out text")
    if len({name for name, _ in probes}) < len(probes):
        raise UsageError("two golden probes have the same id; give every probe its own")
    if repetitions < 1:
        raise UsageError("golden probes need at least one repetition; ask for 5")


def _empty(source: GoldenSource, repetitions: int) -> GoldenProbes:
    return GoldenProbes(
        variant=source.variant,
        engine_version=source.engine_version,
        model_sha256=source.model_sha256,
        taken_at=now(),
        repetitions=repetitions,
        probes=(),
        draws=(),
    )


def _take(
    endpoint: ModelEndpoint,
    probes: Sequence[tuple[str, Ids]],
    follow: Sequence[Sequence[int]],
    empty: GoldenProbes,
    seed: int,
) -> GoldenProbes:
    prompts = [prompt for _, prompt in probes]
    draws = [_ask(endpoint, prompts, seed, turn + 1) for turn in range(empty.repetitions)]
    return replace(
        empty,
        probes=tuple(
            GoldenProbe(
                id=name,
                prompt=prompt,
                tokens=_tokens(follow[index], [draw[index] for draw in draws]),
            )
            for index, (name, prompt) in enumerate(probes)
        ),
        draws=tuple(
            tuple(_at(listed, follow[index][0]) for index, listed in enumerate(draw))
            for draw in draws
        ),
    )


def _tokens(follow: Sequence[int], draws: Sequence[Listed]) -> tuple[GoldenToken, ...]:
    """The followed token, then those of the others that every repetition listed."""
    kept = [*follow[:1], *(t for t in follow[1:] if all(t in listed for listed in draws))]
    found = []
    for token in kept:
        values = [_at(listed, token) for listed in draws]
        mean = min(max(values), max(min(values), math.fsum(values) / len(values)))
        found.append(GoldenToken(token_id=token, mean=mean, low=min(values), high=max(values)))
    return tuple(found)


def _at(listed: Listed, token: int) -> float:
    """A token's log-probability; where it is not listed, the least that is: it has no more."""
    return listed.get(token, min(listed.values()))


def _ask(endpoint: ModelEndpoint, prompts: Sequence[Ids], seed: int, turn: int) -> list[Listed]:
    """One pass over all prompts, in the order and at the concurrency of this turn."""
    order = list(range(len(prompts)))
    random.Random(f"{seed}/{turn}").shuffle(order)
    level = min(endpoint.concurrency, _CONCURRENCY[turn % len(_CONCURRENCY)])
    replies = ask(replace(endpoint, concurrency=level), [_body(prompts[index]) for index in order])
    failed = [reply for reply in replies if isinstance(reply, Failure)]
    if any(is_not_a_number(reply) for reply in failed):
        raise _Broken("the server's log-probabilities are not numbers (NaN)")
    if failed:
        raise _Missing(f"{len(failed)} of {len(replies)} golden probes failed ({why(failed[0])})")
    answers = [_listed(reply) for reply in replies if not isinstance(reply, Failure)]
    return [listed for _, listed in sorted(zip(order, answers, strict=True), key=lambda p: p[0])]


def _body(prompt: Ids) -> dict[str, Any]:
    return {
        "prompt": list(prompt),
        "max_tokens": 1,
        "temperature": 0.0,
        "logprobs": TOP,
        "return_tokens_as_token_ids": True,
        "cache_salt": uuid.uuid4().hex,
    }


def _listed(reply: Mapping[str, Any]) -> Listed:
    """The tokens of ``choices[0].logprobs.top_logprobs[0]`` by id."""
    choice = (reply.get("choices") or [{}])[0]
    top = ((choice.get("logprobs") or {}).get("top_logprobs") or [None])[0]
    if not isinstance(top, dict) or not top:
        raise _Missing("the server leaves logprobs out of its replies")
    found: dict[int, float] = {}
    for name, value in top.items():
        number = name.removeprefix(_ID_PREFIX)
        if number == name or not number.isdecimal():
            raise _Missing(
                "the server names tokens by their text and not by id "
                "(it does not know return_tokens_as_token_ids)"
            )
        found[int(number)] = float(value) if isinstance(value, int | float) else math.nan
    if not all(math.isfinite(value) for value in found.values()):
        raise _Broken("the server's log-probabilities are not numbers (NaN)")
    return found


def write_golden(path: Path, probes: GoldenProbes) -> None:
    """Write a variant's golden file, whole or not at all; ``UsageError`` if it holds no probes."""
    if not probes.probes:
        reason = probes.broken or probes.missing or "nothing was asked"
        raise UsageError(f"there are no golden probes of {probes.variant} to keep: {reason}")
    write_json(path, probes)


def read_golden(path: Path) -> GoldenProbes:
    """A golden file. ``UsageError`` where there is none, ``StorageError`` for a damaged one."""
    try:
        found = decode(GoldenProbes, json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise UsageError(f"no golden probes at {path}; take them from a good deployment") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}; mend its rights") from error
    except (ValueError, StorageError) as error:
        raise StorageError(
            f"{path} holds no golden probes of this version of whet; take them again"
        ) from error
    rows = {len(row) for row in found.draws}
    whole = found.probes and rows == {len(found.probes)} and len(found.draws) == found.repetitions
    if not whole or any(not probe.tokens for probe in found.probes):
        raise StorageError(f"{path} is damaged: probes and draws do not fit; take them again")
    return found
