"""Two variants' harness samples in pairs: which metric fell, and what the set could have seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from whet.core.records import HarnessExample, HarnessRun, HarnessSample, HarnessScore
from whet.quality.paired import (
    SIGNIFICANCE,
    detectable_drop,
    detectable_mean_drop,
    holm,
    mcnemar,
    mean_estimate,
    share_difference,
    sign_flip,
    student,
    worse_and_better,
    yes_or_no,
)

_EXAMPLES: Final = 5
_Key = tuple[str, str, int, str, str]
_Pair = tuple[HarnessSample, HarnessSample]


def compare_harness(run: HarnessRun, baseline: HarnessRun) -> tuple[HarnessScore, ...]:
    """Every metric of every asked task, in pairs by document and by the prompt as sent.

    A group is one score over all its members' samples: 57 small subjects each see little. Samples
    whose document or prompt differs between the runs (other few-shot examples, another template)
    are not paired. A task that either side lacks has a ``missing`` score, which is no pass.
    """
    return tuple(score for asked in _asked(run, baseline) for score in _task(asked, run, baseline))


def harness_losses(scores: Sequence[HarnessScore]) -> tuple[str, ...]:
    """A sentence for each metric that fell: p < 0.05 after Holm's correction over all of them."""
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


def _asked(*runs: HarnessRun) -> Iterator[str]:
    return iter(dict.fromkeys(task.asked for run in runs for task in run.tasks))


def _task(asked: str, run: HarnessRun, baseline: HarnessRun) -> Iterator[HarnessScore]:
    for side, name in ((baseline, "the baseline"), (run, "this variant")):
        missing = _why_not(asked, side, name)
        if missing is not None:
            yield _gap(asked, missing)
            return
    if run.max_length != baseline.max_length:
        yield _gap(asked, "prompts may be cut at different lengths; give both the same max_length")
        return
    here, there = _samples(asked, run), _samples(asked, baseline)
    pairs = [(here[key], there[key]) for key in here if key in there]
    unpaired = len(here) + len(there) - 2 * len(pairs)
    directions = _directions(asked, run)
    for kind, metric in dict.fromkeys(
        (sample.filter, name) for sample, _ in pairs for name, _ in sample.metrics
    ):
        yield _score(
            [pair for pair in pairs if pair[0].filter == kind],
            HarnessScore(
                task=asked,
                metric=metric,
                filter=kind,
                graded=False,
                higher_is_better=directions.get((metric, kind), True),
                pairs=0,
                unpaired=unpaired,
            ),
        )
    if not pairs:
        yield _gap(asked, "no document was asked of both in the same words; use one plan for both")
    elif not any(sample.metrics for sample, _ in pairs):
        yield _gap(asked, "none of its metrics is one number a document, so none can be paired")


def _why_not(asked: str, run: HarnessRun, name: str) -> str | None:
    own = [task for task in run.tasks if task.asked == asked]
    if not own:
        return f"{name} was not asked it"
    reason = next((task.missing for task in own if task.missing is not None), None)
    if reason is not None:
        return f"{name} has no figures: {reason}"
    broken = sum(task.broken for task in own if not task.members)
    return f"{name} has {broken} samples with a likelihood that is not a number" if broken else None


def _gap(asked: str, missing: str) -> HarnessScore:
    return HarnessScore(
        task=asked,
        metric="",
        filter="",
        graded=False,
        higher_is_better=True,
        pairs=0,
        unpaired=0,
        missing=missing,
    )


def _samples(asked: str, run: HarnessRun) -> dict[_Key, HarnessSample]:
    tasks = {task.task for task in run.tasks if task.asked == asked and not task.members}
    return {
        (one.task, one.filter, one.doc_id, one.doc_hash, one.prompt_hash): one
        for one in run.samples
        if one.task in tasks
    }


def _directions(asked: str, run: HarnessRun) -> Mapping[tuple[str, str], bool]:
    return {
        (metric.name, metric.filter): metric.higher_is_better
        for task in run.tasks
        if task.asked == asked
        for metric in task.metrics
        if metric.higher_is_better is not None
    }


def _score(pairs: Sequence[_Pair], blank: HarnessScore) -> HarnessScore:
    """``blank`` with the figures of the pairs that both hold its metric."""
    valued = [
        (*pair, dict(pair[0].metrics)[blank.metric], dict(pair[1].metrics)[blank.metric])
        for pair in pairs
        if all(blank.metric in dict(side.metrics) for side in pair)
    ]
    if not valued:
        return replace(blank, missing="the baseline's samples lack this metric")
    now, before = [row[2] for row in valued], [row[3] for row in valued]
    sign = 1 if blank.higher_is_better else -1
    gains = [sign * (a - b) for a, b in zip(now, before, strict=True)]
    lost, gained = worse_and_better(gains)
    graded = not yes_or_no([*now, *before])
    differences = [a - b for a, b in zip(now, before, strict=True)]
    return replace(
        blank,
        graded=graded,
        pairs=len(valued),
        score=mean_estimate(now),
        baseline_score=mean_estimate(before),
        difference=student(differences)
        if graded
        else share_difference([(b > 0, a > 0) for a, b in zip(now, before, strict=True)]),
        lost=lost,
        gained=gained,
        p_value=sign_flip(gains) if graded else mcnemar(lost, gained),
        detectable_drop=detectable_mean_drop(gains)
        if graded
        else detectable_drop(len(valued), gained / len(valued)),
        examples=_examples(
            [(gain, row[0], row[1]) for gain, row in zip(gains, valued, strict=True)]
        ),
    )


def _examples(
    rows: Sequence[tuple[float, HarnessSample, HarnessSample]],
) -> tuple[HarnessExample, ...]:
    """The samples that fell furthest, in the order of the documents where they fell alike."""
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
