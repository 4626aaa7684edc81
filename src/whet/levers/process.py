"""The server's process: which engine, its front end, its graphs, how it schedules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from whet.core.flags import RUST_FRONTEND_ENV, plain_args, rust_frontend
from whet.core.records.engine import ResolvedEngine, Scalar, Variant
from whet.core.records.evidence import Claim, EngineFacts
from whet.levers.base import Lever, Outcome, Start, claim_per_start
from whet.levers.settings import ON


class EngineChoice(Lever):
    """``engine``: another engine than the run's own. What it runs is the other claims' business."""

    name = "engine"

    def labels(self, variant: Variant) -> Iterator[str]:
        """``engine=sglang``."""
        if variant.engine is not None:
            yield f"engine={variant.engine}"


class Frontend(Lever):
    """``frontend``: API servers in Python, or one process in Rust."""

    name = "frontend"
    spec_type = Literal["python", "rust"]

    def engine_env(self, value: Any) -> Mapping[str, str]:
        """The variable that switches the Rust front end on."""
        return {RUST_FRONTEND_ENV: "1" if value == "rust" else "0"}

    def labels(self, variant: Variant) -> Iterator[str]:
        """``frontend=rust``."""
        rust = rust_frontend(variant.env)
        if rust is not None:
            yield f"frontend={_name(rust)}"

    def claims(self, resolved: ResolvedEngine) -> Iterator[Claim]:
        """Only where one of the two is requested."""
        rust = rust_frontend(resolved.variant.env)
        if rust is not None:
            yield claim_per_start(
                "frontend",
                f"requests are answered by the front end in {_name(rust).capitalize()}",
                "lines of its process are in the log",
            )

    def judge_start(self, claim: Claim, start: Start) -> Outcome:
        """Each front end's lines begin with the name of its process."""
        wanted = _name(rust_frontend(start.variant.env))
        runs = start.facts.frontend
        if runs is None:
            return "unproved", "the log has no line of a front end", ()
        quotes = (f"the log: lines of the {runs} front end",)
        return ("proved" if runs == wanted else "contradicted"), f"{runs} answers", quotes


def _name(rust: bool | None) -> str:
    return "rust" if rust else "python"


class Execution(Lever):
    """``enforce_eager``."""

    name = "execution"

    def claims(self, resolved: ResolvedEngine) -> Iterator[Claim]:
        """Only where the flag is set, either way."""
        if (eager := plain_args(resolved.variant).get("enforce_eager")) is not None:
            yield claim_per_start(
                "execution",
                "eager execution" if eager else "compiled, with CUDA graphs on a GPU",
                "the log says that graphs and compilation are off"
                if eager
                else "the log reports captured graphs; on a CPU the resolved compilation mode "
                "is on",
            )

    def judge_start(self, claim: Claim, start: Start) -> Outcome:
        """The log reports eager mode, and graphs when they are captured."""
        facts = start.facts
        mode = start.declared.setting("compilation_config.mode")
        quotes = tuple(
            quote
            for quote, reported in (
                ("the log: Enforce eager set", facts.eager),
                ("the log: Graph capturing finished", facts.graphs_captured),
                (f"/server_info: compilation_config.mode {mode}", mode is not None),
            )
            if reported
        )
        if start.args["enforce_eager"]:
            return _eager(facts, quotes)
        if facts.eager:
            return "contradicted", "the engine runs eagerly", quotes
        overridden = start.notices(start.profile.patterns.no_graphs)
        if overridden:
            return "contradicted", f"no graphs: {overridden[0]}", overridden
        if start.resolved.device == "cpu":
            on = mode is not None and mode not in ("0", "null", "NONE")
            observed = f"compilation mode {mode or 'not reported'}"
            return "proved" if on else "unproved", observed, quotes
        if facts.graphs_captured:
            return "proved", "graphs captured", quotes
        return "unproved", "the log reports no captured graphs", quotes


def _eager(facts: EngineFacts, quotes: tuple[str, ...]) -> Outcome:
    if facts.graphs_captured:
        return "contradicted", "graphs were captured", quotes
    if facts.eager:
        return "proved", "no graphs, no compilation", quotes
    return "unproved", "the log is silent", quotes


class AsyncScheduling(Lever):
    """``async_scheduling``."""

    name = "async_scheduling"

    def claims(self, resolved: ResolvedEngine) -> Iterator[Claim]:
        """Only where the flag is set, either way."""
        if (scheduling := plain_args(resolved.variant).get("async_scheduling")) is not None:
            yield claim_per_start(
                "async_scheduling",
                f"asynchronous scheduling is {'on' if scheduling else 'off'}",
                "the log and /server_info agree",
            )

    def judge_start(self, claim: Claim, start: Start) -> Outcome:
        """The log's line and the resolved setting; one that says otherwise is enough."""
        wanted = bool(start.args["async_scheduling"])
        setting = start.declared.setting("scheduler_config.async_scheduling")
        sources = {
            "the log": start.facts.async_scheduling,
            "/server_info": None if setting is None else setting.lower() in ON,
        }
        quotes = tuple(f"{where}: {word}" for where, word in sources.items() if word is not None)
        values = {word for word in sources.values() if word is not None}
        off = start.notices(start.profile.patterns.async_off)
        if wanted and off:
            return "contradicted", off[0], off
        if not values:
            return "unproved", "neither the log nor /server_info reports it", ()
        return ("proved" if values == {wanted} else "contradicted"), "; ".join(quotes), quotes


class PerformanceMode(Lever):
    """``performance_mode``: defaults of vLLM for few requests or for many.

    ``interactivity`` captures a CUDA graph of every size up to 32, ``throughput`` doubles the
    sequences and tokens of a step where the spec does not set them.
    """

    name = "performance_mode"
    spec_type = Literal["balanced", "interactivity", "throughput"]

    def engine_args(self, value: Any) -> Mapping[str, Scalar]:
        """The flag of the same name."""
        return {"performance_mode": value}
