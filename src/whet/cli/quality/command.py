"""``whet quality``: the gate on its own, between two servers or checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from whet.cli.options import OutputOptions, print_json
from whet.cli.quality.output import drift_section, gate_section, result_json
from whet.core.errors import MeasurementError, NothingQualifiesError
from whet.core.format import plural
from whet.core.records.codec import encode
from whet.flow.gate.options import QualityOptions
from whet.report.writers.console import print_sections


def quality(
    target: Annotated[str, Parameter(help="Running server (URL), or a checkpoint folder.")],
    /,
    *,
    options: QualityOptions = QualityOptions(),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Check that a server or checkpoint answers as well as its baseline: pass, fail or unknown.

    A folder is served with the installed engine, which takes minutes.

    Exit code 0 for a pass, 9 for a fail or a drift, 6 if unknown.
    """
    options.refuse_misfits()
    if options.sides.golden is None:
        _gate(target, options, output)
    elif options.sides.add_start:
        _add_start(target, options.sides.golden, options, output)
    else:
        _drift(target, options.sides.golden, options, output)


def _gate(target: str, options: QualityOptions, output: OutputOptions) -> None:
    from whet.flow.gate.gate import run_gate

    with output.observer() as observer:
        result = run_gate(target, options, observer)
    print_sections([gate_section(result)], output.console)
    if output.json:
        print_json(result_json(result))
    why = result.reason or "no reason was given"
    if result.verdict == "fail":
        raise NothingQualifiesError(f"the gate fails: {why}")
    if result.verdict == "unknown":
        raise MeasurementError(f"quality gate inconclusive (counts as not passed): {why}")


def _add_start(target: str, golden: Path, options: QualityOptions, output: OutputOptions) -> None:
    from whet.flow.gate.golden import add_golden_start

    with output.observer() as observer:
        starts = add_golden_start(target, golden, options, observer)
    line = f"{golden}: reference of {plural(starts, 'start')}"
    output.console.print(Text(line), soft_wrap=True)
    if output.json:
        print_json({"golden": str(golden), "starts": starts})


def _drift(target: str, golden: Path, options: QualityOptions, output: OutputOptions) -> None:
    from whet.flow.gate.golden import check_golden

    with output.observer() as observer:
        drift = check_golden(target, golden, options, observer)
    print_sections([drift_section(drift)], output.console)
    if output.json:
        print_json(encode(drift))
    if drift.verdict == "fail":
        raise NothingQualifiesError(
            f"{target} answers other than when {golden} was recorded"
            + (f": {drift.reason}" if drift.reason else "; find out what was changed")
        )
    if drift.verdict == "unknown":
        raise MeasurementError(f"drift inconclusive: {drift.reason}")
