"""From a run to a bundle: the manifests of one variant, its envelope and its monitoring."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import yaml

from whet.core.errors import MeasurementError, NothingQualifiesError, StorageError, UsageError
from whet.core.load import Load
from whet.core.names import did_you_mean
from whet.core.records.bundle import Bundle
from whet.core.records.decision import Decision
from whet.core.records.engine import ResolvedEngine
from whet.core.run import Run
from whet.core.store import json_text
from whet.deploy.monitoring import monitoring_files
from whet.deploy.monitoring.series import exact_edges_s
from whet.deploy.render import SCRIPT, Site, commented, get_target, render, render_script, site_name
from whet.engines import get_profile
from whet.engines.command import shell_line
from whet.engines.deployment import Deployment, LeftOut
from whet.flow.deploy.folder import RECORD, SECRETS, read_bundle, replace_bundle
from whet.flow.deploy.options import DeployOptions
from whet.flow.run.conclude.faults import engine_faults
from whet.watch.source import WatchSource, source_files, source_of_run

_RULES: Final = "monitoring/rules.yml"
_COMMENTED: Final = (".sh", ".yaml", ".yml", ".example")
_ON_KUBERNETES: Final = (_RULES, "monitoring/grafana/dashboards/")
"""Scrapes and routes are the cluster's own there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployed:
    """A written bundle, and the one that it replaced."""

    folder: Path
    bundle: Bundle
    previous: Bundle | None
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]


def deploy(run: Run, options: DeployOptions) -> Deployed:
    """Write the bundle of the recommended or the named variant into ``options.output_dir``.

    Raises ``UsageError``, ``MeasurementError`` or ``NothingQualifiesError`` where there is nothing
    to deploy (``flow.deploy.choice``) and ``StorageError`` where the folder cannot be written; the
    folder is then as before.
    """
    options.refuse_misfits()
    variant, point = choose(run, options.variant)
    previous = read_bundle(options.output_dir)
    source, resolved = _in_container(source_of_run(run, variant, point)), run.engines[variant]
    planner = get_profile(resolved.engine).plan_deployment
    assert planner is not None  # choose() refuses an engine without one
    plan = planner(
        resolved,
        image_tag=options.image_tag,
        edges_s=exact_edges_s(source.envelope),
        load=point,
    )
    target = run.models.get("target")  # which every variant shares
    model = resolved.variant.model_path if target is None else target.path
    name = site_name(resolved.engine, model)
    monitoring = _monitoring(source, plan, name, options)
    site = Site(
        name=name,
        namespace=options.namespace or "default",
        replicas=_replicas(run, variant),
        change=f"{run.name}: {variant} at {point.words}",
        scrape_interval_s=options.scrape_interval,
        rule_groups=tuple(yaml.safe_load(monitoring[_RULES])["groups"]),
    )
    bundle = _bundle(run, point, plan, site, options.target)
    files = {
        **render(options.target, plan, site),
        **monitoring,
        **source_files(source),
        SCRIPT: render_script(plan),
        f"{SECRETS}.example": _env_example(plan),
        RECORD: json_text(bundle),
    }
    written = {
        name: commented(text, bundle.limits) if name.endswith(_COMMENTED) else text
        for name, text in files.items()
    }
    replace_bundle(options.output_dir, written)
    return Deployed(
        folder=options.output_dir,
        bundle=bundle,
        previous=previous,
        left_out=plan.left_out,
        notes=(*plan.notes, *filter(None, [source.unprobed])),
    )


def _bundle(run: Run, point: Load, plan: Deployment, site: Site, target: str) -> Bundle:
    resolved = run.engines[plan.variant]
    return Bundle(
        run=run.name,
        variant=plan.variant,
        load=point,
        engine=plan.engine,
        engine_version=plan.engine_version,
        image=plan.image,
        model=plan.served_model_name,
        checkpoint=plan.model if plan.revision else resolved.variant.model_path,
        revision=plan.revision,
        weights_sha256=_weights_sha256(run, resolved),
        target=target,
        device=resolved.device,
        name=site.name,
        namespace=site.namespace if get_target(target).cluster else None,
        replicas=site.replicas,
        written_at=datetime.now(UTC).isoformat(timespec="seconds"),
        serve_line=shell_line(plan.local_argv, plan.local_env, port=plan.port),
        limits=_limits(run, plan.variant),
    )


def _limits(run: Run, variant: str) -> tuple[str, ...]:
    """The decision's limits of a variant, and those of its engine that are known since."""
    decided = run.decision.limits_of(variant) if run.decision else ()
    return tuple(dict.fromkeys((*decided, *engine_faults(run)[1].get(variant, ()))))


def _in_container(source: WatchSource) -> WatchSource:
    """The references without the block size of a CPU, which no container gets."""
    envelope = source.envelope
    if envelope.device != "cpu":
        return source
    labels = tuple(pair for pair in envelope.cache if pair[0] != "block_size")
    return replace(source, envelope=replace(envelope, cache=labels))


def _monitoring(
    source: WatchSource, plan: Deployment, job: str, options: DeployOptions
) -> dict[str, str]:
    files = monitoring_files(
        source.envelope,
        edges_s=plan.edges_s,
        scrape_interval_s=options.scrape_interval,
        job=job,
        webhook=options.webhook,
    )
    if get_target(options.target).monitoring is not None:
        return files
    return {name: text for name, text in files.items() if name.startswith(_ON_KUBERNETES)}


def _replicas(run: Run, variant: str) -> int:
    """Servers that take the run's demand; 1 where rates were not measured."""
    chosen = run.decision.recommendation if run.decision else None
    if chosen is None or chosen.variant != variant or chosen.fleet is None:
        return 1
    return chosen.fleet.servers


def _weights_sha256(run: Run, resolved: ResolvedEngine) -> str | None:
    path = resolved.variant.model_path
    written = (item.weights_sha256 for item in run.quantized.values() if item.path == path)
    facts = (item.weights_sha256 for item in run.models.values() if item.path == path)
    return next(written, None) or next(facts, None)


def _env_example(plan: Deployment) -> str:
    return (
        "# Copy to .env and fill in; whet deploy keeps that file and never reads it.\n"
        "# Clients send the key as Authorization: Bearer KEY. To make one: openssl rand -hex 32\n"
        f"{plan.api_key_variable}=\n"
        "# Only for a gated model of the hub.\n"
        f"{plan.hub_token_variable}=\n"
    )


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
            fix=f"finish it with {run.resume_command}",
        )
    chosen = decision.recommendation
    name = variant or (chosen.variant if chosen is not None else None)
    if name is None:
        others = ", ".join(decision.qualified)
        raise NothingQualifiesError(
            f"{run.name} recommends nothing, and its report.md says why for each variant",
            fix=f"deploy one that qualifies with --variant ({others})"
            if others
            else "run it again",
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
    profile, layout, line = get_profile(resolved.engine), resolved.variant.layout, None
    if layout is not None:
        line = f"is {layout.text} behind a router"
    elif resolved.url is not None:
        line = f"was measured on a server that whet did not start ({resolved.url})"
    elif profile.plan_deployment is None:
        line = f"runs on {profile.title}"
    if line is not None:
        start = "" if resolved.url else f", or start it yourself: {resolved.serve_line}"
        raise UsageError(
            f"{name} {line}, which whet deploy has no manifests for",
            fix=f"deploy a variant of one vLLM server that whet starts{start}",
        )
