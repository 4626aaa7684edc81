"""Test whether two servers' sampled text comes from one distribution.

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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from whet.client import Failure
from whet.core.records.quality_checks import TwoSample
from whet.quality.asking import ModelEndpoint, Reply, ask, describe_missing
from whet.quality.greedy import (
    Prompts,
    Tokens,
    id_fields,
    no_tokens,
    paired_rows,
    refuse_mixed_tokens,
    tokens_of,
)

_PERMUTATIONS: Final = 2000
_ROUNDING: Final = 1e-12
_PAD: Final = -1  # the code of no token: two texts that have both ended agree


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
        total += _mmd2(_agreements(samples), sides)
    values = total / (prompts * length)
    reached = int((values[1:] >= values[0] - _ROUNDING).sum())
    return float(values[0]), (1 + reached) / (1 + permutations)


def _agreements(samples: Any) -> Any:
    """[2·n, 2·n] positions at which two samples agree; 0 for a sample with itself."""
    kernel = (samples[:, None, :] == samples[None, :, :]).sum(axis=2).astype(np.float64)
    np.fill_diagonal(kernel, 0.0)
    return kernel


def _mmd2(kernel: Any, sides: Any) -> Any:
    """MMD² for every row of ``sides`` (1 for x, 0 for y), times the positions of ``kernel``."""
    n = kernel.shape[0] // 2
    within_x = ((sides @ kernel) * sides).sum(axis=1)
    across = sides @ kernel.sum(axis=1) - within_x
    within_y = kernel.sum() - within_x - 2 * across
    return (within_x + within_y) / (n * (n - 1)) - 2 * across / n**2
