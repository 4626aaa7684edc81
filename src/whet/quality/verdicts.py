"""The gate: pass, fail or unknown for each tolerance; unknown counts as not passed.

A run asks it for every variant (``quality.measure``) and excludes those that pass at no tolerance
(``decision.eligible``).

Two rules, both paired with the baseline on the same questions:

- Perplexity is a non-inferiority test over at least 60 documents. *Pass* needs the upper end of
  the ratio's 95 % interval below 1 + tolerance, *fail* its lower end at or above it; otherwise
  the result is inconclusive, which is *unknown*.
- Tasks are a test for loss. A task whose score fell, with a paired p (McNemar's exact, for grades
  a sign-flip permutation test) below 0.05 after Holm's correction over all tests of the variant,
  *fails* every tolerance. So do the right-or-wrong answers of all tasks together, answers that no
  longer end, and degenerate text that the baseline does not write (below 0.01: a model that loops
  by itself does so after other prompts in other batches).

Other defects (other tokens, other predictions on the same weights, speculation that changes
answers) fail every tolerance; a check that could not run leaves it unknown (``checks.py``).

A task that the baseline answers no better than chance is refused: it is named and not tested, and
without another task the verdict is unknown. So it is where over a tenth of the answers on either
side are reasoning that did not end.

A test that finds no loss does not prove its absence: each score has the interval of its difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from whet.core.records.quality import QualityRecord, TaskAnswer, TaskScore
from whet.core.records.quality_checks import GateVerdict
from whet.core.records.summary import Estimate
from whet.quality.degenerate import SILENT_SHARE, degenerate, says_nothing
from whet.quality.statistics import SIGNIFICANCE, holm, mcnemar, worse

MIN_DOCUMENTS: Final = 60
"""With fewer, skewed losses pass wrongly too often (``benchmarks/gate_coverage.py``)."""
_FEWEST_QUESTIONS: Final = 6
"""If all of fewer are lost, McNemar's p is still above 0.05."""
_DEGENERATE: Final = "text that is not degenerate"
_DEGENERATE_SIGNIFICANCE: Final = 0.01
_UNFINISHED_SHARE: Final = 0.1
"""Above this share of answers that are all reasoning, tasks say nothing and the gate is unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """The measurements of one variant, before the verdict.

    A defect in ``broken`` fails every tolerance; a gap in ``missing`` leaves it unknown.
    ``at_chance`` holds (task, reason) of the tasks to refuse, ``name`` whose answers say that.
    """

    ratio: Estimate | None
    tasks: Sequence[TaskScore]
    answers: Sequence[TaskAnswer]
    baseline: QualityRecord | None
    at_chance: tuple[tuple[str, str], ...] = ()
    broken: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    name: str = "the baseline"


def verdicts(
    findings: Findings, tolerances: Sequence[float]
) -> tuple[tuple[tuple[float, GateVerdict], ...], str | None]:
    """Return (tolerance, verdict) pairs, and the reasons in words or None."""
    usable, before = _usable(findings), findings.baseline
    shapes = [] if before is None else _shape_rows(findings.answers, before.answers)
    rows = [*_task_rows(usable), *_pooled_row(usable), *shapes]
    broken = [*findings.broken, *_significant(rows), *_garbage(findings)]
    unfinished, many = _unfinished(findings)
    missing = [*findings.missing, *(unfinished if many else [])]
    if findings.ratio is None and not broken and not missing:
        missing.append("perplexity was not measured")
    if findings.at_chance and not usable and before is not None:
        missing.append("no task shows whether answers are still right")
    judged = [_judge(findings, tolerance) for tolerance in tolerances]
    words: list[GateVerdict] = ["fail"] * len(judged)
    if not broken:
        words = [word if word == "fail" or not missing else "unknown" for word in judged]
    # Tasks too small to detect any loss change no verdict.
    blind = [each.task for each in usable if not each.graded and each.n < _FEWEST_QUESTIONS]
    reasons = [
        *broken,
        *missing,
        *_perplexity(findings, tolerances, judged),
        *_refusal(findings),
        *([f"too few questions to detect a loss in {', '.join(blind)}"] if blind else []),
        *([] if many else unfinished),
    ]
    return tuple(zip(tolerances, words, strict=True)), "; ".join(reasons) or None


def _judge(findings: Findings, tolerance: float) -> GateVerdict:
    """Judge perplexity alone. The baseline passes: others are judged by it."""
    ratio = findings.ratio
    if ratio is None:
        return "unknown"
    if findings.baseline is None:
        return "pass"
    if ratio.samples < MIN_DOCUMENTS:
        return "unknown"
    if ratio.low is not None and ratio.low >= 1 + tolerance:
        return "fail"
    return "pass" if ratio.high is not None and ratio.high < 1 + tolerance else "unknown"


def _perplexity(
    findings: Findings, tolerances: Sequence[float], judged: Sequence[str]
) -> Iterator[str]:
    """Yield a sentence for all failed tolerances, and one for all undecided ones."""
    ratio = findings.ratio
    if ratio is None:
        return
    change = f"perplexity changes by {_percent(ratio.value)}{_interval(ratio)}"
    pairs = list(zip(tolerances, judged, strict=True))
    if failed := [tolerance for tolerance, word in pairs if word == "fail"]:
        yield f"{change}, which is not below {_listed(failed)}"
    if unsure := [tolerance for tolerance, word in pairs if word == "unknown"]:
        if ratio.samples < MIN_DOCUMENTS:
            yield (
                f"{ratio.samples} held-out documents are too few to judge perplexity; give at "
                f"least {MIN_DOCUMENTS}"
            )
        else:
            yield (
                f"{change}, inconclusive at {_listed(unsure)} with {ratio.samples} documents; "
                "give more held-out text"
            )


def _refusal(findings: Findings) -> list[str]:
    """Name the refused tasks, and say what to do where they are most."""
    refused = findings.at_chance
    reasons = [f"{task} tasks are not judged: {findings.name} {why}" for task, why in refused]
    few = len(reasons) < sum(not score.graded for score in _usable(findings))
    fix = "give tasks that the baseline can answer (quality.tasks)"
    return reasons if few or not reasons else [*reasons, fix]


def _listed(tolerances: Sequence[float]) -> str:
    *most, last = [f"{100 * tolerance:g} %" for tolerance in tolerances]
    return f"{', '.join(most)} or {last}" if most else last


def losses(tasks: Sequence[TaskScore]) -> list[str]:
    """Return a sentence per task that is significantly worse."""
    return _significant(_task_rows(tasks))


def _significant(rows: Sequence[_Row]) -> list[str]:
    adjusted = holm([row.p_value for row in rows])
    return [
        f"{row.what} (p {p:.2g} after Holm)"
        for row, p in zip(rows, adjusted, strict=True)
        if p < row.significance and row.fell
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """One of the tests that Holm's correction covers."""

    what: str
    fell: bool
    p_value: float
    significance: float = SIGNIFICANCE


