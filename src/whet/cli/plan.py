"""``whet plan``: predicted configurations, before anything is rented or started."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
from rich.table import Table

from whet.cli.options import OutputOptions, print_json, print_line
from whet.core.errors import UsageError
from whet.core.quote import shell_word
from whet.core.records import encode
from whet.core.store import is_special, write_atomic
from whet.core.units import GIB
from whet.flow.plan.options import PlanOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from whet.flow.plan.plan import Plan
    from whet.predict.plan.evaluate import Prediction
    from whet.predict.plan.fit import Fit

_ROWS: Final = 12


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
    from whet.flow.plan.plan import make_memory_table, make_plan
    from whet.flow.plan.spec import spec_text
    from whet.flow.run.check.checkpoints import open_checkpoints

    if options.spec is not None and options.memory:
        raise UsageError("--memory predicts no speed, so there is nothing for --spec; give one")
    if options.spec is not None and options.spec.exists() and not is_special(options.spec):
        raise UsageError(f"--spec {options.spec} exists; name another file or move it away")
    with open_checkpoints() as checkpoints:
        folder = checkpoints.find(model)
        if options.memory:
            fits = make_memory_table(folder, options)
            if output.json:
                print_json([encode(each) for each in fits])
            elif not output.quiet:
                output.console.print(_memory(fits))
            return
        made = make_plan(folder, options)
    for doubt in made.traffic.doubts:
        output.observer().warn(doubt)
    if options.spec is not None:
        write_atomic(options.spec, spec_text(made, model, options.spec))
    if output.json:
        print_json(_document(made))
    elif not output.quiet:
        _print(made, model, output)
        if options.spec is not None:
            file = shell_word(str(options.spec))
            print_line(f"Wrote {file}. Next: whet check {file}, then: whet run {file}")


def _print(plan: Plan, model: str, output: OutputOptions) -> None:
    console = output.console
    at = "" if plan.rate is None else f", {plan.rate:g} requests/s"
    console.print(f"{model}: {plan.traffic.text}{at}; {plan.objective}")
    console.print(_table(plan, plan.front[:_ROWS]))
    console.print(
        f"Predicted, not measured; {'; '.join(_errors(plan))}. Measure the best with whet run.",
        soft_wrap=True,
    )


def _errors(plan: Plan) -> Iterator[str]:
    """The widest error of each GPU of the table, and where its coefficients are from."""
    widest = sorted(plan.front[:_ROWS], key=lambda each: each.errors["tpot"])
    for gpu, each in {each.candidate.gpu: each for each in widest}.items():
        words = ", ".join(f"{name.upper()} ±{each.errors[name]:.0%}" for name in ("ttft", "tpot"))
        yield f"{gpu} ({each.calibration.text}): {words}"


def _memory(fits: Sequence[Fit]) -> Table:
    """Totals by context and batch size, a column a precision; ``!`` does not fit."""
    names = list(dict.fromkeys(each.variant for each in fits))
    title = f"GiB a GPU, {fits[0].limit / GIB:.0f} usable; ! does not fit"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("context", "in flight", *names):
        table.add_column(name, justify="right", no_wrap=True)
    for place in dict.fromkeys((each.context, each.in_flight) for each in fits):
        row = [each for each in fits if (each.context, each.in_flight) == place]
        totals = [f"{each.total / GIB:,.0f}{'' if each.fits else ' !'}" for each in row]
        table.add_row(f"{place[0]:,}", str(place[1]), *totals)
    parts = {each.variant: each for each in fits}
    weights = [f"{parts[name].weights / GIB:.1f}" for name in names]
    working = [f"{parts[name].activations / GIB:.1f}" for name in names]
    table.add_section()
    table.add_row("weights", "", *weights)
    table.add_row("working", "", *working)
    return table


def _table(plan: Plan, predictions: tuple[Prediction, ...]) -> Table:
    at = "by batch size" if plan.sizes else "at the largest batch size that meets it"
    title = f"Cheapest first, {at}; p95 in ms{'; ! misses the objective' if plan.sizes else ''}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("GPUs", "variant"):
        table.add_column(name)
    heads = ("batch", "req/s", "TTFT", "TPOT", "$/1M")
    rated = () if plan.rate is None else ("all GPUs", "$/month")
    for name in (*heads, *rated):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("most of a step", no_wrap=True)
    for each in predictions:
        table.add_row(*_cells(plan, each))
    return table


def _cells(plan: Plan, each: Prediction) -> list[str]:
    figures, candidate = dict(each.latencies), each.candidate
    cells = [
        candidate.text,
        candidate.variant.name,
        f"{each.in_flight}{' !' if each.missed else ''}",
        f"{each.requests_per_s:.3g}",
        f"{figures['ttft p95']:,.0f}",
        f"{figures['tpot p95']:.3g}",
        f"{each.cost_per_1m:.3g}",
    ]
    if plan.rate is not None:
        count = plan.replicas(each) * candidate.devices
        cells += [str(count), f"{count * candidate.price * 24 * 365 / 12:,.0f}"]
    return [*cells, each.bound]


def _document(plan: Plan) -> dict[str, object]:
    return {
        "parameters": plan.target.parameters,
        "objective": plan.objective,
        "rate": plan.rate,
        "candidates": [
            {
                "gpu": each.candidate.gpu,
                "gpus": each.candidate.devices,
                "layout": each.candidate.parallel.text,
                "weights": each.candidate.variant.weights,
                "variant": each.candidate.variant.name,
                "fits": each.memory.fits,
                "weight_bytes": each.memory.weight_bytes,
                "kv_pool_bytes": each.memory.kv_pool_bytes,
                "kv_tokens": each.memory.kv_tokens,
                "in_flight": each.in_flight,
                "requests_per_s": _number(each.requests_per_s),
                "cost_per_1m_tokens": _number(each.cost_per_1m),
                "latencies_ms": {name: _number(value) for name, value in each.latencies},
                "relative_errors": dict(each.errors),
                "calibration": each.calibration.source,
                "kv_share": _number(each.kv_share),
                "bound": each.bound,
                "preemptions": each.preemptions,
                "missed": each.missed,
                "front": each in plan.front,
                "predicted": True,
            }
            for each in plan.predictions
        ],
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
