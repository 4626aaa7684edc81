"""What ``whet quality`` prints and writes: the run's quality tables, verdicts, lost answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from whet.core.format import number, plural
from whet.core.records.codec import encode
from whet.core.records.quality import QualityRecord
from whet.core.units import human_duration
from whet.report.document import (
    Bullets,
    Heading,
    Node,
    Paragraph,
    Section,
    table,
    tone_of,
)
from whet.report.run.checks import check_nodes
from whet.report.run.quality import quality_nodes, task_table

if TYPE_CHECKING:
    from whet.flow.gate.baseline import Endpoint
    from whet.flow.gate.golden import GoldenDrift
    from whet.flow.gate.result import GateResult

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
    if result.harness:
        sides = {"baseline": result.baseline_harness, "target": result.harness}
        nodes += [Heading(text="lm-eval"), task_table(sides)]
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


def _examples(result: GateResult) -> Iterator[Node]:
    for lost in result.record.examples[:_EXAMPLES]:
        answers = (lost.expected, lost.baseline, lost.answer)
        yield Heading(text=f"{lost.task}: {_end(lost.prompt)}")
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
