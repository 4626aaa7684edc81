"""Greedy and sampled continuations, and where they leave the plain server's.

Two runs of one model agree only up to rounding: another batch shape adds the same numbers in
another order, which decides between two tokens of almost equal probability (a tie). The plain
server is therefore asked twice, and its own differences are the reference.

Sampled text differs from run to run, so single answers cannot be compared; their distributions
can. The test is Gao et al., "Model Equality Testing" (arXiv 2410.20247): the maximum mean
discrepancy with the Hamming kernel, which saw quantized, watermarked and exchanged models from
about ten samples a prompt.

    k(x, y) = 1/L · Σ_i 1[x_i = y_i]       sequences of L token positions, padded after their end

    MMD² = Σ_{i≠j} [k(x_i, x_j) + k(y_i, y_j)] / (n(n−1)) − 2 Σ_{i,j} k(x_i, y_j) / n²

unbiased (Gretton et al. 2012, lemma 6), for the n samples x and n samples y of one prompt, and
averaged over prompts. The paper sums over positions, which differs by the constant L and leaves
the p-value the same. Samples are exchanged between the sides within a prompt only, so the p-value
is exact however different the prompts are. Prompts with one certain answer show only garbage;
openings of held-out text show shifts as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from whet.client import Failure
from whet.core.records.quality_checks import Divergence, GreedyParity, TwoSample
from whet.quality.asking import ModelEndpoint, Reply, ask, describe, describe_missing, first_choice
from whet.quality.data import Ids, identity
from whet.quality.statistics import mcnemar

Tokens = tuple[int, ...] | tuple[str, ...]
Prompts = Mapping[str, Ids]
"""Token ids by the prompt's name."""
Value = TypeVar("Value")

_ID_FIELDS: Final = {"return_token_ids": True, "return_tokens_as_token_ids": True}
_REFUSED: Final = ("http_400", "http_422")
_ID_PREFIX: Final = "token_id:"
_PERMUTATIONS: Final = 2000
_ROUNDING: Final = 1e-12
_PAD: Final = -1  # the code of no token: two texts that have both ended agree


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
    plain server's rounding.

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
    p_value = None
    if aa is not None:
        pairs = list(zip(aa, same, strict=True))
        lost, gained = pairs.count((True, False)), pairs.count((False, True))
        p_value = mcnemar(lost, gained, alternative="greater")
    return GreedyParity(
        prompts=len(rows),
        same=sum(same),
        aa_same=None if aa is None else sum(aa),
        p_value=p_value,
        divergences=tuple(divergences),
    )


def _divergence(here: Continuation, plain: Continuation) -> Divergence:
    pairs = zip(here.tokens, plain.tokens, strict=False)
    shorter = min(len(here.tokens), len(plain.tokens))
    at = next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), shorter)
    if at == shorter and len(here.tokens) == len(plain.tokens):
        return Divergence(id=plain.id, tokens=len(plain.tokens), at=None, margin=None)
    margin = plain.margins[at] if at < len(plain.margins) else None
    return Divergence(id=plain.id, tokens=len(plain.tokens), at=at, margin=margin)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """``samples`` per prompt of at most ``tokens`` tokens.

    Requests carry no seed, as most traffic does not: vLLM 0.32 on a CPU crashes on a seeded request
    whose prefill it splits into chunks (``CPU Generator does not use offset``).
    """

    samples: int = 16
    tokens: int = 32
    temperature: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Sampled continuations by the prompt's name; ``missing`` says why some are absent."""

    sampling: Sampling
    answered: Mapping[str, tuple[Tokens, ...]]
    missing: str | None


def sample_many(
    endpoint: ModelEndpoint, prompts: Prompts, sampling: Sampling, *, backwards: bool = False
) -> Samples:
    """Draw ``sampling.samples`` continuations of every prompt, one request with ``n`` each.

    Two sides must not use the same random numbers for a prompt, or they agree too well. vLLM starts
    its random stream at 0 at every start, so the second side is asked ``backwards``.
    """
    common: dict[str, Any] = {
        "max_tokens": sampling.tokens,
        "temperature": sampling.temperature,
        "n": sampling.samples,
        **(id_fields(endpoint, prompts) or {"logprobs": 1}),
    }
    bodies = [{"prompt": list(ids), **common} for ids in prompts.values()]
    answers, failures = {}, []
    for name, reply in zip(prompts, ask(endpoint, bodies, backwards=backwards), strict=True):
        samples = _read_samples(reply, sampling.samples)
        if isinstance(samples, str):
            failures.append(samples)
        else:
            answers[name] = samples
    return Samples(
        sampling=sampling,
        answered=answers,
        missing=describe_missing(failures, len(prompts), "prompts were not sampled"),
    )


