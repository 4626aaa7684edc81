"""What a variant claims, and what the engine itself said or counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A feature that a variant says is on (or off).

    ``kind`` is ``weights``, ``speculation``, ``prefix_cache`` …; ``expected`` says in words what
    the engine must have said or counted for the claim to stand. A ``per_cell`` claim is judged
    for every batch size from counters, any other once from the start-up log.
    """

    kind: str
    statement: str
    expected: str
    per_cell: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """``outcome`` is proved, contradicted or unproved; only *proved* lets a cell count.

    ``sources`` quotes the log line or the counter with its values before and after.
    ``batch_size`` is None for a claim that is judged once a server.
    """

    variant: str
    batch_size: int | None
    claim: Claim
    outcome: str
    observed: str
    sources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictSet:
    """Every verdict on one variant, as stored."""

    variant: str
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineFacts:
    """What the engine's own start-up log says. None where it says nothing."""

    version: str | None
    weight_kernels: tuple[str, ...]
    quantized_layers: int | None
    unquantized_layers: int | None
    attention_backend: str | None
    kv_cache_tokens: int | None
    prefix_cache_enabled: bool | None
    async_scheduling: bool | None
    notices: tuple[str, ...]
