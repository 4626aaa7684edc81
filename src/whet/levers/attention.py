"""The attention backend."""

from __future__ import annotations

from collections.abc import Iterator

from whet.core.flags import plain_args
from whet.core.records.engine import ResolvedEngine
from whet.core.records.evidence import Claim
from whet.engines import get_profile
from whet.levers.base import Lever, Outcome, Start, claim_per_start


class Attention(Lever):
    """``attention_backend``."""

    name = "attention"

    def claims(self, resolved: ResolvedEngine) -> Iterator[Claim]:
        """Where a backend is requested, and of an engine that may have to take a slow one."""
        profile = get_profile(resolved.engine)
        slow = profile.kernels.slow_attention
        if (backend := plain_args(resolved.variant).get("attention_backend")) is not None:
            yield claim_per_start(
                "attention",
                f"attention runs on {backend}",
                "the log names the backend or its class in the layers; /server_info only repeats "
                "the request",
            )
        elif slow:
            yield claim_per_start(
                "attention",
                f"attention runs on a backend that {profile.title} is fast with",
                f"the log names it, and it is not {', '.join(sorted(slow))}",
            )

    def judge_start(self, claim: Claim, start: Start) -> Outcome:
        """Only the log counts: the resolved configuration repeats the request."""
        requested = start.args.get("attention_backend")
        backend = start.facts.attention_backend
        if requested is not None:
            outcome = _as_requested(str(requested).upper(), start)
        elif backend is None:
            outcome = "unproved", "the log names no attention backend", ()
        else:
            outcome = "proved", f"{backend} runs", (f"the log: {backend}",)
        slow = start.profile.kernels.slow_attention & set((backend or "").split(" and "))
        if not slow or outcome[0] != "proved":
            return outcome
        observed = f"{backend} runs, which says nothing of how fast {start.profile.title} is"
        return "unproved", observed, outcome[2]


def _as_requested(wanted: str, start: Start) -> Outcome:
    """By the backend that the log names, and by the layers' class."""
    facts = start.facts
    refused = start.notices(start.profile.patterns.attention_refused)
    if refused:
        return "contradicted", f"the engine refused: {refused[0]}", refused
    layers = facts.attention_class
    backend = None if facts.attention_backend == layers else facts.attention_backend
    quotes = tuple(f"the log: {word}" for word in (backend, layers) if word is not None)
    known = start.profile.kernels.attention.get(layers or "")
    named = {word.upper() for word in (backend, known) if word is not None}
    if named == {wanted}:
        return "proved", f"{wanted} runs", quotes
    if named:
        other = ", ".join(sorted(named - {wanted}))
        return "contradicted", f"attention runs on {other}", quotes
    if layers is not None:
        return "unproved", f"the class {layers} is not known to be {wanted}", quotes
    return "unproved", "the log names no attention backend", quotes
