"""Measure one variant's quality, from a running server to a record with verdicts."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from whet.core.errors import UsageError
from whet.core.protocols import Observer, Silent
from whet.core.records.quality import QualityRecord, TaskAnswer
from whet.core.records.summary import Estimate
from whet.core.spec import QualitySpec
from whet.quality.answers import answer_tasks, find_examples, score_tasks, tasks_at_chance
from whet.quality.asking import ModelEndpoint
from whet.quality.checks import Checks, QualityPlan, Questions
from whet.quality.data import Encoder, Ids, Task, identity, load_documents, load_tasks
from whet.quality.likelihood import Likelihood, measure_likelihood
from whet.quality.lossless import PlainReference
from whet.quality.statistics import Nll, broken_documents, perplexity, perplexity_ratio
from whet.quality.verdicts import Findings, verdicts

_KWARGS = "quality.chat_template_kwargs"


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A variant's record, and its answers for comparison with speculating variants."""

    record: QualityRecord
    plain: PlainReference | None


def measure_quality(
    server_url: str, model: str, plan: QualityPlan, *, observer: Observer | None = None
) -> Measured:
    """Measure likelihoods and answers of the server at ``server_url``, and judge them.

    Without ``plan.baseline`` the variant is the baseline: its ratio is 1 by definition. A server
    that fails leaves figures None and verdicts unknown with the reason. Raises ``UsageError`` for
    unusable data files and ``CheckpointError`` for an unreadable tokenizer.
    """
    started = time.monotonic()
    questions = _questions(plan)
    endpoint = ModelEndpoint(
        url=server_url,
        model=model,
        concurrency=plan.spec.concurrency,
        counter_names=plan.counter_names,
        dialect=plan.dialect,
    )
    checks = Checks(
        endpoint=endpoint, plan=plan, questions=questions, observer=observer or Silent()
    )
    with checks.timed("likelihood") as progress:
        likelihood = measure_likelihood(
            endpoint,
            questions.documents,
            vocab_size=questions.encoder.vocab_size,
            top_k=plan.spec.top_logprobs if plan.arrays else 0,
            progress=progress,
        )
    with checks.timed("tasks") as progress:
        answers, unanswered = answer_tasks(
            endpoint,
            questions.tasks,
            questions.prompts,
            thinking=questions.thinking,
            progress=progress,
        )
    checks.missing += [unanswered] if unanswered else []
    checks.run(likelihood)
    record = replace(_record(checks, likelihood, answers), seconds=time.monotonic() - started)
    return Measured(record=record, plain=checks.plain)


def _questions(plan: QualityPlan) -> Questions:
    encoder = Encoder(plan.tokenizer, plan.spec.chat_template_kwargs)
    tasks = load_tasks(plan.tasks, plan.spec.max_tasks, chats=encoder.chats)
    prompts = [encoder.task(task) for task in tasks]
    documents = encode_documents(plan.heldout, encoder, plan.spec)
    return Questions(
        tasks=tasks,
        prompts=prompts,
        thinking=[encoder.thinking(task, plan.spec.thinking_tokens) for task in tasks],
        encoder=encoder,
        documents=documents,
        data_sha256=identity(documents, prompts, tasks),
    )


def tokens_needed(plan: QualityPlan) -> int:
    """Return the longest sequence, prompt and reply, that ``measure_quality`` requests."""
    every = _questions(plan)
    tasks = zip(every.tasks, every.prompts, every.thinking, strict=True)
    lengths = [len(ids) + t.max_tokens + (how.tokens if how else 0) for t, ids, how in tasks]
    return max([*lengths, *(len(ids) + 1 for ids in every.documents)])


def encode_documents(path: Path, encoder: Encoder, spec: QualitySpec) -> list[Ids]:
    """Return the held-out documents as token ids, cut to leave room for the one token asked for.

    Raises ``UsageError`` where the file cannot be used, and where nothing would be predicted.
    """
    documents = load_documents(path, spec.max_documents)
    encoded = [encoder.document(document)[: spec.max_tokens - 1] for document in documents]
    if scorable := [ids for ids in encoded if len(ids) >= 2]:
        return scorable
    raise UsageError(
        f"{path} holds no document of two tokens or more within quality.max_tokens = "
        f"{spec.max_tokens}",
        fix="give longer text or raise it",
    )


