"""``whet ci``: a change held against a stored baseline run, and the files that do it in CI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from whet.ci.options import CiOptions
from whet.cli.options import OutputOptions, SpecFile, command_group, print_json, print_line
from whet.core.errors import MeasurementError, NothingQualifiesError
from whet.core.records.codec import encode

if TYPE_CHECKING:
    from whet.ci.result import CiResult


def ci(
    candidate: Annotated[Path, Parameter(help="Run directory of the change.")],
    /,
    *,
    against: Annotated[Path, Parameter(help="Run directory of the baseline.")],
    options: CiOptions = CiOptions(),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Compare a run with a stored baseline run: cost, answers, evidence. Starts nothing.

    Exit code 0 for a pass, 9 for a fail, 6 if unknown. The cost of the recommended cell decides;
    other figures advise.
    """
    import whet.flow.ci  # noqa: F401  levers add their keys to a stored spec
    from whet.ci.compare import compare_runs, open_sides
    from whet.ci.document import ci_document
    from whet.ci.files import write_files
    from whet.report.writers.console import print_sections

    sides = open_sides(candidate, against, options)
    result = compare_runs(sides)
    write_files(result, options)
    print_sections(ci_document(result).sections, output.console)
    if output.json:
        print_json({"verdict": result.verdict, "cause": result.cause, **encode(result)})
    _raise(result)


def _raise(result: CiResult) -> None:
    if result.verdict == "pass":
        return
    checks = result.counted(result.verdict)
    more = f" (and {len(checks) - 1} more)" if len(checks) > 1 else ""
    why = ". ".join(filter(None, (f"{checks[0].name}: {checks[0].sentence}{more}", result.cause)))
    if result.verdict == "fail":
        raise NothingQualifiesError(f"{result.variant} fails: {why}")
    raise MeasurementError(f"{result.variant} is inconclusive (counts as not passed): {why}")


def ci_init(
    spec_file: SpecFile = Path("whet.yaml"),
    /,
    *,
    output_dir: Annotated[
        Path, Parameter(name=["--output-dir", "-o"], help="The repository's root.")
    ] = Path(),
) -> None:
    """Write a GitHub Actions workflow for a spec."""
    from whet.flow.ci.scaffold import write_workflow

    for line in write_workflow(spec_file, output_dir):
        print_line(line)


commands = command_group("ci", ci)
commands.command(ci_init, name="init")
