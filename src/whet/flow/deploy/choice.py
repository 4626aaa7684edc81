"""Which variant of a run is deployed, at which load, or why none can be."""

from __future__ import annotations

from whet.core.errors import MeasurementError, NothingQualifiesError, StorageError, UsageError
from whet.core.load import Load
from whet.core.names import did_you_mean
from whet.core.records.decision import Decision
from whet.core.run import Run
from whet.engines import get_profile
from whet.flow.run.conclude.faults import engine_faults


def choose(run: Run, variant: str | None) -> tuple[str, Load]:
    """The variant and the load to deploy it for: the recommended ones without ``variant``.

    Another variant is deployed for the largest load at which it qualifies. Raises
    ``MeasurementError`` without a decision, ``NothingQualifiesError`` without a recommendation, and
    ``UsageError`` for a variant that does not qualify and for a server that whet did not start.
    """
    decision = run.decision
    if decision is None:
        raise MeasurementError(
            f"{run.root} has no decision, so nothing can be deployed",
            fix="finish it with whet run --resume",
        )
    chosen = decision.recommendation
    name = variant or (chosen.variant if chosen is not None else None)
    if name is None:
        others = ", ".join(decision.qualified)
        fix = f"deploy one that qualifies with --variant ({others})" if others else "run it again"
        raise NothingQualifiesError(
            f"{run.name} recommends nothing, and its report.md says why for each variant",
            fix=fix,
        )
    _require_qualified(decision, run, name)
    _require_own_server(run, name)
    if fault := engine_faults(run)[0].get(name):  # known since the decision
        raise NothingQualifiesError(
            f"{name} is not deployed: {fault}", fix="choose another variant"
        )
    if chosen is not None and name == chosen.variant:
        return name, chosen.load
    passed = [c.load for c in decision.cells if c.variant == name and c.status == "qualifies"]
    return name, max(passed)


def _require_qualified(decision: Decision, run: Run, name: str) -> None:
    if name in decision.qualified:
        return
    if name not in run.variants:
        raise UsageError(
            f"{run.name} has no variant {name!r}{did_you_mean(name, run.variants)} "
            f"(qualified: {', '.join(decision.qualified) or 'none'})"
        )
    excluded = (item.reason for item in decision.excluded if item.variant == name)
    missed = (cell.label for cell in decision.cells if cell.variant == name)
    reason = next(excluded, None) or next(missed, None) or "it was not measured"
    raise UsageError(
        f"{name} does not qualify: {' '.join(reason.split())}",
        fix=f"choose one that does ({', '.join(decision.qualified) or 'none'})",
    )


def _require_own_server(run: Run, name: str) -> None:
    resolved = run.engines.get(name)
    if resolved is None or resolved.variant.name != name:
        raise StorageError(
            f"{run.root} has no command of {name}",
            fix=f"put variants/{name}.json back from a copy, or start a new run",
        )
    if (layout := resolved.variant.layout) is not None:
        raise UsageError(
            f"{name} is {layout.text} behind a router, and whet deploy writes manifests of one "
            f"server",
            fix=f"start each with: {resolved.serve_line}",
        )
    profile = get_profile(resolved.engine)
    if resolved.url is None and profile.plan_deployment is None:
        raise UsageError(
            f"{name} runs on {profile.title}, which whet deploy has no manifests for",
            fix=f"start it "
            f"with the command in the report, or deploy a variant of vLLM: {resolved.serve_line}",
        )
    if resolved.url is not None:
        raise UsageError(
            f"{name} was measured on a server that whet did not start ({resolved.url}), so its "
            "command is unknown",
            fix="measure a variant that whet starts (engine.name: vllm)",
        )
