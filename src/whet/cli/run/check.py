"""``whet check``: everything that can be refused before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from whet.cli.options import OutputOptions, SpecFile, print_json
from whet.cli.terminal import TerminalConsole
from whet.core.errors import UsageError
from whet.core.format import plural
from whet.core.records.codec import encode
from whet.core.records.engine import UNQUANTIZED, ResolvedEngine
from whet.core.records.model import ModelFacts
from whet.core.records.plan import MemoryPlan
from whet.core.units import human_bytes
from whet.flow.run.options import CheckOptions, SpecOptions
from whet.report.document import Code, Node, Paragraph, Section
from whet.report.writers.console import print_sections

if TYPE_CHECKING:
    from whet.core.spec import Spec
    from whet.flow.run.check.check import Checked
    from whet.flow.run.check.checkpoints import HubSource
    from whet.flow.run.search.playbook import Option
    from whet.flow.run.situation import Situation


_VERBOSE: Final = (
    "  whet check -v prints the command of each variant, and the moves that do not apply"
)


def check(
    spec_file: SpecFile = Path("whet.yaml"),
    /,
    *,
    change: SpecOptions = SpecOptions(),
    options: CheckOptions = CheckOptions(),
    output: OutputOptions = OutputOptions(),
) -> object:
    """Check whet.yaml without starting anything: files, memory, engine flags.

    Exit code 2 if the spec is wrong, 4 if a variant cannot run here.
    """
    from whet.flow.run.check.check import check_spec, feasible, machine_text, plan_machine
    from whet.flow.run.check.checkpoints import open_checkpoints
    from whet.flow.run.check.effort import effort_of, search_words
    from whet.flow.run.check.situation import find_situation

    spec = change.read(spec_file)
    planned = (
        None if options.device is None else plan_machine(options.device, options.vllm, spec.engine)
    )
    if planned is None and options.vllm is not None:
        raise UsageError(
            "--vllm is the version on a machine that is not here", fix="give --device too"
        )
    with open_checkpoints() as checkpoints:
        checked = check_spec(spec, options.output_dir / spec.name, checkpoints, planned)
        warnings = TerminalConsole(stderr=True)
        for sentence in checked.advice:
            warnings.print(f"! {sentence}", style="yellow", soft_wrap=True)
        variants = feasible(checked, skip=False)
        device, facts = checked.resolved.device, checked.facts
        machine = device.name
        if planned is not None:
            machine = machine_text(planned, variants, spec.engine.name)
        situation = None
        if spec.search is not None:
            situation = find_situation(facts, variants, device, checkpoints, planned)
        sources = checkpoints.sources(facts.target, facts.draft)
    moves = _moves(situation, spec)
    names = [each.variant.name for each in variants]
    effort = effort_of(spec, names, device=device.kind, answer_tokens=facts.answer_tokens)
    if output.json:
        took = asdict(effort) if spec.search is None else {"seconds": spec.search.time}
        measured = {"spec": spec.name, "machine": machine, "effort": took}
        own = {} if situation is None else {"moves": moves_document(moves)}
        print_json(measured | _document(checked, variants, sources) | own)
    else:
        title = f"ok {spec.name}: {plural(len(variants), 'variant')} on {machine}"
        line = effort.text if spec.search is None else search_words(spec.search)
        lines = [line, *_lines(checked, [each.text for each in sources])]
        section = _section(title, lines, variants if options.verbose else None)
        shown = [each for each in moves if options.verbose or each.value is not None]
        own_sections = [] if situation is None else [moves_section(shown)]
        print_sections([section, *own_sections], output.console)
    return checked


def _moves(situation: Situation | None, spec: Spec) -> Sequence[Option]:
    """Return the moves from the first configuration, those that promise most first."""
    from whet.flow.run.search.history import value_of
    from whet.flow.run.search.playbook import options, require_known

    if situation is None or spec.search is None:
        return ()
    require_known(spec.search)
    value = value_of(spec, spec.reference or spec.baseline)
    moves = options(situation, value, spec.search)
    load = situation.in_flight
    return sorted(moves, key=lambda each: (not each.first, -each.move.expected(load)))


def moves_section(options: Sequence[Option]) -> Section:
    """Return the moves that apply, then the others, each with its reason."""
    return Section(
        id="moves",
        title="the search tries, from the default on",
        group="Check",
        nodes=list(_move_nodes(options)),
    )


def moves_document(options: Sequence[Option]) -> list[dict[str, object]]:
    """Return the moves for JSON, in order."""
    return [
        {"move": each.move.name, "applies": each.value is not None, "reason": each.reason}
        for each in options
    ]


def _move_nodes(options: Sequence[Option]) -> Iterator[Node]:
    tried = [each for each in options if each.value is not None]
    for number, each in enumerate(tried, 1):
        yield Paragraph(text=f"  {number}. {each.move.name}: {each.reason}")
    for each in options:
        if each.value is None:
            yield Paragraph(text=f"  not {each.move.name}: {each.reason}")


def _document(
    checked: Checked, variants: Sequence[ResolvedEngine], sources: Sequence[HubSource]
) -> dict[str, object]:
    return {
        "models": encode(sources),
        "disks": encode(checked.needs.disks),
        "memory": [encode(plan) for plan in checked.needs.memory.values()],
        "variants": [
            {"variant": each.variant.name, "command": each.serve_line} for each in variants
        ],
        "warnings": list(checked.advice),
    }


def _lines(checked: Checked, sources: Sequence[str]) -> Iterator[str]:
    """What the run needs, and what the target lacks."""
    yield from (f"memory, {plan.variant}: {_fit(plan)}" for plan in checked.needs.memory.values())
    yield from (each.text for each in checked.needs.disks)
    yield from (*sources, *_missing(checked.facts.target))


def _section(
    title: str, lines: Sequence[str], variants: Sequence[ResolvedEngine] | None
) -> Section:
    """The verdict, what the run takes, and each variant's command where they are given."""
    nodes: list[Node] = [Paragraph(text=f"  {line}") for line in lines]
    for each in variants or ():
        nodes += [Paragraph(text=f"  {each.variant.name}"), Code(text=f"    {each.serve_line}")]
    if variants is None:
        nodes.append(Paragraph(text=_VERBOSE))
    return Section(id="check", title=title, group="Check", nodes=nodes, tone="good")


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
