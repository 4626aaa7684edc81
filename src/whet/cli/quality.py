"""``whet quality``: the gate on its own, between two servers or checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from whet.cli.options import OutputOptions, print_json
from whet.core.errors import MeasurementError, NothingQualifiesError
from whet.core.format import plural
from whet.core.records.codec import encode
from whet.core.records.quality import QualityRecord
from whet.core.units import human_duration
from whet.flow.gate.options import QualityOptions
from whet.report.document import Heading, Node, Paragraph, Section, table, tone_of
from whet.report.run.checks import check_nodes
from whet.report.run.quality import quality_nodes, task_table
from whet.report.writers.console import print_sections

if TYPE_CHECKING:
    from whet.flow.gate.endpoints import Endpoint
    from whet.flow.gate.gate import GateResult

_EXAMPLES: Final = 3
_EXAMPLE_CHARACTERS: Final = 600


def quality(
    target: Annotated[str, Parameter(help="Running server (URL), or a checkpoint folder.")],
    /,
    *,
    options: QualityOptions = QualityOptions(),
    output: OutputOptions = OutputOptions(),
) -> object:
    """Check that a server or checkpoint answers as well as its baseline: pass, fail or unknown.

    A folder is served with the installed engine, which takes minutes.

    Exit code 0 for a pass, 9 for a fail, 6 if unknown.
    """
    from whet.flow.gate.gate import run_gate

    with output.observer() as observer:
        result = run_gate(target, options, observer)
    print_sections([gate_section(result)], output.console)
    if output.json:
        print_json(result_json(result))
    why = result.reason or "no reason was given"
    if result.verdict == "fail":
        output.end(NothingQualifiesError(f"the gate fails: {why}"))
    if result.verdict == "unknown":
        output.end(MeasurementError(f"quality gate inconclusive (counts as not passed): {why}"))
    return result


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
