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
from whet.quality.asking import ModelEndpoint
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
class Questions:
    """The questions, the same for every variant."""

    tasks: Sequence[Task]
    prompts: Sequence[Ids]
    documents: Sequence[Ids]
    vocab_size: int
    data_sha256: str


@dataclass(kw_only=True, slots=True)
class CheckResults:
    """The results of all checks: ``broken`` lists defects that fail, ``missing`` gaps.

    ``no_golden`` says why there are no golden probes, which changes no verdict.
    """

    distances: ServedDistances | None = None
    same_weights_reference: str | None = None
    same_weights_distances: ServedDistances | None = None
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
class GivenAnswers:
    """The server's answers to the questions that every variant gets."""

    likelihood: Likelihood
    free: Sequence[TaskAnswer]


def run_checks(
    endpoint: ModelEndpoint,
    plan: QualityPlan,
    questions: Questions,
    given: GivenAnswers,
    results: CheckResults,
) -> None:
    """Ask all that ``plan.checks`` and ``plan.spec`` want, and add it to ``results``."""
    with results.timed("tokens"):
        _check_identity(endpoint, plan, questions, results)
    with results.timed("distances"):
        _check_distances(endpoint, plan, questions, given.likelihood, results)
    if plan.spec.structured:
        with results.timed("structured"):
            results.structured = measure_structured(
                endpoint, questions.tasks, questions.prompts, given.free
            )
    with results.timed("speculation"):
        _check_speculation(endpoint, plan, questions, results)
    with results.timed("golden"):
        _keep_golden(endpoint, plan, questions, given.likelihood, results)


def _check_identity(
    endpoint: ModelEndpoint, plan: QualityPlan, questions: Questions, results: CheckResults
) -> None:
    """Does the server read and write tokens as the baseline's tokenizer does?

    The baseline is asked too: what differs there is no fault of a variant but of the comparison,
    which then says nothing.
    """
    before = plan.baseline.identity if plan.baseline is not None else None
    if before is not None and before.problems:
        return
    results.identity = served_identity(
        endpoint.url,
        endpoint.model,
        plan.tokenizer,
        [task.messages[-1].content for task in questions.tasks[:_TEXTS]],
        chats=[task.messages for task in questions.tasks[:_CHATS]],
    )
    if plan.baseline is None:
        return
    results.broken += results.identity.problems[:1]
    if results.identity.missing is not None and (before is None or before.missing is None):
        results.missing.append(results.identity.missing)


def _check_distances(
    endpoint: ModelEndpoint,
    plan: QualityPlan,
    questions: Questions,
    likelihood: Likelihood,
    results: CheckResults,
) -> None:
    """Distances from the baseline, and from the first variant that served the same weights."""
    checks = plan.checks
    if checks is None or likelihood.missing or likelihood.broken or not plan.spec.top_logprobs:
        return
    if not likelihood.top:
        if likelihood.top_missing is not None:
            results.missing.append(likelihood.top_missing)
        return
    here = _arrays(questions, likelihood)
    write_top_logprobs(checks.arrays / f"{plan.variant}.npz", here)
    if plan.baseline is not None:
        results.distances = _from(checks, plan.baseline, here, results)
    if checks.same_weights_reference is None:
        results.same_weights_reference = plan.variant
        results.same_weights_distances = _repeated(endpoint, questions, here)
        return
    results.same_weights_reference = checks.same_weights_reference.variant
    results.same_weights_distances = _from(checks, checks.same_weights_reference, here, results)
    if results.same_weights_distances is not None:
        problem = same_weights_problem(
            results.same_weights_distances,
            checks.same_weights_reference,
            other_kernels=checks.other_kernels,
            rounds=checks.rounds,
        )
        results.broken += [] if problem is None else [problem]
        results.scores_differ = problem is not None


