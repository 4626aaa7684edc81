"""The client's parser without a socket: bytes in, the record of the request out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import httptools

from whet.client import CompletionCall, Exchange, read_event
from whet.client.wire import Connection
from whet.core.records.load import RequestEvent

LIMITS = CompletionCall(prompt_token_ids=(1, 2, 3), max_tokens=16, ignore_eos=True).limits
WORDS = {
    None, "reset", "bad_http", "too_large", "wrong_content_type", "sse_error", "bad_chunk",
    "no_tokens", "no_done", "no_finish", "bad_usage", "usage_mismatch",
}  # fmt: skip


class Fed(Connection):
    """A connection whose bytes the caller hands over, one read after the other."""

    connected = True
    _sent = True

    def close(self) -> None:
        self.reusable = False

    def _write(self, data: bytes) -> None:
        """There is no socket."""

    def more(self, data: bytes) -> None:
        """Bytes that nobody asked for."""
        self._take(data, 0)

    def answer(self, reads: Sequence[bytes], *, closed: bool) -> RequestEvent:
        """What the client makes of an answer that arrives in ``reads``, one a nanosecond."""
        exchange = Exchange(request=b"", limits=LIMITS, sent_ns=1, scheduled_ns=1)
        self._exchange, self._received, self.reusable = exchange, 0, False
        self._parser = httptools.HttpResponseParser(self)
        for at, data in enumerate(reads, start=2):
            self._take(data, at)
        if closed:
            self._lost(None)
        if self._exchange is not None:
            exchange.fail("reset", "no more bytes come")
            self.close()
            self._exchange = None
        return read_event(exchange, origin_ns=0)


def verdict(data: bytes, cuts: Sequence[int], *, closed: bool) -> tuple[object, ...]:
    """What has to be the same however the network cuts ``data``; checks what always holds."""
    connection = Fed()
    event = connection.answer(list(pieces(data, cuts)), closed=closed)
    word = event.error or ""
    assert event.error in WORDS or word.startswith("http_"), word
    assert list(event.chunk_ns) == sorted(event.chunk_ns)
    assert event.error is None or event.detail is not None
    figures = event.prompt_tokens, event.output_tokens, event.cached_tokens
    return (event.error, event.text, len(event.chunk_ns), figures, event.finish_reason)


def reusable(data: bytes, cuts: Sequence[int]) -> bool:
    """Whether the connection goes back to the pool after ``data``."""
    connection = Fed()
    connection.answer(list(pieces(data, cuts)), closed=False)
    return connection.reusable


def pieces(data: bytes, cuts: Sequence[int]) -> Iterator[bytes]:
    """``data`` cut at these places; no piece is empty, as no read of a socket is."""
    edges = [0, *sorted(cut for cut in {*cuts} if 0 < cut < len(data)), len(data)]
    return (data[a:b] for a, b in pairwise(edges) if a < b)
