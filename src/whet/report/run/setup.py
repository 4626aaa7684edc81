"""Serve lines, models, environment: what another person needs to repeat it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from whet.core.format import number, plural
from whet.core.quote import shell_word
from whet.core.records.engine import ResolvedEngine
from whet.core.run import Run
from whet.core.units import human_bytes
from whet.report.document import Bullets, Code, Folded, Heading, Node, Paragraph, Section
from whet.report.text import short_path

ORDER = 110
_PROGRAM: Final = re.compile(
    r"\S+ -m vllm\.entrypoints\.(?:openai\.api_server --model|cli\.main serve) "
)


def build(run: Run) -> Section:
    """Everything that is not a result."""
    nodes: list[Node] = list(_serve_lines(run))
    if run.models:
        nodes += [Heading(text="Models"), Bullets(items=list(_models(run)))]
    if run.environment is not None:
        nodes += [Heading(text="Environment"), Bullets(items=list(_environment(run)))]
    return Section(id="setup", title="Set-up", group="Set-up", nodes=nodes)


def _serve_lines(run: Run) -> Iterator[Node]:
    lists = [engine.env for engine in run.engines.values()]
    common = [pair for pair in next(iter(lists), ()) if all(pair in env for env in lists)]
    if common:
        env = " ".join(f"{key}={shell_word(value)}" for key, value in common)
        yield Paragraph(text="Set for every server while it was measured:", tone="muted")
        yield Code(text=env)
    for name in run.variants:
        if name in run.engines:
            excluded = " (excluded, do not deploy)" if run.is_excluded(name) else ""
            line = measured_line(run.engines[name])
            yield Folded(summary=f"Serve line of {name}{excluded}", nodes=[line])


def measured_line(engine: ResolvedEngine) -> Code:
    """Return the command that was measured, after the variables of the spec alone."""
    own = "".join(f"{key}={shell_word(value)} " for key, value in engine.variant.env)
    program = _PROGRAM.search(engine.serve_line)
    line = engine.serve_line
    return serve_line(line if program is None else own + line[program.start() :])


def serve_line(line: str) -> Code:
    """Return a command with ``vllm serve`` for a server; folders below this one are relative."""
    line = re.sub(rf"(?<![\w./-]){re.escape(f'{Path.cwd()}/')}", "", line)
    return Code(text=_PROGRAM.sub("vllm serve ", line), language="sh")


def _models(run: Run) -> Iterator[str]:
    for role, facts in run.models.items():
        source = short_path(facts.path, run.root)
        if facts.hub_id is not None:
            source = f"{facts.hub_id} at {facts.commit}"
        yield (
            f"{role}: {facts.architecture}, {number(facts.parameters)} parameters, "
            f"{facts.stored.scheme} {facts.stored.dtype}, sha256 {facts.weights_sha256[:12]}, "
            f"from {source}"
        )


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
    for name, start in run.starts.items():
        if start.nice:
            yield f"{name} ran at nice {start.nice}, so other processes go before it"