def same_weights_problem(
    distances: ServedDistances,
    reference: QualityRecord,
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
    none, and no rounding of activations is worth more than the reference's distance from the 16-bit
    model: the limit is twice that distance.

    A single document fifty times as far as that is a fault too: a server that scores one text of
    many as noise hardly moves a mean, and its interval reaches down to the others.
    """
    repeat = reference.twin_distances
    if repeat is None:
        return None
    noise = repeat.kl.value if repeat.kl.high is None else repeat.kl.high
    limit = max(_TIMES_REPEAT * noise, OTHER_KERNELS_NATS if other_kernels else ROUNDING_NATS)
    if other_kernels and rounds and reference.distances is not None:
        limit = max(limit, 2 * reference.distances.kl.value)
    each = [document.kl / document.tokens for document in distances.documents]
    far = [nats for nats in each if nats > _TIMES_MEAN * limit]
    if distances.kl.low is not None and distances.kl.low > limit:
        kl = distances.kl
        seen = f"mean KL {kl.value:.2g} [{kl.low:.2g}, {kl.high:.2g}] nats a token"
    elif far:
        seen = f"KL up to {max(far):.2g} nats a token in {len(far)} of {len(each)} documents"
    else:
        return None
    return (
        f"predictions differ from those of {reference.variant}, which serves the same weights: "
        f"{seen}, and rounding makes at most {limit:.2g} in the mean; a layer, a scale or a kernel "
        "is not what it should be"
    )


def _check_speculation(
    endpoint: ModelEndpoint, plan: QualityPlan, questions: Questions, results: CheckResults
) -> None:
    """Hold a variant that speculates to the plain one, or keep what a plain one says for that."""
    checks, count = plan.checks, plan.spec.lossless_prompts
    if checks is None or not count:
        return
    prompts, names = _continued(questions, count)
    if checks.is_plain:
        sampling = _SAMPLING if plan.spec.sampled else None
        wanted = LosslessPlan(tokens=_GREEDY_TOKENS, sampling=sampling)
        results.plain = plain_reference(endpoint, prompts, wanted, names=names)
    if checks.plain is None:
        return
    results.lossless = check_lossless(endpoint, checks.plain, prompts, names=names)
    reasons = [f"speculation: {reason}" for reason in results.lossless.reasons]
    if results.lossless.verdict == "fail":
        results.broken += reasons
    elif results.lossless.verdict == "unknown":
        results.missing += reasons


def _continued(questions: Questions, count: int) -> tuple[list[Ids], list[str]]:
    """Prompts that are continued, and their names: tasks, and held-out documents broken off, after
    which much can be said. Sampled text shows a difference only where there is a choice."""
    broken_off = [ids[: max(2, len(ids) // 3)] for ids in questions.documents[: count // 2]]
    tasks = count - len(broken_off)
    names = [task.id for task in questions.tasks[:tasks]]
    names += [f"document {index + 1}" for index in range(len(broken_off))]
    return [*questions.prompts[:tasks], *broken_off], names


def _keep_golden(
    endpoint: ModelEndpoint,
    plan: QualityPlan,
    questions: Questions,
    likelihood: Likelihood,
    results: CheckResults,
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
            probes = choose_probes(questions.documents, count, entropies=unsure)
        else:
            first = read_golden(checks.golden / f"{plan.baseline.variant}.json")
            probes = [(probe.id, probe.prompt) for probe in first.probes]
        taken = take_golden(endpoint, probes, checks.source)
    except (StorageError, UsageError) as error:
        results.no_golden = str(error)
        return
    results.no_golden = taken.missing
    if taken.broken is not None:
        results.broken.append(taken.broken)
    if taken.probes:
        write_golden(checks.golden / f"{plan.variant}.json", taken)


def _arrays(questions: Questions, likelihood: Likelihood) -> TopLogprobs:
    return TopLogprobs(
        top_k=likelihood.top[0].ids.shape[1] - 1,  # a small vocabulary has fewer than were asked
        data_sha256=questions.data_sha256,
        documents=likelihood.top,
    )


def _from(
    checks: ChecksPlan, other: QualityRecord, here: TopLogprobs, results: CheckResults
) -> ServedDistances | None:
    """Distances from a variant that was measured before; a gap where they cannot be formed."""
    try:
        there = read_top_logprobs(checks.arrays / f"{other.variant}.npz", here.data_sha256)
        return served_distances(here, there)
    except (StorageError, UsageError, ValueError) as error:
        results.missing.append(f"no distances from {other.variant}: {error}")
        return None


def _repeated(
    endpoint: ModelEndpoint, questions: Questions, here: TopLogprobs
) -> ServedDistances | None:
    """The server against itself: some documents again, in other batches and the opposite order."""
    count = min(_REPEATED, len(here.documents))
    some = [at * len(here.documents) // count for at in range(count)][::-1]
    other = replace(endpoint, concurrency=max(1, endpoint.concurrency // 4))
    again = measure_likelihood(
        other,
        [questions.documents[at] for at in some],
        vocab_size=questions.vocab_size,
        shorten=False,
        top_k=here.top_k,
    )
    if not again.top:
        return None
    first = replace(here, documents=tuple(here.documents[at] for at in some))
    return served_distances(replace(first, documents=again.top), first)
