"""The result of `whet prompts`: hit rates, causes and fixes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from whet.requests import LeftOut

CauseKind = Literal["date", "id", "name", "whitespace", "order", "template", "other"]

CAUSES: Final[Mapping[CauseKind, str]] = {
    "date": "date or time",
    "id": "id or number",
    "name": "user name",
    "whitespace": "white space",
    "order": "order of tools or documents",
    "template": "template change",
    "other": "another reason",
}
"""Each kind of cause, as reports name it."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A request and its nearest predecessor at their first difference.

    Texts are cut, and None under ``--redact``.
    """

    place: str
    other_place: str
    before: str | None
    here: str | None
    there: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Why requests differ early from their nearest predecessor.

    ``tokens`` estimates the prompt tokens behind the difference that both requests have.
    ``since_ns`` is the time of the first request with the change, for a template change.
    """

    kind: CauseKind
    where: str
    requests: int
    tokens: int
    since_ns: int | None = None
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """A change of the prompts, with the hits of the whole log replayed with it."""

    kinds: tuple[CauseKind, ...]
    title: str
    requests: int
    hits: HitTokens


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptAnalysis:
    """The answer of ``whet prompts``.

    ``hits`` are those of a cache that never evicts. ``fixes`` are those that raise the replayed hit
    rate, each alone; ``together`` is all of them at once, None for fewer than two. ``doubts`` are
    what is odd about the log.
    """

    source: str
    model: str
    requests: int
    left_out: tuple[LeftOut, ...]
    first_at_ns: int | None
    last_at_ns: int | None
    block_size: int
    hits: HitTokens
    causes: tuple[Cause, ...]
    fixes: tuple[Fix, ...]
    together: Fix | None
    doubts: tuple[str, ...] = ()

    @property
    def best_fix(self) -> Fix | None:
        """All fixes together, or the best one; None where no fix raises the hit rate."""
        return self.together or (self.fixes[0] if self.fixes else None)

    @property
    def best(self) -> HitTokens:
        """The hits with the best fix, or as the log is."""
        return self.hits if self.best_fix is None else self.best_fix.hits

    @property
    def fix_kinds(self) -> tuple[CauseKind, ...]:
        """The kinds of causes that the best fix is for."""
        return () if self.best_fix is None else self.best_fix.kinds