def _usable(findings: Findings) -> list[TaskScore]:
    refused = dict(findings.at_chance)
    return [score for score in findings.tasks if score.task not in refused]


def _task_rows(tasks: Sequence[TaskScore]) -> list[_Row]:
    return [
        _Row(what=_changed(score), fell=worse(score), p_value=score.p_value)
        for score in tasks
        if score.p_value is not None
    ]


def _pooled_row(tasks: Sequence[TaskScore]) -> list[_Row]:
    scores = [score for score in tasks if score.p_value is not None and not score.graded]
    if len(scores) < 2:
        return []
    lost, gained = (sum(getattr(s, side) or 0 for s in scores) for side in ("lost", "gained"))
    what = (
        f"all {len(scores)} tasks together: {lost} answers lost and {gained} gained against the "
        "baseline"
    )
    return [_Row(what=what, fell=lost > gained, p_value=mcnemar(lost, gained))]


def _changed(score: TaskScore) -> str:
    if score.graded and score.difference is not None:
        return f"{score.task}: the mean grade changed by {score.difference.value:+.3f}"
    return f"{score.task}: {score.lost} answers lost and {score.gained} gained against the baseline"


def _shape_rows(here: Sequence[TaskAnswer], there: Sequence[TaskAnswer]) -> list[_Row]:
    """Test the form of answers: degenerate text, and answers that no longer end."""
    garbled = {answer.id: _is_degenerate(answer) for answer in there}
    flips = [(garbled[each.id], _is_degenerate(each)) for each in here if each.id in garbled]
    lost, gained = flips.count((False, True)), flips.count((True, False))
    rows = [
        _Row(
            what=f"{_DEGENERATE}: {lost} answers lost and {gained} gained against the baseline",
            fell=lost > gained,
            p_value=mcnemar(lost, gained),
            significance=_DEGENERATE_SIGNIFICANCE,
        )
    ]
    before = {answer.id: answer.finish_reason for answer in there if answer.finish_reason}
    ends = [
        (before[answer.id] == "stop", answer.finish_reason == "stop")
        for answer in here
        if answer.id in before and answer.finish_reason
    ]
    if ends:
        lost, gained = ends.count((True, False)), ends.count((False, True))
        what = (
            f"{lost} of {len(ends)} answers that ended by themselves on the baseline run "
            f"into their limit here and {gained} the reverse: check the end-of-sequence token"
        )
        rows.append(_Row(what=what, fell=lost > gained, p_value=mcnemar(lost, gained)))
    return rows


def _garbage(findings: Findings) -> list[str]:
    """Return a defect if nearly all answers say nothing, whatever the baseline."""
    silent = [each for each in findings.answers if not each.right and says_nothing(each.text)]
    if not silent or len(silent) < SILENT_SHARE * len(findings.answers):
        return []
    return [
        f"{len(silent)} of {len(findings.answers)} answers are degenerate text "
        f"(the first: {degenerate(silent[0].text)})"
    ]


def _is_degenerate(answer: TaskAnswer) -> bool:
    # A right answer may be short or repeat itself; a wrong one that does is a symptom.
    return not answer.right and degenerate(answer.text) is not None


def _unfinished(findings: Findings) -> tuple[list[str], bool]:
    """Count answers that never end their reasoning; whether they are too many to judge by.

    A question on which both sides reason to the limit would count as no loss.
    """
    here = sum(answer.unfinished for answer in findings.answers)
    before = [] if findings.baseline is None else findings.baseline.answers
    there = sum(answer.unfinished for answer in before)
    if not here and not there:
        return [], False
    sides = f"{here} of {len(findings.answers)} answers here"
    if findings.baseline is not None:
        sides += f" and {there} of {len(before)} of the baseline's"
    many = max(here, there) > _UNFINISHED_SHARE * max(1, len(findings.answers))
    fix = "raise quality.thinking_tokens, or turn thinking off by quality.chat_template_kwargs"
    return [f"{sides} did not end their reasoning and count as wrong; {fix}"], many


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+z.2f} %"


def _interval(ratio: Estimate) -> str:
    if ratio.low is None or ratio.high is None:
        return ""
    return f" [{_percent(ratio.low)}, {_percent(ratio.high)}]"
