"""What the gate asks beside likelihoods and tasks, each against what earlier variants left."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from whet.core.errors import StorageError, UsageError
from whet.core.records import (
    LosslessCheck,
    QualityRecord,
    ServedDistances,
    ServedIdentity,
    StructuredScore,
    TaskAnswer,
)
from whet.quality.asking import Peer
from whet.quality.data import Task
from whet.quality.golden import (
    choose_probes,
    entropies_of,
    read_golden,
    take_golden,
    write_golden,
)
from whet.quality.identity import served_identity
from whet.quality.likelihood import Likelihood, measure_likelihood
from whet.quality.lossless import LosslessPlan, PlainReference, check_lossless, plain_reference
from whet.quality.plan import ChecksPlan, QualityPlan
from whet.quality.prompts import Ids
from whet.quality.served import served_distances
from whet.quality.structured import measure_structured
from whet.quality.top_logprobs import TopLogprobs, read_top_logprobs, write_top_logprobs
from whet.quality.two_sample import Sampling

_REPEATED: Final = 12
"""Documents that the first variant of some weights is asked again, for what batching changes."""
_TEXTS: Final = 16
_CHATS: Final = 4
ROUNDING_NATS: Final = 2e-5
"""Mean KL that the same weights may show by the same kernels and other batches, whatever the
repeat."""
OTHER_KERNELS_NATS: Final = 1e-4
"""The same by other kernels. Seen on an H100, 4-bit weights of 7B: 1e-5 between two compilations of
one configuration, 2.1e-5 between Marlin and Machete; a model whose width is all used rounds more.
"""
_TIMES_REPEAT: Final = 4.0
_TIMES_MEAN: Final = 50.0
"""How many times the limit of the mean one document may show. Of 43 right servers of 7B on an H100
the worst had once the limit, over 60 documents."""
_GREEDY_TOKENS: Final = 48
_SAMPLING: Final = Sampling(samples=8, tokens=16)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The questions that every variant is asked: they are the same for all."""

    tasks: Sequence[Task]
    prompts: Sequence[Ids]
    documents: Sequence[Ids]
    vocab_size: int
    data_sha256: str


@dataclass(kw_only=True, slots=True)
class Checks:
    """What was found. ``broken`` are defects that fail, ``missing`` gaps that leave unknown.

    ``no_golden`` says why there are no golden probes, which changes no verdict.
    """

    distances: ServedDistances | None = None
    twin: str | None = None
    twin_distances: ServedDistances | None = None
    identity: ServedIdentity | None = None
    lossless: LosslessCheck | None = None
    plain: PlainReference | None = None
    structured: tuple[StructuredScore, ...] = ()
    broken: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    no_golden: str | None = None
    scores_differ: bool = False
    parts: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the seconds of what is done within to ``part``."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.parts[part] = self.parts.get(part, 0.0) + time.monotonic() - started


@dataclass(frozen=True, slots=True)
class Answered:
    """What the server already said to the questions of every variant."""

    likelihood: Likelihood
    free: Sequence[TaskAnswer]


def run_checks(peer: Peer, plan: QualityPlan, asked: Asked, said: Answered, found: Checks) -> None:
    """Ask all that ``plan.checks`` and ``plan.spec`` want, and add it to ``found``."""
    with found.timed("tokens"):
        _check_identity(peer, plan, asked, found)
    with found.timed("distances"):
        _check_distances(peer, plan, asked, said.likelihood, found)
    if plan.spec.structured:
        with found.timed("structured"):
            found.structured = measure_structured(peer, asked.tasks, asked.prompts, said.free)
    with found.timed("speculation"):
        _check_speculation(peer, plan, asked, found)
    with found.timed("golden"):
        _keep_golden(peer, plan, asked, said.likelihood, found)


