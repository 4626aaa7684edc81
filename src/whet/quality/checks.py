"""The gate's checks beside likelihoods and tasks, against the results of earlier variants."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from whet.checkpoint.thinking import Thinking
from whet.core.errors import StorageError, UsageError
from whet.core.protocols import Dialect, Observer, Progress
from whet.core.records.quality import QualityRecord
from whet.core.records.quality_checks import LosslessCheck, ServerDistances, TokenIdentity
from whet.core.spec import QualitySpec
from whet.core.store import write_json
from whet.quality.asking import ModelEndpoint
from whet.quality.continuations import Prompts, Sampling
from whet.quality.data import Encoder, Ids, Task, load_documents
from whet.quality.distances import (
    TopLogprobs,
    read_top_logprobs,
    server_distances,
    write_top_logprobs,
)
from whet.quality.golden import (
    LONGEST_CUT,
    Probe,
    choose_probes,
    entropies_of,
    read_golden,
    take_golden,
)
from whet.quality.identity import token_identity
from whet.quality.likelihood import Likelihood, measure_likelihood
from whet.quality.lossless import PlainReference, check_lossless, plain_reference

_REPEATED: Final = 12
"""Documents scored twice by the first variant of some weights, for the effect of batching."""
_TEXTS: Final = 16
_CHATS: Final = 4
ROUNDING_NATS: Final = 2e-5
"""Mean KL allowed between the same weights with the same kernels in other batches."""
OTHER_KERNELS_NATS: Final = 1e-4
"""The same with other kernels. On an H100 with 4-bit weights of 7B: 1e-5 between two compilations
of one configuration, 2.1e-5 between Marlin and Machete.
"""
_TIMES_REPEAT: Final = 4.0
_TIMES_MEAN: Final = 50.0
"""Allowed KL of one document, in limits of the mean. Of 43 sound servers of 7B on an H100 the worst
of 60 documents reached one such limit."""
_GREEDY_TOKENS: Final = 48
_SAMPLING: Final = Sampling(samples=8, tokens=16)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChecksPlan:
    """The checks beside likelihoods and tasks, and the earlier results to compare with.

    ``golden`` is a folder of the run, with one file per variant; None asks no golden probes. They
    are of the held-out text of the gate, or of ``golden_text`` where that may not be deployed.
    ``same_weights_reference`` is the record of the first variant with the same weights, None for
    that one itself. ``plain`` are the answers of a server without speculation and with the same
    weights, for a speculating variant; ``is_plain`` asks this variant for them. ``other_kernels``
    says that it may run on other kernels than the reference; ``rounds`` that activations are
    rounded to 8 bits.
    """

    golden: Path | None
    same_weights_reference: QualityRecord | None
    plain: PlainReference | None
    is_plain: bool
    golden_text: Path | None = None
    other_kernels: bool = False
    rounds: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityPlan:
    """One variant's measurement on files that are the same for all variants.

    ``tokenizer`` is the folder whose chat template and vocabulary make every prompt; ``baseline``
    is the record to pair with, None if this variant is the baseline. ``tolerances`` are shares of
    perplexity regression (0.01 is 1 %). ``arrays`` is the folder of the likeliest tokens, one file
    per variant; without it no distances are measured, without ``checks`` only likelihoods and tasks
    beside them. ``scoring_defect`` describes a known defect of this server's scores; it is named
    beside scores that fail and excuses none. ``counter_names`` are the engine's own and those of
    ``core.counters``; ``dialect`` is the engine's too. ``built_in_text`` says that ``heldout`` is
    whet's own text.
    """

    variant: str
    tokenizer: Path
    spec: QualitySpec
    heldout: Path
    tasks: Path
    baseline: QualityRecord | None
    tolerances: Sequence[float]
    arrays: Path | None = None
    checks: ChecksPlan | None = None
    scoring_defect: str | None = None
    counter_names: tuple[tuple[str, str], ...] = ()
    dialect: Dialect | None = None
    built_in_text: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Questions:
    """The text and tasks, the same for every variant.

    ``thinking`` says of each task how the model reasons first.
    """

    tasks: Sequence[Task]
    prompts: Sequence[Ids]
    documents: Sequence[Ids]
    encoder: Encoder
    data_sha256: str
    thinking: Sequence[Thinking | None]


@dataclass(kw_only=True, slots=True)
class Checks:
    """The checks of one variant, and their results: ``broken`` lists defects, ``missing`` gaps.

    ``no_golden`` says why there are no golden probes; it changes no verdict.
    """

    endpoint: ModelEndpoint
    plan: QualityPlan
    questions: Questions
    observer: Observer
    distances: ServerDistances | None = None
    same_weights_reference: str | None = None
    same_weights_distances: ServerDistances | None = None
    identity: TokenIdentity | None = None
    lossless: LosslessCheck | None = None
    plain: PlainReference | None = None
    broken: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    no_golden: str | None = None
    scores_differ: bool = False
    parts: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, part: str) -> Iterator[Progress]:
        """Add the seconds of the block to ``part``, and yield what takes its progress."""
        started = time.monotonic()
        progress = partial(self.observer.progress, f"{self.plan.variant} {part}")
        progress(0, 1)
        try:
            yield progress
        finally:
            self.parts[part] = self.parts.get(part, 0.0) + time.monotonic() - started

    def run(self, likelihood: Likelihood) -> None:
        """Run the checks of the plan; ``likelihood`` is what the server said of the documents."""
        with self.timed("distances"):
            self._measure_distances(likelihood)
        checks, spec = self.plan.checks, self.plan.spec
        if checks is None:
            return
        with self.timed("tokens"):
            self._check_identity()
        with self.timed("distances"):
            self._check_same_weights(checks, likelihood)
        if spec.lossless_prompts and (checks.is_plain or checks.plain is not None):
            with self.timed("speculation"):
                self._check_speculation(checks)
        if checks.golden is not None and spec.golden_probes and likelihood.nll:
            with self.timed("golden"):
                self._save_golden(checks.golden, likelihood)

    def _measure_distances(self, likelihood: Likelihood) -> None:
        """Store the likeliest tokens, and measure the distances from the baseline."""
        arrays, baseline = self.plan.arrays, self.plan.baseline
        if arrays is None or likelihood.missing or likelihood.broken:
            return
        if not likelihood.top:
            self.missing += filter(None, (likelihood.top_missing,))
            return
        here = self._arrays(likelihood)
        write_top_logprobs(arrays / f"{self.plan.variant}.npz", here)
        if baseline is not None:
            self.distances = self._distances_from(arrays, baseline, here)

    def _check_identity(self) -> None:
        """Compare how the server reads and writes tokens with the baseline's tokenizer.

        If the baseline's own server differs, the comparison says nothing about a variant.
        """
        plan, tasks = self.plan, self.questions.tasks
        before = plan.baseline.identity if plan.baseline is not None else None
        if before is not None and before.problems:
            return
        chats = (task.plain for task in tasks if task.messages and not task.chat_template_kwargs)
        self.identity = token_identity(
            self.endpoint.url,
            self.endpoint.model,
            plan.tokenizer,
            [task.question for task in tasks[:_TEXTS]],
            chats=list(islice(chats, _CHATS)),
            variables=self.questions.encoder.variables,
        )
        if plan.baseline is None:
            return
        self.broken += self.identity.problems[:1]
        if self.identity.missing is not None and (before is None or before.missing is None):
            self.missing.append(self.identity.missing)

    def _check_same_weights(self, checks: ChecksPlan, likelihood: Likelihood) -> None:
        """Distances from the first variant that served the same weights."""
        reference = checks.same_weights_reference
        if self.plan.arrays is None or not likelihood.top:
            return
        here = self._arrays(likelihood)
        if reference is None:
            self.same_weights_reference = self.plan.variant
            self.same_weights_distances = self._repeated(here)
            return
        self.same_weights_reference = reference.variant
        distances = self._distances_from(self.plan.arrays, reference, here)
        self.same_weights_distances = distances
        if distances is not None:
            problem = same_weights_problem(
                distances, reference, other_kernels=checks.other_kernels, rounds=checks.rounds
            )
            self.broken += [] if problem is None else [problem]
            self.scores_differ = problem is not None

    def _repeated(self, here: TopLogprobs) -> ServerDistances | None:
        """Score some documents again in other batches and in reverse order."""
        count = min(_REPEATED, len(here.documents))
        some = [at * len(here.documents) // count for at in range(count)][::-1]
        concurrency = max(1, self.endpoint.concurrency // 4)
        again = measure_likelihood(
            replace(self.endpoint, concurrency=concurrency),
            [self.questions.documents[at] for at in some],
            vocab_size=self.questions.encoder.vocab_size,
            top_k=here.top_k,
        )
        if not again.top:
            return None
        first = replace(here, documents=tuple(here.documents[at] for at in some))
        return server_distances(replace(first, documents=again.top), first)

    def _check_speculation(self, checks: ChecksPlan) -> None:
        """Compare a speculating variant with the plain one, or store a plain one's answers."""
        spec = self.plan.spec
        prompts = _continuation_prompts(self.questions, spec.lossless_prompts)
        if checks.is_plain:
            sampling = _SAMPLING if spec.sampled else None
            self.plain = plain_reference(self.endpoint, prompts, _GREEDY_TOKENS, sampling)
        if checks.plain is None:
            return
        self.lossless = check_lossless(self.endpoint, checks.plain, prompts)
        reasons = [f"speculation: {reason}" for reason in self.lossless.reasons]
        if self.lossless.verdict == "fail":
            self.broken += reasons
        elif self.lossless.verdict == "unknown":
            self.missing += reasons

    def _save_golden(self, folder: Path, likelihood: Likelihood) -> None:
        """Store golden probes of this deployment for a monitor.

        The baseline's probes are chosen once, and every variant is asked the same.
        """
        plan = self.plan
        try:
            if plan.baseline is None:
                probes = self._choose_probes(likelihood)
            else:
                first = read_golden(folder / f"{plan.baseline.variant}.json")
                probes = [(probe.id, probe.prompt) for probe in first.probes]
            taken = take_golden(self.endpoint, probes, plan.variant)
        except (StorageError, UsageError, ValueError) as error:
            self.no_golden = str(error)
            return
        self.no_golden = taken.missing
        if taken.broken is not None:
            self.broken.append(taken.broken)
        if taken.probes:
            write_json(folder / f"{plan.variant}.json", taken)

    def _choose_probes(self, likelihood: Likelihood) -> list[Probe]:
        """Choose prefixes of the held-out text, or of another text as long as that at most."""
        plan, documents = self.plan, self.questions.documents
        text = plan.checks.golden_text if plan.checks else None
        if text is not None:
            encoder = self.questions.encoder
            longest = min(LONGEST_CUT + 1, max(map(len, documents)))
            other = load_documents(text, plan.spec.golden_probes)
            documents = [encoder.document(document)[:longest] for document in other]
            size, top = encoder.vocab_size, plan.spec.top_logprobs
            likelihood = measure_likelihood(self.endpoint, documents, vocab_size=size, top_k=top)
        unsure = [entropies_of(document) for document in likelihood.top] or None
        return choose_probes(documents, plan.spec.golden_probes, entropies=unsure)

    def _arrays(self, likelihood: Likelihood) -> TopLogprobs:
        return TopLogprobs(
            # fewer than requested with a small vocabulary
            top_k=likelihood.top[0].ids.shape[1] - 1,
            data_sha256=self.questions.data_sha256,
            documents=likelihood.top,
        )

    def _distances_from(
        self, arrays: Path, other: QualityRecord, here: TopLogprobs
    ) -> ServerDistances | None:
        """Return the distances from an earlier variant, or None and record why they are missing."""
        try:
            there = read_top_logprobs(arrays / f"{other.variant}.npz", here.data_sha256)
            return server_distances(here, there)
        except (StorageError, UsageError, ValueError) as error:
            self.missing.append(f"no distances from {other.variant}: {error}")
            return None


