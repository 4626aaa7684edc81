"""``whet plan``: predicted configurations, before anything is rented or started."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from whet.cli.options import OutputOptions, print_json, print_line
from whet.core.errors import UsageError
from whet.core.quote import shell_word
from whet.core.records.codec import encode
from whet.core.store import is_special, write_atomic
from whet.flow.plan.options import PlanOptions


def plan(
    model: Annotated[str, Parameter(help="Checkpoint: folder or Hugging Face id.")],
    /,
    *,
    options: PlanOptions,
    output: OutputOptions = OutputOptions(),
) -> None:
    """Predict which GPUs and precisions meet an objective, and at what cost, without a GPU.

    Only headers of a Hugging Face checkpoint are downloaded. Exit code 4 if nothing meets the
    objective.
    """
    from whet.flow.plan.document import memory_section, plan_json, plan_section
    from whet.flow.plan.plan import make_memory_table, make_plan
    from whet.flow.plan.spec import planned_spec
    from whet.flow.run.check.checkpoints import open_checkpoints
    from whet.report.writers.console import print_sections

    if options.spec is not None and options.memory:
        raise UsageError(
            "--memory predicts no speed, so there is nothing for --spec", fix="give one"
        )
    if options.spec is not None and options.spec.exists() and not is_special(options.spec):
        raise UsageError(f"--spec {options.spec} exists", fix="name another file or move it away")
    with open_checkpoints() as checkpoints:
        folder = checkpoints.find(model)
        if options.memory:
            fits = make_memory_table(folder, options)
            if output.json:
                print_json([encode(each) for each in fits])
            else:
                print_sections([memory_section(fits)], output.console)
            return
        made = make_plan(folder, options)
    for doubt in made.traffic.doubts:
        output.observer().warn(doubt)
    if options.spec is not None:
        write_atomic(options.spec, planned_spec(made, model, options.spec))
    if output.json:
        print_json(plan_json(made))
        return
    print_sections([plan_section(made, model)], output.console)
    if options.spec is not None and not output.quiet:
        file = shell_word(str(options.spec))
        print_line(f"Wrote {file}. Next: whet check {file}, then: whet run {file}")
