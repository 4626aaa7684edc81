"""Eager execution, or compiled with CUDA graphs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whet.core.flags import plain_args
from whet.core.records.engine import ResolvedEngine
from whet.core.records.evidence import Claim, EngineFacts
from whet.levers.base import Lever, Outcome, Start, claim_per_start


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
        no_graphs = re.compile(start.profile.patterns.no_graphs)
        overridden = tuple(n for n in facts.notices if no_graphs.search(n))
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
