"""What ``whet bench`` is asked for, whom it asks, and what one run sends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from whet.core.bench_options import Form, LoadOptions, ServerOptions
from whet.core.records.load import Loop
from whet.load.arrivals import Arrivals
from whet.load.lengths import NO_PREFIXES, Lengths, SharedPrefixes, fixed
from whet.load.sharing import TokenIds
from whet.requests import LoggedRequest
from whet.requests.trace import Trace

ASSUMED_BLOCK_SIZE: Final = 16
"""Tokens of a KV block where the server does not say: vLLM's ``DEFAULT_BLOCK_SIZE``."""

INPUT_LENGTHS: Final = fixed(512)
OUTPUT_LENGTHS: Final = fixed(128)


Source = Path | Trace
"""A log whose rows are drawn at random, or one that is played at its own times."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A request of a log as it is sent: the ids that a server reads, and the answer's length."""

    request: LoggedRequest
    prompt_token_ids: TokenIds
    output_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRequest:
    """What to send, how and how often: the options as given, and what follows from them.

    ``source`` None is synthetic prompts, of ``inputs``, ``outputs`` and ``prefixes``. ``outputs``
    None is what the source says, or ``OUTPUT_LENGTHS`` where it says nothing. ``form``: token ids
    or text to the completions endpoint, or a chat; a source that holds its prompts has its own.

    ``arrivals`` None is a closed loop, or static batches, of ``concurrency``
    requests. ``body`` is merged into the body of each request.
    """

    url: str
    requests: int
    form: Form = "ids"
    server: ServerOptions = field(default_factory=ServerOptions)
    load: LoadOptions = field(default_factory=LoadOptions)
    body: Mapping[str, Any] = field(default_factory=dict)
    inputs: Lengths | None = None
    outputs: Lengths | None = None
    prefixes: SharedPrefixes = NO_PREFIXES
    source: Source | None = None
    arrivals: Arrivals | None = None

    @property
    def runs(self) -> int:
        """Runs to send."""
        return self.load.num_runs or 1

    @property
    def concurrency(self) -> int:
        """Requests in flight: the size of a closed loop, or the cap of an open one, 0 for none."""
        return self.load.max_concurrency or (0 if self.arrivals is not None else 1)

    @property
    def loop(self) -> Loop:
        """How requests are sent."""
        return "closed" if self.arrivals is None else "open"

    @property
    def rate_rps(self) -> float | None:
        """The mean rate that is asked for; None where none is, or all are sent at once."""
        if self.arrivals is None:
            return None
        if self.arrivals.speed is None or self.timeline is None:
            rate = self.arrivals.rate_rps
            return rate if math.isfinite(rate) else None
        own = self.timeline.rate_rps
        return None if own is None else own * self.arrivals.speed

    @property
    def timeline(self) -> Trace | None:
        """The trace whose times can be played; None for another source."""
        return self.source if isinstance(self.source, Trace) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A server that answered, and the tokenizer that lengths are counted with.

    ``rows`` are those to draw from, as that tokenizer reads them, where the source is a path.
    ``block_size`` is the server's tokens a KV block, for the expected hit rate.
    """

    model: str
    tokenizer: Path
    rows: tuple[Row, ...] = ()
    block_size: int = ASSUMED_BLOCK_SIZE
