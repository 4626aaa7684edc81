"""``whet plan``: predicted configurations, before anything is rented or started."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from whet.cli.options import OutputOptions, print_json
from whet.flow.plan.options import PlanOptions


def plan(
    model: Annotated[str, Parameter(help="Checkpoint: folder or Hugging Face id.")],
    /,
    *,
    options: PlanOptions,
    output: OutputOptions = OutputOptions(),
) -> object:
    """Predict which GPUs and precisions meet an objective, and at what cost, without a GPU.

    Only headers of a Hugging Face checkpoint are downloaded. Exit code 4 if nothing meets the
    objective.
    """
    from whet.flow.plan.document import plan_json, plan_section
    from whet.flow.plan.plan import make_plan
    from whet.flow.run.check.checkpoints import open_checkpoints
    from whet.report.writers.console import print_sections

    with open_checkpoints() as checkpoints:
        made = make_plan(checkpoints.find(model), options)
    for doubt in made.traffic.doubts:
        output.observer().warn(doubt)
    if output.json:
        print_json(plan_json(made))
    else:
        print_sections([plan_section(made, model, every=options.all_rows)], output.console)
    return made