def _check_identity(peer: Peer, plan: QualityPlan, asked: Asked, found: Checks) -> None:
    """Does the server read and write tokens as the baseline's tokenizer does?

    The baseline is asked too: what differs there is no fault of a variant but of the comparison,
    which then says nothing.
    """
    before = plan.baseline.identity if plan.baseline is not None else None
    if before is not None and before.problems:
        return
    found.identity = served_identity(
        peer.url,
        peer.model,
        plan.tokenizer,
        [task.messages[-1].content for task in asked.tasks[:_TEXTS]],
        chats=[task.messages for task in asked.tasks[:_CHATS]],
    )
    if plan.baseline is None:
        return
    found.broken += found.identity.problems[:1]
    if found.identity.missing is not None and (before is None or before.missing is None):
        found.missing.append(found.identity.missing)


def _check_distances(
    peer: Peer, plan: QualityPlan, asked: Asked, likelihood: Likelihood, found: Checks
) -> None:
    """Distances from the baseline, and from the first variant that served the same weights."""
    checks = plan.checks
    if checks is None or likelihood.missing or likelihood.broken or not plan.spec.top_logprobs:
        return
    if not likelihood.top:
        if likelihood.top_missing is not None:
            found.missing.append(likelihood.top_missing)
        return
    here = _arrays(asked, likelihood)
    write_top_logprobs(checks.arrays / f"{plan.variant}.npz", here)
    if plan.baseline is not None:
        found.distances = _from(checks, plan.baseline, here, found)
    if checks.twin is None:
        found.twin = plan.variant
        found.twin_distances = _repeated(peer, asked, here)
        return
    found.twin = checks.twin.variant
    found.twin_distances = _from(checks, checks.twin, here, found)
    if found.twin_distances is not None:
        problem = same_weights_problem(
            found.twin_distances,
            checks.twin,
            other_kernels=checks.other_kernels,
            rounds=checks.rounds,
        )
        found.broken += [] if problem is None else [problem]
        found.scores_differ = problem is not None


def same_weights_problem(
    found: ServedDistances,
    twin: QualityRecord,
    *,
    other_kernels: bool = False,
    rounds: bool = False,
) -> str | None:
    """Why predictions on the same weights are further apart than rounding moves them, or None.

    Speculation, caching and batching change the order of additions and nothing else. What that is
    worth is seen where the first of the variants is asked twice; a KL whose interval lies wholly
    above four times that, and above 0.00002 nats (0.0001 by ``other_kernels``), is a fault: other
    weights, or a broken kernel.

    Where other kernels round activations to 8 bits (``rounds``), a last bit of what comes in moves
    some by a whole step. Two independent roundings are twice as far from one another as one is from
    none, and no rounding of activations is worth more than the twin's distance from the 16-bit
    model: the limit is twice that distance.

    A single document fifty times as far as that is a fault too: a server that scores one text of
    many as noise hardly moves a mean, and its interval reaches down to the others.
    """
    repeat = twin.twin_distances
    if repeat is None:
        return None
    noise = repeat.kl.value if repeat.kl.high is None else repeat.kl.high
    limit = max(_TIMES_REPEAT * noise, OTHER_KERNELS_NATS if other_kernels else ROUNDING_NATS)
    if other_kernels and rounds and twin.distances is not None:
        limit = max(limit, 2 * twin.distances.kl.value)
    each = [document.kl / document.tokens for document in found.documents]
    far = [nats for nats in each if nats > _TIMES_MEAN * limit]
    if found.kl.low is not None and found.kl.low > limit:
        seen = (
            f"mean KL {found.kl.value:.2g} [{found.kl.low:.2g}, {found.kl.high:.2g}] nats a token"
        )
    elif far:
        seen = f"KL up to {max(far):.2g} nats a token in {len(far)} of {len(each)} documents"
    else:
        return None
    return (
        f"predictions differ from those of {twin.variant}, which serves the same weights: {seen}, "
        f"and rounding makes at most {limit:.2g} in the mean; a layer, a scale or a kernel is not "
        "what it should be"
    )


