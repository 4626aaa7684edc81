"""``whet check``: everything that can be refused before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from whet.cli.options import OutputOptions, SpecFile, print_json
from whet.cli.terminal import TerminalConsole
from whet.core.errors import UsageError
from whet.core.records import UNQUANTIZED, MemoryPlan, ModelFacts, ResolvedEngine, encode
from whet.core.units import human_bytes
from whet.flow.run.options import CheckOptions, SpecOptions

if TYPE_CHECKING:
    from whet.flow.run.check.check import Checked
    from whet.flow.run.check.checkpoints import HubSource
    from whet.flow.run.check.effort import Effort


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
    from whet.flow.run.check.check import check_spec, feasible
    from whet.flow.run.check.checkpoints import open_checkpoints
    from whet.flow.run.check.effort import effort_of
    from whet.flow.run.check.planned import machine_text, plan_machine

    spec = change.read(spec_file)
    planned = (
        None if options.device is None else plan_machine(options.device, options.vllm, spec.engine)
    )
    if planned is None and options.vllm is not None:
        raise UsageError("--vllm is the version on a machine that is not here; give --device too")
    with open_checkpoints() as checkpoints:
        checked = check_spec(spec, options.output_dir / spec.name, checkpoints, planned)
        warnings = TerminalConsole(stderr=True)
        for sentence in checked.advice:
            warnings.print(f"! {sentence}", style="yellow")
        variants = feasible(checked, skip=False)
        device, facts = checked.resolved.device, checked.facts
        machine = device.name
        if planned is not None:
            machine = machine_text(planned, variants, spec.engine.name)
        sources = checkpoints.sources(facts.target, facts.draft)
    names = [each.variant.name for each in variants]
    effort = effort_of(spec, names, device=device.kind, answer_tokens=facts.answer_tokens)
    if output.json:
        _print_json(checked, variants, sources, effort, name=spec.name, machine=machine)
    elif not output.quiet:
        _print_text(checked, variants, sources, effort, name=spec.name, machine=machine)
    if options.strict and checked.advice:
        raise UsageError("--strict: the warnings above count as errors; correct the spec")


def _print_json(
    checked: Checked,
    variants: Sequence[ResolvedEngine],
    sources: Sequence[HubSource],
    effort: Effort,
    *,
    name: str,
    machine: str,
) -> None:
    lines = [{"variant": each.variant.name, "command": each.serve_line} for each in variants]
    print_json(
        {
            "spec": name,
            "machine": machine,
            "models": [encode(source) for source in sources],
            "disks": [encode(use) for use in checked.needs.disks],
            "memory": [encode(plan) for plan in checked.needs.memory.values()],
            "effort": asdict(effort),
            "variants": lines,
            "warnings": list(checked.advice),
        }
    )


def _print_text(
    checked: Checked,
    variants: Sequence[ResolvedEngine],
    sources: Sequence[HubSource],
    effort: Effort,
    *,
    name: str,
    machine: str,
) -> None:
    console = TerminalConsole()
    console.print(Text("ok", "green"), f"{name}: {len(variants)} variants on {machine}")
    for line in [*(each.text for each in sources), *_missing(checked.facts.target)]:
        console.print(f"  {line}", soft_wrap=True)
    for resolved in variants:
        console.print(f"  {resolved.variant.name}")
        console.print(f"    {resolved.serve_line}", soft_wrap=True)
    needs = [
        *(f"memory, {plan.variant}: {_fit(plan)}" for plan in checked.needs.memory.values()),
        *(each.text for each in checked.needs.disks),
        effort.text,
    ]
    for line in needs:
        console.print(f"  {line}", soft_wrap=True)


def _fit(plan: MemoryPlan) -> str:
    weights = plan.weight_bytes + (plan.draft_weight_bytes or 0)
    return (
        f"weights {human_bytes(weights)}, KV cache of {human_bytes(plan.kv_pool_bytes)} for "
        f"{plan.kv_tokens:,} tokens ({plan.tokens_needed:,} needed)"
    )


def _missing(target: ModelFacts) -> Iterator[str]:
    """What a user should know of the target without its being refused."""
    if target.stored.scheme not in UNQUANTIZED:
        yield f"the baseline is the target as stored ({target.stored.scheme}), not in 16 bit"
    if target.tokenizer.chat_template_sha256 is None:
        yield "the target has no chat template: it takes plain prompts and no chat messages"
