"""Prefix cache hits: counted, predicted and measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class HitTokens:
    """Prompt tokens found in the prefix cache (full blocks), of all prompt tokens."""

    prompt_tokens: int
    hit_tokens: int

    @property
    def rate(self) -> float:
        """Hits ÷ prompt tokens; 0 without prompt tokens."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayResult:
    """A log replayed on a real server with a cold cache: prediction and the server's counters.

    ``ttft_mean_s`` is over the requests. ``differs`` says why the two differ by over 1%.
    """

    what: str
    requests: int
    predicted: HitTokens
    measured: HitTokens
    ttft_mean_s: float | None
    differs: str | None = None
