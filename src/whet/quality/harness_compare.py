"""Compare two lm-eval runs sample by sample: which metric fell, and what loss is detectable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from whet.core.records import HarnessExample, HarnessRun, HarnessSample, HarnessScore
from whet.quality.paired import (
    SIGNIFICANCE,
    compare_pairs,
    holm,
    mean_estimate,
    share_difference,
    student,
    yes_or_no,
)

_EXAMPLES: Final = 5
_Key = tuple[str, str, int, str, str]
_Pair = tuple[HarnessSample, HarnessSample]


def compare_harness(run: HarnessRun, baseline: HarnessRun) -> tuple[HarnessScore, ...]:
    """Compare every metric of every task, in pairs by document and by the prompt as sent.

    A group is one score over all its members' samples, because small tasks detect little. Samples
    whose document or prompt differs between the runs (other few-shot examples, another template)
    are not paired. A task that either side lacks has a score with ``missing``: it does not pass.
    """
    names = dict.fromkeys(task.asked for side in (run, baseline) for task in side.tasks)
    return tuple(score for name in names for score in _task(name, run, baseline))


def harness_losses(scores: Sequence[HarnessScore]) -> tuple[str, ...]:
    """Return a sentence per metric that fell: p < 0.05 after Holm's correction over all."""
    tested = [score for score in scores if score.p_value is not None]
    adjusted = holm([score.p_value for score in tested if score.p_value is not None])
    return tuple(
        f"{score.task} {score.metric}: {_fall(score)} (p {p:.2g} after Holm)"
        for score, p in zip(tested, adjusted, strict=True)
        if p < SIGNIFICANCE and _fell(score)
    )


def _fall(score: HarnessScore) -> str:
    if score.graded and score.difference is not None:
        return f"{score.difference.value:+.4f} on average against the baseline"
    return f"{score.lost} answers lost and {score.gained} gained against the baseline"


def _fell(score: HarnessScore) -> bool:
    if score.difference is None:
        return False
    return (score.difference.value < 0) == score.higher_is_better and score.difference.value != 0


def _task(name: str, run: HarnessRun, baseline: HarnessRun) -> Iterator[HarnessScore]:
    missing = _missing(name, baseline, "the baseline") or _missing(name, run, "this variant")
    if missing is None and run.max_length != baseline.max_length:
        missing = "prompts may be cut at different lengths; give both the same max_length"
    here, there = _samples(name, run), _samples(name, baseline)
    pairs = [(here[key], there[key]) for key in here if key in there]
    metrics = dict.fromkeys((one.filter, metric) for one, _ in pairs for metric, _ in one.metrics)
    if missing is None and not pairs:
        missing = "both sides have no document with the same prompt; use one plan for both"
    elif missing is None and not metrics:
        missing = "none of its metrics is one number per document, so none can be paired"
    if missing is not None:
        yield HarnessScore(task=name, missing=missing)
        return
    directions = _directions(name, run)
    for kind, metric in metrics:
        blank = HarnessScore(
            task=name,
            metric=metric,
            filter=kind,
            higher_is_better=directions.get((metric, kind), True),
            unpaired=len(here) + len(there) - 2 * len(pairs),
        )
        yield _score([pair for pair in pairs if pair[0].filter == kind], blank)


def _missing(name: str, run: HarnessRun, side: str) -> str | None:
    """Return why a side has no figures of a task, or None."""
    own = [task for task in run.tasks if task.asked == name]
    if not own:
        return f"{side} was not asked it"
    reason = next((task.missing for task in own if task.missing is not None), None)
    if reason is not None:
        return f"{side} has no figures: {reason}"
    broken = sum(task.broken for task in own if not task.members)
    return f"{side} has {broken} samples with a likelihood that is not a number" if broken else None


def _samples(name: str, run: HarnessRun) -> dict[_Key, HarnessSample]:
    tasks = {task.task for task in run.tasks if task.asked == name and not task.members}
    return {
        (one.task, one.filter, one.doc_id, one.doc_hash, one.prompt_hash): one
        for one in run.samples
        if one.task in tasks
    }


def _directions(name: str, run: HarnessRun) -> Mapping[tuple[str, str], bool]:
    return {
        (metric.name, metric.filter): metric.higher_is_better
        for task in run.tasks
        if task.asked == name
        for metric in task.metrics
        if metric.higher_is_better is not None
    }


def _score(pairs: Sequence[_Pair], blank: HarnessScore) -> HarnessScore:
    """Return ``blank`` with the figures of the pairs that both have its metric."""
    valued = [
        (*pair, dict(pair[0].metrics)[blank.metric], dict(pair[1].metrics)[blank.metric])
        for pair in pairs
        if all(blank.metric in dict(side.metrics) for side in pair)
    ]
    if not valued:
        return replace(blank, missing="the baseline's samples lack this metric")
    now, before = [row[2] for row in valued], [row[3] for row in valued]
    differences = [a - b for a, b in zip(now, before, strict=True)]
    gains = differences if blank.higher_is_better else [-each for each in differences]
    by_grade = not yes_or_no([*now, *before])
    test = compare_pairs(gains, by_grade=by_grade)
    return replace(
        blank,
        graded=by_grade,
        pairs=len(valued),
        score=mean_estimate(now),
        baseline_score=mean_estimate(before),
        difference=student(differences)
        if by_grade
        else share_difference([(b > 0, a > 0) for a, b in zip(now, before, strict=True)]),
        lost=test.lost,
        gained=test.gained,
        p_value=test.p_value,
        detectable_drop=test.detectable_drop,
        examples=_examples([(gain, *row[:2]) for gain, row in zip(gains, valued, strict=True)]),
    )


def _examples(
    rows: Sequence[tuple[float, HarnessSample, HarnessSample]],
) -> tuple[HarnessExample, ...]:
    """Return the samples that fell furthest; equal falls stay in document order."""
    fallen = sorted((row for row in rows if row[0] < 0), key=lambda row: row[0])
    return tuple(
        HarnessExample(
            task=here.task,
            doc_id=here.doc_id,
            prompt_end=here.prompt_end,
            target=here.target,
            baseline=there.response,
            answer=here.response,
        )
        for _, here, there in fallen[:_EXAMPLES]
    )
