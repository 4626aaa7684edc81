"""What a log of prompts says about prefix caching: the best hit rate, what is lost, and to what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

CAUSES: Final[Mapping[str, str]] = {
    "whitespace": "white space",
    "date": "dates and times",
    "id": "ids and UUIDs",
    "version": "version strings",
    "name": "names and personalisation",
    "varying": "varying text before what all share",
    "order": "reordered tools, examples or chunks",
    "json": "JSON key order",
    "changed": "a changed system prompt",
    "truncation": "truncated history",
}
"""The words that a report uses for each kind of cause."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedRequest:
    """One request of a log, as it was sent: chat messages, a plain prompt, or token ids.

    ``place`` is where it stands (``log.jsonl:12``, or a file's name). ``at_ns`` is the Unix time,
    None in a log without times. ``session`` groups the turns of a conversation where the log says
    so. ``output`` is the answer's text where the log holds it, ``output_tokens`` its length.
    """

    place: str
    at_ns: int | None = None
    model: str | None = None
    session: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    output: str | None = None
    output_tokens: int | None = None
    cache_salt: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HitTokens:
    """Prompt tokens found in the cache, in full blocks, of all prompt tokens."""

    prompt_tokens: int
    hit_tokens: int

    @property
    def rate(self) -> float:
        """Hits ÷ prompt tokens; 0 where there are none."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CachePoint:
    """The hit tokens of an LRU cache of ``blocks`` KV blocks."""

    blocks: int
    hit_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheCurve:
    """Hit tokens against cache size, for one block size; ``points`` ascend in blocks.

    The last point is a cache that never evicts. LRU over KV blocks by stack distance (Mattson et
    al. 1970): one pass gives every size.
    """

    block_size: int
    prompt_tokens: int
    points: tuple[CachePoint, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Excerpt:
    """Two requests that should share, around the first token in which they differ.

    ``before`` is common to both, ``here`` and ``there`` differ, ``after`` is what follows ``here``.
    ``token`` counts the tokens before the difference. Texts are cut, and None under ``--redact``.
    """

    place: str
    other_place: str
    token: int
    before: str | None
    here: str | None
    there: str | None
    after: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """What keeps requests that should share from sharing.

    ``requests`` is how many lost something whose first difference is this one, ``tokens`` the
    prefill tokens that they computed anew for it, in full blocks. ``where`` says in which part of
    the prompt. ``since_ns`` is when a system prompt changed. ``mend`` is one sentence.
    """

    kind: str
    requests: int
    tokens: int
    where: str
    mend: str
    since_ns: int | None = None
    examples: tuple[Excerpt, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixNode:
    """A run of tokens that ``requests`` requests have in common, after their parent's.

    ``start`` is how many tokens stand before it, ``tokens`` how long it is; ``text`` its beginning,
    None under ``--redact``. ``cause`` is why requests that should share part ways here: the branch
    is lost. ``children`` are the largest; ``other_children`` and ``other_requests`` count the rest.
    """

    start: int
    tokens: int
    requests: int
    text: str | None
    cause: str | None = None
    children: tuple[PrefixNode, ...] = ()
    other_children: int = 0
    other_requests: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A mend of some causes: a request as it is and as it would be, and what that is worth.

    ``before`` and ``after`` are the rendered prompts of one request (None under ``--redact``).
    ``hits`` is the whole log with this mend and the ones before it in the list.
    """

    kinds: tuple[str, ...]
    title: str
    requests: int
    hits: HitTokens
    place: str
    before: str | None
    after: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillSpeed:
    """Seconds of prefill a token and the fixed part of TTFT, as measured, with its source."""

    s_per_token: float
    fixed_s: float
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayResult:
    """A log replayed on a real server, cold: what was predicted and what its counters say.

    Tokens; ``ttft_mean_s`` over the requests. ``differs`` says why where they differ by over 1%.
    """

    what: str
    requests: int
    predicted: HitTokens
    measured: HitTokens
    ttft_mean_s: float | None
    differs: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """Lines of a log that are no part of the figures: how many, why, and where the first is."""

    reason: str
    count: int
    first: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptAnalysis:
    """What ``whet prompts`` found.

    ``hits`` is what the traffic could have at best in the order it came, in a cache that never
    evicts; ``sized`` the same at ``cache_blocks`` KV blocks (None where no size is known).
    ``repaired`` and ``repaired_sized`` are the same of the log with every proposal followed.
    """

    source: str
    model: str
    requests: int
    left_out: tuple[LeftOut, ...]
    first_at_ns: int | None
    last_at_ns: int | None
    block_size: int
    cache_blocks: int | None
    hits: HitTokens
    sized: HitTokens | None
    repaired: HitTokens
    repaired_sized: HitTokens | None
    curve: CacheCurve
    repaired_curve: CacheCurve
    causes: tuple[Cause, ...]
    tree: PrefixNode
    proposals: tuple[Proposal, ...]
    speed: PrefillSpeed | None = None
    replays: tuple[ReplayResult, ...] = ()