def _read_samples(reply: Reply, n: int) -> tuple[Tokens, ...] | str:
    """Return the tokens of all ``n`` choices, or why they are absent."""
    choices = [] if isinstance(reply, Failure) else reply.get("choices") or []
    samples = [tokens for choice in choices if (tokens := tokens_of(choice)) is not None]
    if not choices or len(samples) < len(choices):
        return no_tokens(reply)
    return tuple(samples) if len(samples) == n else f"{len(samples)} samples instead of {n}"


def compare_samples(
    here: Samples, plain: Samples, *, permutations: int = _PERMUTATIONS, seed: int = 0
) -> TwoSample:
    """Run the two-sample test over the prompts that both sides answered.

    ``p_value`` is (1 + permutations that reach the statistic) ÷ (1 + ``permutations``), which
    rejects a true null at most as often as it says (Phipson & Smyth 2010). Both sides were asked
    the same prompts, with the same sampling. Raises ``ValueError`` if they share no answered
    prompt, or one gave ids and the other text.
    """
    sides = (here.answered, plain.answered)
    refuse_mixed_tokens(sample for side in sides for drawn in side.values() for sample in drawn)
    rows = paired_rows(sides)
    if not rows:
        raise ValueError("no prompt was sampled on both sides")
    length = plain.sampling.tokens
    codes: dict[int | str, int] = {}
    drawn = np.array(
        [[_coded(s, codes, length) for s in (*ours, *theirs)] for ours, theirs in rows]
    )
    statistic, p_value = mmd_test(drawn, permutations=permutations, seed=seed)
    return TwoSample(
        prompts=len(rows),
        samples=plain.sampling.samples,
        temperature=plain.sampling.temperature,
        statistic=statistic,
        p_value=p_value,
    )


def _coded(tokens: Tokens, codes: dict[int | str, int], length: int) -> list[int]:
    row = [codes.setdefault(token, len(codes)) for token in tokens[:length]]
    return row + [_PAD] * (length - len(row))


def mmd_test(drawn: Any, *, permutations: int, seed: int) -> tuple[float, float]:
    """(mean unbiased MMD² over prompts, permutation p) of codes [prompts, 2·n, positions].

    The first n rows of a prompt are one side's samples, the last n the other's.
    """
    prompts, both, length = drawn.shape
    rng = np.random.default_rng(seed)
    side = np.repeat([1.0, 0.0], both // 2)
    total = np.zeros(1 + permutations)
    for samples in drawn:
        # Row 0 is the observed assignment; the others are random.
        sides = np.tile(side, (1 + permutations, 1))
        sides[1:] = rng.permuted(sides[1:], axis=1)
        kernel = (samples[:, None, :] == samples[None, :, :]).sum(axis=2).astype(np.float64)
        np.fill_diagonal(kernel, 0.0)
        total += _mmd2(kernel, sides)
    values = total / (prompts * length)
    reached = int((values[1:] >= values[0] - _ROUNDING).sum())
    return float(values[0]), (1 + reached) / (1 + permutations)


def _mmd2(kernel: Any, sides: Any) -> Any:
    """MMD² for every row of ``sides`` (1 for x, 0 for y), times the positions of ``kernel``.

    ``kernel`` [2·n, 2·n] counts positions at which two samples agree; 0 for a sample with itself.
    """
    n = kernel.shape[0] // 2
    within_x = ((sides @ kernel) * sides).sum(axis=1)
    across = sides @ kernel.sum(axis=1) - within_x
    within_y = kernel.sum() - within_x - 2 * across
    return (within_x + within_y) / (n * (n - 1)) - 2 * across / n**2
