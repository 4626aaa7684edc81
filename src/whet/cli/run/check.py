"""``whet check``: everything that can be refused before anything starts."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from whet.cli.options import OutputOptions, SpecFile, print_json
from whet.core.errors import UsageError
from whet.flow.run.options import CheckOptions, SpecOptions


def check(
    spec_file: SpecFile = Path("whet.yaml"),
    /,
    *,
    change: SpecOptions = SpecOptions(),
    options: CheckOptions = CheckOptions(),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Check whet.yaml without starting anything: files, memory, engine flags.

    Exit code 2 if the spec is wrong, 4 if a variant cannot run here.
    """
    from whet.flow.run.planned import machine_text, plan_machine
    from whet.flow.run.preflight import feasible, run_preflight

    spec = change.read(spec_file)
    planned = None if options.device is None else plan_machine(options.device, options.vllm, spec)
    if planned is None and options.vllm is not None:
        raise UsageError("--vllm is the version on a machine that is not here; give --device too")
    checked = run_preflight(spec, options.output_dir / spec.name, planned)
    warnings = Console(stderr=True)
    for sentence in checked.advice:
        warnings.print(f"! {sentence}", style="yellow", highlight=False, markup=False)
    variants = feasible(checked, spec, skip=False)
    machine = checked.device.name
    if planned is not None:
        machine = machine_text(planned, variants, spec.engine.name)
    if output.json:
        lines = [{"variant": each.variant.name, "command": each.serve_line} for each in variants]
        print_json(
            {
                "spec": spec.name,
                "machine": machine,
                "variants": lines,
                "warnings": list(checked.advice),
            }
        )
    console = Console(quiet=output.quiet or output.json)
    console.print(f"[green]ok[/green] {spec.name}: {len(variants)} variants on {machine}")
    for resolved in variants:
        console.print(f"  {resolved.variant.name}", highlight=False, markup=False)
        console.print(f"    {resolved.serve_line}", highlight=False, markup=False, soft_wrap=True)
    if options.strict and checked.advice:
        raise UsageError("--strict: the warnings above count as errors; correct the spec")