def _check_speculation(peer: Peer, plan: QualityPlan, asked: Asked, found: Checks) -> None:
    """Hold a variant that speculates to the plain one, or keep what a plain one says for that."""
    checks, count = plan.checks, plan.spec.lossless_prompts
    if checks is None or not count:
        return
    prompts, names = _continued(asked, count)
    if checks.is_plain:
        sampling = _SAMPLING if plan.spec.sampled else None
        wanted = LosslessPlan(tokens=_GREEDY_TOKENS, sampling=sampling)
        found.plain = plain_reference(peer, prompts, wanted, names=names)
    if checks.plain is None:
        return
    found.lossless = check_lossless(peer, checks.plain, prompts, names=names)
    told = [f"speculation: {reason}" for reason in found.lossless.reasons]
    if found.lossless.verdict == "fail":
        found.broken += told
    elif found.lossless.verdict == "unknown":
        found.missing += told


def _continued(asked: Asked, count: int) -> tuple[list[Ids], list[str]]:
    """Prompts that are continued, and their names: tasks, and held-out documents broken off, after
    which much can be said. Sampled text shows a difference only where there is a choice."""
    broken_off = [ids[: max(2, len(ids) // 3)] for ids in asked.documents[: count // 2]]
    tasks = count - len(broken_off)
    names = [task.id for task in asked.tasks[:tasks]]
    names += [f"document {index + 1}" for index in range(len(broken_off))]
    return [*asked.prompts[:tasks], *broken_off], names


def _keep_golden(
    peer: Peer, plan: QualityPlan, asked: Asked, likelihood: Likelihood, found: Checks
) -> None:
    """Store what this deployment says of a few tokens, for a monitor to hold it to later.

    Every variant is asked what the baseline was: the probes are chosen there, once.
    """
    checks, count = plan.checks, plan.spec.golden_probes
    if checks is None or not count or likelihood.missing or likelihood.broken:
        return
    try:
        if plan.baseline is None:
            unsure = [entropies_of(document) for document in likelihood.top] or None
            probes = choose_probes(asked.documents, count, entropies=unsure)
        else:
            first = read_golden(checks.golden / f"{plan.baseline.variant}.json")
            probes = [(probe.id, probe.prompt) for probe in first.probes]
        taken = take_golden(peer, probes, checks.source)
    except (StorageError, UsageError) as error:
        found.no_golden = str(error)
        return
    found.no_golden = taken.missing
    if taken.broken is not None:
        found.broken.append(taken.broken)
    if taken.probes:
        write_golden(checks.golden / f"{plan.variant}.json", taken)


def _arrays(asked: Asked, likelihood: Likelihood) -> TopLogprobs:
    return TopLogprobs(
        top_k=likelihood.top[0].ids.shape[1] - 1,  # a small vocabulary has fewer than were asked
        data_sha256=asked.data_sha256,
        documents=likelihood.top,
    )


def _from(
    checks: ChecksPlan, other: QualityRecord, here: TopLogprobs, found: Checks
) -> ServedDistances | None:
    """Distances from a variant that was measured before; a gap where they cannot be formed."""
    try:
        there = read_top_logprobs(checks.arrays / f"{other.variant}.npz", here.data_sha256)
        return served_distances(here, there)
    except (StorageError, UsageError, ValueError) as error:
        found.missing.append(f"no distances from {other.variant}: {error}")
        return None


def _repeated(peer: Peer, asked: Asked, here: TopLogprobs) -> ServedDistances | None:
    """The server against itself: some documents again, in other batches and the opposite order."""
    count = min(_REPEATED, len(here.documents))
    some = [at * len(here.documents) // count for at in range(count)][::-1]
    other = replace(peer, concurrency=max(1, peer.concurrency // 4))
    again = measure_likelihood(
        other,
        [asked.documents[at] for at in some],
        vocab_size=asked.vocab_size,
        shorten=False,
        top_k=here.top_k,
    )
    if not again.top:
        return None
    first = replace(here, documents=tuple(here.documents[at] for at in some))
    return served_distances(replace(first, documents=again.top), first)
