"""``whet check``: everything that can be refused before anything starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from whet.cli.run import Output, SpecFile
from whet.core.errors import UsageError
from whet.core.records import ResolvedEngine
from whet.core.spec import Spec, load_spec
from whet.engines.vllm import find_installed
from whet.engines.vllm.planned import Planned, newest_known
from whet.predict.hardware import planned_device


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(check)


def check(
    spec_file: SpecFile = Path("whet.yaml"),
    output_dir: Output = Path("runs"),
    device: Annotated[
        str | None,
        typer.Option(help="A GPU that is not here, such as L4 or '2x H100 SXM'; its CUDA vLLM."),
    ] = None,
    vllm: Annotated[
        str | None,
        typer.Option(help="The version there; by default the one here, or the newest known."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 2 if there is a warning.")
    ] = False,
) -> None:
    """Preflight: spec, checkpoints, tokenizers, memory, engine. Starts and writes nothing."""
    from whet.flow.run.preflight import feasible, run_preflight

    spec = load_spec(spec_file)
    planned = None if device is None else _planned(device, vllm, spec)
    if planned is None and vllm is not None:
        raise UsageError("--vllm is the version on a machine that is not here; give --device too")
    checked = run_preflight(spec, output_dir / spec.name, planned)
    console, warnings = Console(), Console(stderr=True)
    for sentence in checked.advice:
        warnings.print(f"! {sentence}", style="yellow", highlight=False, markup=False)
    kept = feasible(checked, spec, skip=False)
    on = checked.device.name if planned is None else _words(planned, kept)
    console.print(f"[green]ok[/green] {spec.name}: {len(kept)} variants on {on}")
    for resolved in kept:
        console.print(f"  {resolved.variant.name}", highlight=False, markup=False)
        console.print(f"    {resolved.serve_line}", highlight=False, markup=False, soft_wrap=True)
    if strict and checked.advice:
        raise UsageError("--strict: the warnings above count as errors; correct the spec")


def _planned(device: str, vllm: str | None, spec: Spec) -> Planned:
    found, capability = planned_device(device)
    if vllm is None:
        here = find_installed(spec.engine.python or sys.executable)
        vllm = newest_known() if here is None else here.version.partition("+")[0]
    return Planned(device=found, capability=capability, vllm=vllm)


def _words(planned: Planned, kept: Sequence[ResolvedEngine]) -> str:
    count = f"{planned.device.count} × " if planned.device.count > 1 else ""
    granted = ", ".join([f"vLLM {planned.vllm} for CUDA", *planned.needs(kept)])
    return f"{count}{planned.device.name}, which is not here (taken for granted: {granted})"
