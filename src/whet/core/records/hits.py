"""Prefix cache hits of prompts."""

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

    @property
    def missed(self) -> int:
        """Prompt tokens that are not in the cache."""
        return self.prompt_tokens - self.hit_tokens
