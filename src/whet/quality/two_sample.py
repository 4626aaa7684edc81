"""Whether two servers' sampled text comes from one distribution.

Sampled text differs from run to run, so single answers cannot be compared; their distributions
can. The test is Gao et al., "Model Equality Testing" (arXiv 2410.20247): the maximum mean
discrepancy with the Hamming kernel, which saw quantized, watermarked and exchanged models from
about ten samples a prompt.

    k(x, y) = 1/L · Σ_i 1[x_i = y_i]       sequences of L token positions, padded after their end

    MMD² = Σ_{i≠j} [k(x_i, x_j) + k(y_i, y_j)] / (n(n−1)) − 2 Σ_{i,j} k(x_i, y_j) / n²

unbiased (Gretton et al. 2012, lemma 6), for the n samples x and n samples y of one prompt, and
averaged over prompts. The paper sums over positions; the share of positions differs by the
constant L, which changes no p-value. Samples are exchanged between the sides within a prompt
only, so that the p-value is exact however different the prompts are. A prompt with one sure
answer shows garbage and little else; the openings of held-out text show shifts as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from whet.client import Failure
from whet.core.protocols import Progress
from whet.core.records import TwoSample
from whet.quality.asking import ModelEndpoint, Reply, ask
from whet.quality.greedy import (
    Tokens,
    id_fields,
    no_tokens,
    paired_rows,
    prompt_names,
    prompts_identity,
    tokens_of,
)
from whet.quality.prompts import Ids

_PERMUTATIONS: Final = 2000
_ROUNDING: Final = 1e-12
_PAD: Final = -1  # no token's code: two texts that have both ended agree


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """``samples`` a prompt of at most ``tokens`` tokens.

    With a ``seed``, sample k of prompt i has its own, ``seed`` + i · ``samples`` + k. None leaves
    the choice to the server, as most traffic does: vLLM 0.32 on a CPU dies of a seeded request
    whose prefill it cuts in chunks (``CPU Generator does not use offset``).
    """

    samples: int = 16
    tokens: int = 32
    temperature: float = 1.0
    seed: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptSamples:
    """What was sampled after one prompt."""

    id: str
    samples: tuple[Tokens, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Sampled continuations of ``asked`` prompts; ``missing`` says why some are not there."""

    prompts_sha256: str
    sampling: Sampling
    asked: int
    answered: tuple[PromptSamples, ...]
    missing: str | None


def sample_many(
    endpoint: ModelEndpoint,
    prompts: Sequence[Ids],
    sampling: Sampling,
    *,
    names: Sequence[str] | None = None,
    backwards: bool = False,
    progress: Progress | None = None,
) -> Samples:
    """``sampling.samples`` continuations of every prompt, asked as one request with ``n``.

    Two sides must not spend the same random numbers on the same prompt: they would agree better
    than two draws do. So the second side is asked ``backwards``, because vLLM starts its own
    stream at 0 whenever it is started, and its seeds, where there are any, begin where the first
    side's end (vLLM gives choice k of a request the seed + k).
    """
    n = sampling.samples
    extra: dict[str, Any] = id_fields(endpoint, prompts[0]) or {"logprobs": 1}
    common = {
        "max_tokens": sampling.tokens,
        "temperature": sampling.temperature,
        "n": n,
        **extra,
    }
    bodies = [
        {"prompt": list(ids), **_seed(sampling, index), **common}
        for index, ids in enumerate(prompts)
    ]
    asked = ask(endpoint, bodies[::-1] if backwards else bodies, progress=progress)
    replies = asked[::-1] if backwards else asked
    found, trouble = [], []
    for name, reply in zip(names or prompt_names(prompts), replies, strict=True):
        drawn = _drawn(reply, n)
        if isinstance(drawn, str):
            trouble.append(drawn)
        else:
            found.append(PromptSamples(id=name, samples=drawn))
    missing = f"{len(trouble)} of {len(prompts)} prompts were not sampled" if trouble else None
    return Samples(
        prompts_sha256=prompts_identity(prompts),
        sampling=sampling,
        asked=len(prompts),
        answered=tuple(found),
        missing=None if missing is None else f"{missing} ({trouble[0]})",
    )


def _seed(sampling: Sampling, index: int) -> dict[str, int]:
    return {} if sampling.seed is None else {"seed": sampling.seed + index * sampling.samples}


def _drawn(reply: Reply, n: int) -> tuple[Tokens, ...] | str:
    """The tokens of all ``n`` choices, or why they are not there."""
    choices = [] if isinstance(reply, Failure) else reply.get("choices") or []
    told = [tokens_of(choice) for choice in choices]
    known = tuple(tokens for tokens in told if tokens is not None)
    if isinstance(reply, Failure) or len(known) < len(told) or not told:
        return no_tokens(reply)
    return known if len(known) == n else f"{len(known)} samples instead of {n}"


def compare_samples(
    here: Samples, plain: Samples, *, permutations: int = _PERMUTATIONS, seed: int = 0
) -> TwoSample:
    """The two-sample test over the prompts that both sides answered.

    ``p_value`` is (1 + permutations that reach the statistic) ÷ (1 + ``permutations``), which
    rejects a true null at most as often as it says (Phipson & Smyth 2010). Raises ``ValueError``
    where the sides were not asked the same, with seeds of their own, or share no prompt.
    """
    _check_pair(here, plain)
    rows = paired_rows([{one.id: one.samples for one in side.answered} for side in (here, plain)])
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


def _check_pair(here: Samples, plain: Samples) -> None:
    ours, theirs = here.sampling, plain.sampling
    asked = [(s.samples, s.tokens, s.temperature) for s in (ours, theirs)]
    if here.prompts_sha256 != plain.prompts_sha256 or asked[0] != asked[1]:
        raise ValueError("the samples are not of the same prompts, drawn in the same way")
    seeds = [side.seed for side in (ours, theirs) if side.seed is not None]
    if len(seeds) == 2 and abs(seeds[0] - seeds[1]) < plain.asked * theirs.samples:
        raise ValueError("both sides were sampled with the same seeds")
    if theirs.samples < 2:
        raise ValueError("one sample a prompt holds no spread; draw at least two")
    sides = [one for side in (here, plain) for one in side.answered]
    if len({type(t) for one in sides for sample in one.samples for t in sample}) > 1:
        raise ValueError("one server says its tokens as ids and the other as text")


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
        # Row 0 is the assignment as it was, every other row a random one.
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
