"""The process that answers HTTP: tokenizing, detokenizing, streaming."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from whet.core.flags import RUST_FRONTEND_ENV, rust_frontend
from whet.core.records.engine import ResolvedEngine, Variant
from whet.core.records.evidence import Claim
from whet.levers.base import Lever, Outcome, Start, claim_per_start


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