def same_weights_problem(
    distances: ServerDistances,
    reference: QualityRecord,
    *,
    other_kernels: bool = False,
    rounds: bool = False,
) -> str | None:
    """Return why predictions on the same weights differ by more than rounding, or None.

    Speculation, caching and batching change only the order of additions. The first variant is
    scored twice, which measures that effect. A KL whose interval is wholly above four times it,
    and above 0.00002 nats (0.0001 with ``other_kernels``), is a fault: other weights or a broken
    kernel.

    Where other kernels round activations to 8 bits (``rounds``), the last bit of an input moves
    some by a whole step. Two independent roundings differ by twice the effect of one, which is at
    most the reference's distance from the 16-bit model: the limit is twice that distance.

    A single document fifty times above the limit is a fault too: noise in one text of many hardly
    moves a mean.
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
        difference = f"mean KL {kl.value:.2g} [{kl.low:.2g}, {kl.high:.2g}] nats a token"
    elif far:
        difference = f"KL up to {max(far):.2g} nats a token in {len(far)} of {len(each)} documents"
    else:
        return None
    return (
        f"predictions differ from those of {reference.variant}, which serves the same weights: "
        f"{difference}, and rounding makes at most {limit:.2g} in the mean; a layer, a "
        "scale or a kernel is wrong"
    )


def _continuation_prompts(questions: Questions, count: int) -> Prompts:
    """Return prompts to continue by name: tasks, and openings of held-out documents, after which
    sampled text has a choice and can show a difference."""
    openings = {
        f"document {number}": ids[: max(2, len(ids) // 3)]
        for number, ids in enumerate(questions.documents[: count // 2], start=1)
    }
    tasks = zip(questions.tasks, questions.prompts, strict=True)
    named = {task.id: ids for task, ids in islice(tasks, count - len(openings))}
    return named | openings
