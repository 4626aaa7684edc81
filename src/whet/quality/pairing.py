"""A variant's figures in pairs with a baseline's, measured now or stored by another run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from whet.core.records.quality import QualityRecord
from whet.core.records.summary import Estimate
from whet.quality.answers import score_tasks, tasks_at_chance
from whet.quality.likelihood import Nll
from whet.quality.perplexity import broken_documents, perplexity_ratio
from whet.quality.verdicts import Findings, verdicts


def rejudge(
    record: QualityRecord, baseline: QualityRecord, tolerances: Sequence[float]
) -> QualityRecord:
    """Return ``record`` judged against another run's record of the same questions.

    Ratio, task scores, verdicts and reason are those of the gate with ``baseline`` in the place of
    the run's own. Only the stored figures are compared: the other checks of a running server
    (tokens, speculation) are in the verdicts that the record was stored with. A task counts as at
    chance level where the baseline has no right answer.
    """
    ratio, unpaired = paired_ratio(record.nll, baseline, record.data_sha256, record.sources)
    paired = baseline if baseline.data_sha256 == record.data_sha256 else None
    scores = score_tasks(record.answers, paired)
    broken = broken_document(record.nll, paired)
    findings = Findings(
        ratio=ratio,
        tasks=scores,
        answers=record.answers,
        baseline=paired,
        at_chance=tasks_at_chance((), baseline.answers),
        broken=() if broken is None else (broken,),
        missing=() if unpaired is None else (unpaired,),
    )
    judged, reason = verdicts(findings, tolerances)
    return replace(
        record,
        baseline=baseline.variant,
        perplexity_ratio=ratio,
        tasks=scores,
        verdicts=judged,
        reason=reason,
    )


def paired_ratio(
    nll: Sequence[Nll],
    baseline: QualityRecord,
    data_sha256: str | None,
    sources: Sequence[int],
) -> tuple[Estimate | None, str | None]:
    """Return the perplexity ratio, or None and the reason.

    ``sources`` as in ``perplexity``; empty where each document is a source of its own.
    """
    if baseline.data_sha256 != data_sha256:
        return None, (
            "the baseline was measured on other text, tasks or token ids; measure it again with "
            "these files and this tokenizer"
        )
    if not nll:
        return None, None
    if not baseline.nll:
        return None, "the baseline has no perplexity to compare with"
    if [tokens for _, tokens in nll] != [tokens for _, tokens in baseline.nll]:
        return (
            None,
            "the documents have different token counts than on the baseline; measure it again",
        )
    return perplexity_ratio(nll, baseline.nll, sources or None), None


def broken_document(nll: Sequence[Nll], baseline: QualityRecord | None) -> str | None:
    """Return a sentence for documents whose own loss is far from the baseline's, or None."""
    if baseline is None or [pair[1] for pair in nll] != [pair[1] for pair in baseline.nll]:
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
