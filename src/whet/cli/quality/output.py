"""What ``whet quality`` prints and writes: the run's quality tables, verdicts, lost answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from whet.core.format import number, plural, points
from whet.core.records import HarnessRun, HarnessScore, QualityRecord, encode
from whet.core.units import human_duration
from whet.report.document import (
    Bullets,
    Heading,
    Node,
    Paragraph,
    Section,
    Table,
    figure_columns,
    table,
    tone_of,
)
from whet.report.run.checks import check_nodes
from whet.report.run.quality import flips_words, quality_nodes
from whet.report.text import shown

if TYPE_CHECKING:
    from whet.flow.gate.baseline import Endpoint
    from whet.flow.gate.golden import GoldenDrift
    from whet.flow.gate.request import GateResult

_EXAMPLES: Final = 3
_EXAMPLE_CHARACTERS: Final = 600


def gate_section(result: GateResult) -> Section:
    """The two sides, the verdicts, the tables of a run's report and up to three lost answers.

    The reason of a verdict other than pass is in the error, which is printed last.
    """
    records = [each for each in (result.baseline_record, result.record) if each is not None]
    nodes: list[Node] = [
        Paragraph(text=f"{name:9} {_side(side)}")
        for name, side in (("target", result.target), ("baseline", result.baseline))
        if side is not None
    ]
    for tolerance, word in result.verdicts:
        nodes.append(Paragraph(text=f"at {100 * tolerance:g} %: {word}", tone=tone_of(word)))
    if result.reason is not None and result.verdict == "pass":
        nodes.append(Paragraph(text=result.reason))
    nodes += [*quality_nodes(records), *check_nodes(records)]
    if result.harness_scores:
        nodes += [Heading(text="lm-eval"), _compared(result.harness_scores)]
    elif result.harness is not None:
        nodes += [Heading(text="lm-eval"), _scores(result.harness)]
    nodes += _examples(result)
    documents = plural(len(result.record.nll), "document")
    seconds = human_duration(sum(record.seconds for record in records))
    nodes.append(
        Paragraph(
            text=f"perplexity over {documents}; asked in {seconds}{_parts(result.record)}",
            tone="muted",
        )
    )
    if result.saved is not None:
        saved = f"baseline saved in {result.saved}; check a deployment against it with --against"
        nodes.append(Paragraph(text=saved))
    return Section(id="gate", title="Quality gate", group="Quality", nodes=nodes)


def result_json(result: GateResult) -> dict[str, Any]:
    """Every record, as it is stored in a run, with the verdicts."""
    return {
        "verdict": result.verdict,
        "verdicts": encode(result.verdicts),
        "reason": result.reason,
        "target": encode(result.target),
        "baseline": encode(result.baseline),
        "record": encode(result.record),
        "baseline_record": encode(result.baseline_record),
        "lm_eval": encode(result.harness),
        "lm_eval_scores": encode(result.harness_scores),
    }


def drift_section(drift: GoldenDrift) -> Section:
    """The verdict on golden probes, the figures of the test, and the probes that moved most."""
    lines = []
    if drift.distance is not None and drift.noise is not None and drift.limit is not None:
        p_value = "" if drift.p_value is None else f", p {drift.p_value:.2g}"
        lines.append(
            f"{plural(drift.probes, 'probe')}, reference of {plural(drift.starts, 'start')}: "
            f"moved {number(drift.distance)} nats on average (chance alone: {number(drift.noise)}, "
            f"limit {number(drift.limit)}){p_value}; {drift.outside} outside of their interval"
        )
    lines += [drift.reason] if drift.reason is not None else []
    lines += drift.changed
    lines += [
        f"{move.id}: token {move.token_id} from {move.before:.4f} to {move.now:.4f}"
        for move in drift.moved
        if drift.verdict != "pass"
    ]
    title, tone = f"golden probes: {drift.verdict}", tone_of(drift.verdict)
    return Section(
        id="golden", title=title, group="Quality", nodes=[Bullets(items=lines)], tone=tone
    )


def _compared(scores: tuple[HarnessScore, ...]) -> Table:
    heads = ("baseline", "target", "change", "pairs", "lost, gained", "p", "detects a loss of")
    rows = [
        [
            f"{each.task} {each.metric}",
            shown(each.baseline_score, unit="%").text,
            shown(each.score, unit="%").text,
            shown(each.difference, unit="+pt").full,
            each.pairs,
            flips_words(each.lost, each.gained),
            None if each.p_value is None else f"{each.p_value:.2g}",
            None if each.detectable_drop is None else f"{points(each.detectable_drop)} points",
            each.missing or "",
        ]
        for each in scores
    ]
    return table("lm-eval against the baseline", ["task", *figure_columns(*heads), "note"], rows)


def _scores(run: HarnessRun) -> Table:
    rows = [
        [f"{task.task} {metric.name}", shown(metric.score, unit="%").text, metric.filter]
        for task in run.tasks
        for metric in task.metrics
    ]
    rows += [[task.task, "", task.missing] for task in run.tasks if task.missing is not None]
    return table("lm-eval", ["task", *figure_columns("baseline"), "filter"], rows)


def _examples(result: GateResult) -> Iterator[Node]:
    lost = [
        (each.task, each.prompt, each.expected, each.baseline, each.answer)
        for each in result.record.examples
    ]
    lost += [
        (f"lm-eval {each.task}", each.prompt_end, each.target, each.baseline, each.answer)
        for score in result.harness_scores
        for each in score.examples
    ]
    for task, prompt, *answers in lost[:_EXAMPLES]:
        yield Heading(text=f"{task}: {_end(prompt)}")
        yield table("A lost answer", ("expected", "baseline", "target"), [map(_end, answers)])


def _side(side: Endpoint) -> str:
    version = "" if side.engine_version is None else f", {side.engine_version}"
    return f"{side.ref} ({side.settings or side.model + version})"


def _end(text: str) -> str:
    """The end, where a question asks and a loop shows."""
    return text if len(text) <= _EXAMPLE_CHARACTERS else f"…{text[-_EXAMPLE_CHARACTERS:]}"


def _parts(record: QualityRecord) -> str:
    parts = [f"{name} {human_duration(seconds)}" for name, seconds in record.parts if seconds >= 1]
    return f" (of it the target: {', '.join(parts)})" if parts else ""
