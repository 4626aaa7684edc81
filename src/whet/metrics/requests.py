"""One request's latencies, from its event."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from whet.core.records.load import RequestEvent


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestFigures:
    """Nanoseconds, counted from the scheduled send unless the name says otherwise.

    ``tpot_ns`` is (E2E − TTFT) ÷ (output tokens − 1): None for a single token, or where the server
    reported no usage. ``chunk_ns`` are the arrivals of its pieces with output.
    """

    ttft_ns: int
    ttft_from_send_ns: int
    tpot_ns: float | None
    e2e_ns: int
    chunk_ns: tuple[int, ...]
    output_tokens: int | None

    @property
    def itl_ns(self) -> tuple[int, ...]:
        """The gaps between pieces, which under speculation are not gaps between tokens."""
        return tuple(after - before for before, after in pairwise(self.chunk_ns))


def request_figures(event: RequestEvent) -> RequestFigures | None:
    """The figures of a completed request; None for one that failed or had no output.

    E2E ends with the last piece of output, as a reader sees it; what the server sends after that
    (usage, ``[DONE]``) is not latency.
    """
    if event.error is not None or not event.chunk_ns:
        return None
    first_ns, last_ns = event.chunk_ns[0], event.chunk_ns[-1]
    tokens = event.output_tokens
    return RequestFigures(
        ttft_ns=first_ns - event.scheduled_ns,
        ttft_from_send_ns=first_ns - event.sent_ns,
        tpot_ns=None if tokens is None or tokens < 2 else (last_ns - first_ns) / (tokens - 1),
        e2e_ns=last_ns - event.scheduled_ns,
        chunk_ns=event.chunk_ns,
        output_tokens=tokens,
    )