def _record(
    results: Checks, likelihood: Likelihood, answers: tuple[TaskAnswer, ...]
) -> QualityRecord:
    """The record with the gate's verdict on it."""
    plan, questions = results.plan, results.questions
    measured = QualityRecord(
        variant=plan.variant,
        baseline=plan.variant if plan.baseline is None else plan.baseline.variant,
        perplexity=perplexity(likelihood.nll) if likelihood.nll else None,
        perplexity_ratio=None,
        nll=likelihood.nll,
        tasks=(),
        answers=answers,
        examples=(),
        verdicts=(),
        reason=None,
        seconds=0.0,
        data_sha256=questions.data_sha256,
        distances=results.distances,
        twin=results.same_weights_reference,
        twin_distances=results.same_weights_distances,
        identity=results.identity,
        lossless=results.lossless,
        parts=tuple(results.parts.items()),
        built_in_text=plan.built_in_text,
    )
    findings = _findings(
        measured,
        plan.baseline,
        questions.tasks,
        broken=(likelihood.broken, *results.broken),
        missing=(likelihood.missing, *results.missing),
    )
    judged = _judged(measured, findings, plan.tolerances)
    ratio = findings.ratio
    too_far = ratio is not None and ratio.value >= 1 + min(plan.tolerances, default=math.inf)
    scores_fail = (
        likelihood.broken
        or broken_document(likelihood.nll, findings.baseline)
        or results.scores_differ
        or too_far
    )
    off = ", ".join(f"{name}: false" for name in questions.encoder.thinking_off)
    notes = (
        judged.reason,
        plan.scoring_defect if scores_fail else None,
        None if results.no_golden is None else f"no golden probes: {results.no_golden}",
        None if questions.tasks else "no task is asked: perplexity alone decides",
        off and f"tasks are answered without thinking ({off}; {_KWARGS} decides it)",
    )
    examples = find_examples(questions.tasks, answers, findings.baseline)
    return replace(judged, reason="; ".join(filter(None, notes)) or None, examples=examples)


def _findings(
    record: QualityRecord,
    baseline: QualityRecord | None,
    tasks: Sequence[Task],
    *,
    broken: Sequence[str | None] = (),
    missing: Sequence[str | None] = (),
) -> Findings:
    """What the gate judges ``record`` by; without ``baseline`` it is the baseline's own."""
    one = Estimate(value=1.0, low=1.0, high=1.0, samples=len(record.nll)) if record.nll else None
    ratio, unpaired = (one, None) if baseline is None else paired_ratio(record, baseline)
    # Answers to other questions are not paired, even under the same ids.
    paired = baseline if baseline and baseline.data_sha256 == record.data_sha256 else None
    return Findings(
        ratio=ratio,
        tasks=score_tasks(record.answers, paired),
        answers=record.answers,
        baseline=paired,
        at_chance=tasks_at_chance(tasks, record.answers if paired is None else paired.answers),
        broken=tuple(filter(None, (broken_document(record.nll, paired), *broken))),
        missing=tuple(filter(None, (unpaired, *missing))),
        name=(paired or record).variant,
    )


def _judged(
    record: QualityRecord, findings: Findings, tolerances: Sequence[float]
) -> QualityRecord:
    judged, reason = verdicts(findings, tolerances)
    return replace(
        record,
        perplexity_ratio=findings.ratio,
        tasks=tuple(findings.tasks),
        verdicts=judged,
        reason=reason,
    )


def rejudge(
    record: QualityRecord, baseline: QualityRecord, tolerances: Sequence[float]
) -> QualityRecord:
    """Return ``record`` judged against another run's record of the same questions.

    Ratio, task scores, verdicts and reason are those of the gate with ``baseline`` in the place of
    the run's own. Only the stored figures are compared: the other checks of a running server
    (tokens, speculation) are in the verdicts that the record was stored with. A task counts as at
    chance level where the baseline has no right answer.
    """
    findings = _findings(record, baseline, ())
    return _judged(replace(record, baseline=baseline.variant), findings, tolerances)


def paired_ratio(
    record: QualityRecord, baseline: QualityRecord
) -> tuple[Estimate | None, str | None]:
    """Return the perplexity ratio, or None and the reason."""
    reason = None
    if baseline.data_sha256 != record.data_sha256:
        reason = (
            "the baseline was measured on other text, tasks or token ids; measure it again with "
            "these files and this tokenizer"
        )
    elif record.nll and not baseline.nll:
        reason = "the baseline has no perplexity to compare with"
    elif record.nll and not _same_tokens(record.nll, baseline.nll):
        reason = "the documents have different token counts than on the baseline; measure it again"
    elif record.nll:
        return perplexity_ratio(record.nll, baseline.nll), None
    return None, reason


def _same_tokens(nll: Sequence[Nll], baseline: Sequence[Nll]) -> bool:
    return [tokens for _, tokens in nll] == [tokens for _, tokens in baseline]


def broken_document(nll: Sequence[Nll], baseline: QualityRecord | None) -> str | None:
    """Return a sentence for documents whose own loss is far from the baseline's, or None."""
    if baseline is None or not _same_tokens(nll, baseline.nll):
        return None
    changes = broken_documents(nll, baseline.nll)
    if not changes:
        return None
    worst = max(changes, key=abs)
    return (
        f"the loss of {len(changes)} of {len(nll)} held-out documents changes by up to "
        f"{worst:+.2f} nats per token against the baseline, while that of the others does not: "
        "the server scores some texts wrongly"
    )
