"""Serve lines, engines, workload, models, environment: what another person needs to repeat it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from whet.core.format import number, percent, plural
from whet.core.quote import shell_word
from whet.core.records.model import ModelFacts
from whet.core.run import Run
from whet.core.units import human_bytes, human_duration
from whet.report.document import (
    Bullets,
    Code,
    Column,
    Folded,
    Heading,
    Node,
    Paragraph,
    Section,
    figure_columns,
    table,
)
from whet.report.text import short_path

ORDER = 110
_WORKLOAD = (
    "batch and trial",
    "requests",
    "shared prefix",
    "long system prompt",
    "prefixes",
    "input tokens",
    "output tokens",
    "expected hits",
    "sha256",
)
_MODELS = (
    "",
    "architecture",
    "parameters",
    "layers",
    "hidden",
    "heads / KV",
    "stored",
    "weights sha256",
    "from",
)


def build(run: Run) -> Section:
    """Everything that is not a result."""
    nodes: list[Node] = [*_serve_lines(run), *_engines(run), *_workload(run), *_models(run)]
    if run.environment is not None:
        nodes += [Heading(text="Environment"), Bullets(items=list(_environment(run)))]
    return Section(id="setup", title="Set-up", group="Set-up", nodes=nodes)


def _serve_lines(run: Run) -> Iterator[Node]:
    engines = list(run.engines.values())
    first = engines[0].env if engines else ()
    common = [pair for pair in first if all(pair in engine.env for engine in engines)]
    if common:
        env = " ".join(f"{key}={shell_word(value)}" for key, value in common)
        yield Paragraph(text="Set for every server while it was measured:", tone="muted")
        yield Code(text=env, language="sh")
    for name in run.variants:
        if name in run.engines:
            excluded = " (excluded, do not deploy)" if run.is_excluded(name) else ""
            line = Code(text=run.engines[name].serve_line, language="sh")
            yield Folded(summary=f"Serve line of {name}{excluded}", nodes=[line], is_open=True)


def _engines(run: Run) -> Iterator[Node]:
    for name in run.variants:
        facts, words = run.facts.get(name), list(_engine_words(run, name))
        if words:
            notices = [Code(text="\n".join(facts.notices))] if facts and facts.notices else []
            nodes: list[Node] = [Bullets(items=words), *notices]
            yield Folded(summary=f"{name} at start", nodes=nodes)


def _engine_words(run: Run, name: str) -> Iterator[str]:
    facts, start, engine = run.facts.get(name), run.starts.get(name), run.engines.get(name)
    if engine is not None:
        scheme, weights = engine.variant.scheme, engine.variant.weights_label
        yield f"engine: {engine.engine} {engine.engine_version} on {engine.device}"
        yield f"weights: {weights if scheme in weights else f'{scheme} ({weights})'}"
    if facts is not None:
        yield f"weight kernels: {', '.join(facts.weight_kernels) or 'not reported'}"
        yield f"attention: {facts.attention_backend or 'not reported'}"
        if facts.kv_cache_tokens:
            yield f"KV cache: {number(facts.kv_cache_tokens)} tokens"
    if start is not None:
        yield f"ready after {human_duration(start.ready_s)}"
        if start.nice:
            yield f"ran at nice {start.nice}, so other processes go before it"


def _workload(run: Run) -> Iterator[Node]:
    if not run.workloads:
        return
    rows = [
        (
            key,
            f"{facts.requests:,}",
            percent(facts.shared_prefix_share),
            percent(facts.long_system_share),
            facts.shared_prefixes,
            f"{facts.input_tokens_mean:,.0f}",
            f"{facts.output_tokens_mean:,.0f}",
            percent(facts.expected_hit_rate),
            facts.sha256[:12],
        )
        for key, facts in run.workloads.items()
    ]
    made = table("Workload", [_WORKLOAD[0], *figure_columns(*_WORKLOAD[1:])], rows)
    yield Folded(summary=f"Workload ({len(rows)})", nodes=[made])


def _models(run: Run) -> Iterator[Node]:
    if not run.models:
        return
    rows = [
        (
            role,
            facts.architecture,
            number(facts.parameters),
            facts.layers,
            facts.hidden_size,
            f"{facts.heads} / {facts.kv_heads}",
            f"{facts.stored.scheme} {facts.stored.dtype}",
            facts.weights_sha256[:12],
            _source(facts, run.root),
        )
        for role, facts in run.models.items()
    ]
    yield Heading(text="Models")
    columns = [Column(name=n, figure=n in ("parameters", "layers")) for n in _MODELS]
    yield table("Models", columns, rows)


def _source(facts: ModelFacts, root: Path) -> str:
    """The hub id and its commit, or the folder."""
    if facts.hub_id is None:
        return short_path(facts.path, root)
    return f"{facts.hub_id} at {facts.commit}"


def _environment(run: Run) -> Iterator[str]:
    env = run.environment
    assert env is not None
    driver = f", driver {env.device.driver}" if env.device.driver else ""
    memory = human_bytes(env.device.memory_bytes)
    yield f"device: {env.device.count} × {env.device.name}, {memory}{driver}"
    yield f"host: {env.cpu}, {plural(env.cpu_count, 'core')}, {human_bytes(env.ram_bytes)}"
    yield f"system: {env.os}, Python {env.python}"
    yield f"packages: {', '.join(f'{name} {version}' for name, version in env.packages)}"
    if env.git_commit:
        yield f"commit: {env.git_commit}"
